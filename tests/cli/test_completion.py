"""Completion: what the last word of a command may become, and in real shells."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pexpect
import pyte
import pytest

from weft.checkpoint.pulled_models import pulled_folder
from weft.cli.app import COMMANDS, main
from weft.cli.completion import SCRIPTS
from weft.cli.completion_candidates import complete

SHELLS = {
    "bash": ["bash", "--norc", "--noprofile"],
    "zsh": ["zsh", "-f"],
    "fish": ["fish", "--no-config"],
}
SETUP = {
    "bash": 'eval "$(weft completion bash)"',
    "zsh": 'autoload -U compinit; compinit -D; eval "$(weft completion zsh)"',
    "fish": "weft completion fish | source",
}
MAX_SECONDS = 0.6


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with runs, and pulled models."""
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    pulled_folder("org/tiny").mkdir(parents=True)
    pulled_folder("smollm2").mkdir()
    for step in (20, 400):
        (tmp_path / "runs" / "en-de" / "checkpoints" / f"{step:08d}").mkdir(parents=True)
    (tmp_path / "runs" / "en-de" / "run.json").write_text("{}")
    (tmp_path / "runs" / "other").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def values(*words: str) -> list[str]:
    return list(complete(words).values)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tr", ["train", "translate"]),
        ("--v", ["--version"]),
        ("nothing x", []),
        ("train --pa", ["--pairs"]),
        ("train --pairs a --o", ["--out", "--objective"]),
        ("train --objective ", ["lm", "mlm"]),
        ("train ti", ["tiny"]),
        ("eval --activations i", ["int8"]),
        ("eval m --pairs a b --d", ["--documents", "--device"]),
        ("chat s", ["smollm2"]),
        ("chat ru", ["runs/en-de"]),
        ("translate runs/en-de@", [f"runs/en-de@{name}" for name in ("best", "last", "20", "400")]),
        ("translate runs/en-de@4", ["runs/en-de@400"]),
        ("info mo", ["model"]),
        ("info mul", ["multi30k"]),
        ("status ", ["runs/en-de"]),
        ("plot runs/en-de runs/", ["runs/en-de"]),
        ("pull ", ["smollm2", "minilm", "nko"]),
        ("rm ", ["org/tiny", "smollm2"]),
        ("completion f", ["fish"]),
        ("bench tr", ["train", "translate"]),
        ("bench train --sys", ["--systems"]),
        ("doctor x", []),
    ],
)
def test_the_last_word_is_completed(folder: Path, words: str, expected: list[str]) -> None:
    assert values(*words.split(" ")) == expected


def test_files_are_offered_where_a_path_is_expected(folder: Path) -> None:
    with_files = ["train --pairs ", "train --pairs a ", "chat ", "train --out ", "embed m "]
    assert all(complete(words.split(" ")).has_files for words in with_files)
    without = ["train --time ", "pull ", "generate m --seed ", "train --"]
    assert not any(complete(words.split(" ")).has_files for words in without)


def test_every_command_can_be_completed(folder: Path) -> None:
    assert values("") == list(COMMANDS)
    for name in COMMANDS:
        options = values(name, "--")
        assert "--threads" in options or name == "bench", name
        complete([name, ""])


def test_completion_is_fast_and_imports_no_torch(folder: Path) -> None:
    program = (
        "import sys; from weft.cli.app import main; "
        "code = main(['completion', 'zsh', '--', 'generate', 'smollm2', '--temper']); "
        "print(code, 'torch' in sys.modules, file=sys.stderr)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stderr == "0 False\n"
    assert done.stdout.startswith("--temperature\t")
    assert after.ru_utime - before.ru_utime < MAX_SECONDS


def test_the_script_is_printed_and_other_shells_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for shell, script in SCRIPTS.items():
        assert main(["completion", shell]) == 0
        assert capsys.readouterr().out == script
    assert main(["completion", "tcsh"]) == 2


@pytest.mark.parametrize("shell", SHELLS)
def test_a_real_shell_completes_a_command_and_a_pulled_model(folder: Path, shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HOME": str(folder), "TERM": "xterm"}
    program, *arguments = SHELLS[shell]
    terminal = pexpect.spawn(
        program,
        arguments,
        dimensions=(24, 80),
        timeout=60,
        env=environment,
        cwd=str(folder),
        use_poll=True,
    )
    screen = pyte.Screen(80, 24)
    stream = pyte.ByteStream(screen)

    def wait_for(text: str) -> None:
        for _ in range(3000):
            if any(text in line for line in screen.display):
                return
            try:
                answer = terminal.read_nonblocking(65536, timeout=0.02)
            except pexpect.TIMEOUT:
                continue
            stream.feed(answer)
            if b"\x1b[c" in answer:  # fish asks what the terminal is
                terminal.send("\x1b[?1;2c")
        raise AssertionError("\n".join(screen.display))

    terminal.sendline(f"{SETUP[shell]}; echo rea''dy")
    wait_for("ready")
    terminal.send("weft transl\t")
    wait_for("weft translate ")
    terminal.send("smo\t")
    wait_for("weft translate smollm2")
    terminal.send("--len\t")
    wait_for("--length-penalty")
    terminal.close(force=True)
