"""An engine that does not fit into the available memory is refused when it is created."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.checkpoint.gguf.test_quantized_model import LLAMA, write
from weft.checkpoint import tensor_source
from weft.checkpoint.description import describe
from weft.checkpoint.formats import load_checkpoint
from weft.checkpoint.huggingface import save_hf
from weft.cli.app import main
from weft.core.errors import ConfigError, DataError, UsageError
from weft.core.memory import MemoryLimit
from weft.engine import memory_budget
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.memory_budget import GIB, check_weights, weight_bytes, workspace_bytes
from weft.engine.request import GenerationRequest
from weft.engine.scheduling.admission import longest_sequence
from weft.models.config import ModelConfig
from weft.models.cost import cost_of
from weft.models.weight_shapes import weight_shapes
from weft.nn.memoryless import is_memoryless
from weft.nn.packed_modules import packed_modules

from .tiny import tiny, tiny_folder


@pytest.fixture
def half_a_gib(monkeypatch: pytest.MonkeyPatch) -> MemoryLimit:
    limit = MemoryLimit(GIB // 2, "the memory limit of /sys/fs/cgroup/x")
    monkeypatch.setattr(memory_budget, "available_memory", lambda: limit)
    return limit


def engine_of(**config: Any) -> Engine:
    checkpoint = tiny("decoder")
    return Engine(checkpoint.model, checkpoint.tokenizer, EngineConfig(**config))


def test_a_cache_that_does_not_fit_is_refused_with_both_sizes(half_a_gib: MemoryLimit) -> None:
    message = (
        r"needs 1\.00 GiB \(1\.00 GiB of KV cache, 0\.00 GiB of workspace\), but only 0\.50 GiB "
        r"are left of the memory limit of /sys/fs/cgroup/x\. Set cache_gib \(--cache\) to 0\.45"
    )
    with pytest.raises(UsageError, match=message):
        engine_of(cache_gib=1.0)
    engine = engine_of(cache_gib=0.45)
    engine.submit(GenerationRequest((5, 6), 4))
    assert engine.step()


def test_auto_takes_half_of_what_is_left(half_a_gib: MemoryLimit) -> None:
    engine = engine_of(cache_gib="auto", page_size=16)
    store = engine.runner.need_store()
    free = half_a_gib.available - workspace_bytes(engine.model.config, engine.config)
    assert free / 2 - store.num_bytes < store.num_bytes / store.num_pages * 2
    assert store.num_bytes <= free / 2


def test_pages_for_the_longest_sequence_are_limited_by_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request that needs more is refused; before, the process would have been killed."""
    tight = EngineConfig(
        cache_gib=1e-6, page_size=4, token_budget=8, encoder_budget=8, max_running=2
    )
    checkpoint = tiny("decoder", max_len=4000)
    workspace = workspace_bytes(checkpoint.model.config, tight)
    limit = MemoryLimit(workspace + (1 << 18), "the machine's available memory")
    monkeypatch.setattr(memory_budget, "available_memory", lambda: limit)
    engine = Engine(checkpoint.model, checkpoint.tokenizer, tight)
    assert engine.runner.need_store().num_bytes <= 1 << 18
    with pytest.raises(UsageError, match="needs up to 250 pages of 4 tokens but the KV cache has"):
        engine.submit(GenerationRequest((5,) * 900, 100))
    engine.submit(GenerationRequest((5,) * 20, 20))
    while not engine.is_idle:
        engine.step()


@pytest.mark.parametrize("cache_gib", ["auto", 1e-6])
def test_the_longest_sequence_leaves_half_of_the_memory(
    cache_gib: Any, half_a_gib: MemoryLimit
) -> None:
    """Its pages took all that was left: the next allocation ended the process."""
    config = EngineConfig(cache_gib=cache_gib, page_size=4)
    checkpoint = tiny("decoder", max_len=2_000_000)
    engine = Engine(checkpoint.model, checkpoint.tokenizer, config)
    free = half_a_gib.available - workspace_bytes(checkpoint.model.config, config)
    assert 0.45 * free < engine.runner.need_store().num_bytes <= 0.5 * free
    with pytest.raises(UsageError, match="but the KV cache has"):
        engine.submit(GenerationRequest((5,), 1_999_000))


def test_weights_that_do_not_fit_are_refused_before_they_are_read(
    half_a_gib: MemoryLimit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder whose weights are a sparse file: reading 3 GiB would take seconds."""
    big = tiny_folder(tmp_path / "big", "decoder")
    settings = json.loads((big / "config.json").read_text())
    settings["model"] |= {"width": 4096, "num_layers": 4}
    (big / "config.json").write_text(json.dumps(settings))
    shapes = weight_shapes(ModelConfig.from_dict(settings["model"]))
    write_sparse(big / "model.safetensors", shapes)
    message = (
        r"needs 4\.\d\d GiB \(3\.0\d GiB of weights, 1\.00 GiB of KV cache, 0\.\d\d GiB of work"
    )
    with pytest.raises(UsageError, match=message):
        check_weights(big, EngineConfig())
    with pytest.raises(
        UsageError, match=r"\(3\.0\d GiB of weights, .* of workspace\).* a smaller mod"
    ):
        check_weights(big, EngineConfig(cache_gib="auto"))
    assert main(["generate", str(big), "the", "--max-tokens", "2"]) == 2
    assert "GiB of weights" in capsys.readouterr().err
    folder = tiny_folder(tmp_path / "model", "decoder")
    assert main(["generate", str(folder), "the", "--max-tokens", "2"]) == 2
    assert "but only 0.50 GiB are left of the memory limit" in capsys.readouterr().err
    assert main(["generate", str(folder), "the", "--max-tokens", "2", "--cache", "auto"]) == 0


def write_sparse(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """A safetensors file of float32 zeros that takes no space on the disk."""
    entries, at = {}, 0
    for name, shape in shapes.items():
        end = at + 4 * prod(shape)
        entries[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, end]}
        at = end
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + at)


def held_bytes(model: nn.Module) -> int:
    """Memory of the weights of a loaded model."""
    layers = packed_modules(model)
    matrices = {id(matrix): matrix for layer in layers for matrix in layer.matrices.values()}
    floats = {w.data_ptr(): w.nbytes for w in model.parameters() if not is_memoryless(w)}
    return sum(floats.values()) + sum(matrix.num_bytes for matrix in matrices.values())


@pytest.mark.parametrize(
    ("name", "kind"),
    [("llama", kind) for kind in ("F32", "F16", "Q4_0", "Q4_1", "Q5_0", "Q8_0")]
    + [(name, "Q8_0") for name in ("llama, untied", "gpt2", "deepseek", "t5")],
)
def test_the_weights_of_a_gguf_file_take_the_stated_memory(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half precision and most quantized types become float32, as do transposed matrices."""
    path = write(tmp_path, monkeypatch, name, rest=kind)
    held = held_bytes(load_checkpoint(path).model)
    # panels of 16 outputs are filled up
    assert 0.9 * held < weight_bytes(path) <= held
    monkeypatch.setattr(tensor_source, "native", lambda: None)
    floats = weight_bytes(path)
    assert floats == pytest.approx(4 * cost_of(describe(path).config).parameters, rel=0.01)
    assert weight_bytes(path, torch.bfloat16) == floats / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_half_precision_becomes_float32(dtype: torch.dtype, file: str, tmp_path: Path) -> None:
    """Files that are not read, such as a second format of the same weights, are not counted."""
    folder = tmp_path / "hf"
    save_hf(tiny("decoder", seed=1, **LLAMA), folder, "llama")
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    halves = {name: tensor.to(dtype) for name, tensor in state.items()}
    # a first tensor in float32 says nothing about the others
    halves = {"model.norm.weight": state["model.norm.weight"], **halves}
    (save_file if file.endswith("safetensors") else torch.save)(halves, folder / file)
    (folder / "consolidated.bin").write_bytes(b"other weights")
    assert weight_bytes(folder) == held_bytes(load_checkpoint(folder).model)
    assert weight_bytes(folder, torch.bfloat16) == weight_bytes(folder) / 2
    assert weight_bytes(tmp_path / "nothing") == weight_bytes(tmp_path) == 0


def test_the_weights_of_a_checkpoint_of_a_run_are_counted() -> None:
    run = Path(__file__).parents[1] / "data" / "format_1" / "run"
    assert weight_bytes(run) == held_bytes(load_checkpoint(run).model)


def test_a_file_that_cannot_be_read_is_left_to_the_loader(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    check_weights(tmp_path / "broken.gguf", EngineConfig())
    with pytest.raises(DataError, match="the version needs 4 bytes"):
        load_checkpoint(tmp_path / "broken.gguf")


def test_settings_name_the_number_or_auto() -> None:
    assert EngineConfig(cache_gib="auto").cache_gib == "auto"
    for wrong in (-0.5, -1.0, float("nan"), "some"):
        with pytest.raises(ConfigError, match="cache_gib is .*"):
            EngineConfig(cache_gib=wrong)


@pytest.mark.parametrize("wrong", ["inf", "nan", "some", "-1", "99999"])
def test_a_command_refuses_other_sizes(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "nothing", "a", f"--cache={wrong}"]) == 2
    assert f"--cache is '{wrong}': it must be a number of GiB from 0" in capsys.readouterr().err


def test_a_real_limit_gives_a_message_instead_of_a_crash(tmp_path: Path) -> None:
    """ulimit -v for a child process, whose cache would be larger."""
    folder = tiny_folder(tmp_path / "model", "decoder")
    code = (
        "import resource, sys, torch; from weft.core.memory import read_fields, PROC\n"
        "import weft.cli.generate, weft.engine.loaded_model; from weft.cli.app import main\n"
        "limit = read_fields(PROC / 'self' / 'status')['VmSize'] + (900 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "generate", str(folder), "the"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "are left of the address space limit (ulimit -v)" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("left", [0.5, 0.8])
def test_a_real_limit_never_ends_the_process(left: float, tmp_path: Path) -> None:
    """With --cache auto the library of the tokenizers could not allocate 3 bytes, and aborted."""
    folder = tiny_folder(tmp_path / "model", "decoder", max_len=2_000_000)
    code = (
        "import resource, sys, torch; from weft.core.memory import read_fields, PROC\n"
        "import weft.cli.generate, weft.engine.loaded_model; from weft.cli.app import main\n"
        f"limit = read_fields(PROC / 'self' / 'status')['VmSize'] + int({left} * (1 << 30))\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, "generate", str(folder), "the", "--cache", "auto"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 2), done.stderr
    if done.returncode == 2:
        assert "are left of the address space limit (ulimit -v)" in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_a_cache_that_is_a_limit_is_not_exceeded_for_the_longest_sequence(kind: str) -> None:
    """Without the limit a sequence of the maximum length always has room."""
    checkpoint, cache_gib = tiny(kind, max_len=400), 100_000 / GIB
    settings = EngineConfig(cache_gib=cache_gib, page_size=4)
    free = Engine(checkpoint.model, checkpoint.tokenizer, settings)
    assert free.runner.need_store().num_bytes > 100_000
    limited = settings.model_copy(update={"is_cache_limit": True})
    engine = Engine(checkpoint.model, checkpoint.tokenizer, limited)
    assert 90_000 < engine.runner.need_store().num_bytes <= 100_000
    longest = longest_sequence(engine.scheduler.config, engine.kv_cache)
    assert 0 < longest < 400
    assert longest_sequence(free.scheduler.config, free.kv_cache) == 400

    def prepare(length: int) -> None:
        source = (5,) * length if kind == "encoder-decoder" else None
        engine.prepare(GenerationRequest((2,), length - 1, source))

    prepare(longest)
    with pytest.raises(UsageError, match="pages of 4 tokens but the KV cache has"):
        prepare(longest + 1)


@pytest.mark.parametrize(
    ("kind", "num_pages", "longest"), [("decoder", 5, 20), ("encoder-decoder", 6, 12)]
)
def test_num_pages_sets_the_pages_and_lowers_the_maximum_length(
    kind: str, num_pages: int, longest: int
) -> None:
    checkpoint = tiny(kind)
    config = EngineConfig(num_pages=num_pages, page_size=4, prefix_cache="radix")
    engine = Engine(checkpoint.model, checkpoint.tokenizer, config)
    source = None if kind == "decoder" else tuple(range(5, 5 + longest))
    assert engine.kv_cache.pool.num_usable == num_pages
    assert engine.scheduler.config.max_len == engine.scheduler.config.max_source_len == longest
    engine.submit(GenerationRequest((5, 6), longest - 2, source))
    while not engine.is_idle:
        assert all(output.error is None for output in engine.step())
    message = rf"max_len is {longest} \(num_pages: the KV cache has {num_pages} pages of 4 tokens\)"
    with pytest.raises(UsageError, match=message):
        engine.submit(GenerationRequest((5, 6), longest - 1, source))


def test_more_pages_than_the_model_can_use_leave_its_maximum_length() -> None:
    assert engine_of(num_pages=99, page_size=4).scheduler.config.max_len == 40


def test_too_few_pages_are_refused_with_the_number_needed() -> None:
    checkpoint = tiny("encoder-decoder")
    with pytest.raises(UsageError, match="num_pages is 1, but a sequence .* needs 2 pages"):
        Engine(checkpoint.model, checkpoint.tokenizer, EngineConfig(num_pages=1))
    with pytest.raises(ConfigError, match="num_pages"):
        EngineConfig(num_pages=0)


def test_pages_without_memory_are_refused(half_a_gib: MemoryLimit) -> None:
    with pytest.raises(
        UsageError, match=r"num_pages is 100,000, which needs .* but only 0\.50 GiB"
    ):
        engine_of(num_pages=100_000)
