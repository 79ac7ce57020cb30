"""Everything that the bits of cached rows depend on is part of the key of a cache file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from weft.engine import arithmetic
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.nn.packed_modules import packed_modules

from .tiny import tiny

Change = Callable[[pytest.MonkeyPatch], None]


def key_of(model: dict[str, Any] | None = None, **config: Any) -> dict[str, str]:
    checkpoint = tiny("decoder", **(model or {}))
    engine = Engine(checkpoint.model, None, EngineConfig(cache_gib=1e-3, **config))
    return engine.cache_key


def other_library(monkeypatch: pytest.MonkeyPatch) -> None:
    path = arithmetic.library_path()
    monkeypatch.setattr(arithmetic, "library_path", lambda: path.with_name("weft-x86-64-v3-1.so"))


def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "native", lambda: None)


def other_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "__version__", "0.0.1")


def other_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "hash_of_sources", lambda: "another")


def other_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "1.0.0")


def other_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")


def other_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")


def other_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")


def other_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "processor", lambda: "model name: another")


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("kernels", other_library),
        ("kernels", no_library),
        ("version", other_version),
        ("version", other_sources),
        ("torch", other_torch),
        ("torch", other_instructions),
        ("torch", other_variable),
        ("torch", other_precision),
        ("processor", other_processor),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_another_environment_has_another_key(
    part: str, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    if arithmetic.native() is None and part == "kernels":
        pytest.skip("needs the compiled kernels")
    before = key_of()
    change(monkeypatch)
    after = key_of()
    assert {name for name in before if before[name] != after[name]} == {part}


@pytest.mark.parametrize(
    ("part", "model", "config"),
    [
        ("weights", {"seed": 4}, {}),
        ("weights", {"max_len": 41}, {}),
        ("weights", {"position": {"kind": "rotary", "base": 500.0}}, {}),
        ("weights", {"norm": {"eps": 1e-6}}, {}),
        ("page_size", {}, {"page_size": 8}),
    ],
)
def test_another_model_or_page_size_has_another_key(
    part: str, model: dict[str, Any], config: dict[str, Any]
) -> None:
    before, after = (
        key_of({"position": {"kind": "rotary"}}),
        key_of({"position": {"kind": "rotary"}, **model}, **config),
    )
    assert {name for name in before if before[name] != after[name]} == {part}


def test_another_dtype_has_another_key() -> None:
    checkpoint = tiny("decoder")
    before = key_of()
    after = Engine(checkpoint.model.double(), None, EngineConfig(cache_gib=1e-3)).cache_key
    assert before["dtype"] != after["dtype"]


def test_each_matrix_with_int8_activations_changes_the_key() -> None:
    checkpoint = tiny("decoder")
    engine = Engine(checkpoint.model, None, EngineConfig(cache_gib=1e-3))
    assert engine.cache_key["activations"] == "float32"
    layers = list(packed_modules(checkpoint.model))
    values = set()
    for layer in layers:
        for name, matrix in layer.matrices.items():
            changed = replace(matrix, int8_activations=True)
            layer.matrices = {**layer.matrices, name: changed}
            values.add(arithmetic.int8_activations(checkpoint.model))
            layer.matrices = {**layer.matrices, name: matrix}
    assert len(values) == sum(len(layer.matrices) for layer in layers)
    assert all(value.startswith("int8 in 1 matrices") for value in values)


def test_the_number_of_threads_is_not_part_of_the_key() -> None:
    before, threads = key_of(), torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert key_of() == before
    finally:
        torch.set_num_threads(threads)


def test_the_sources_of_the_packages_that_compute_are_hashed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    hashes = set()
    monkeypatch.setattr(arithmetic, "SOURCES", tmp_path)
    for package in arithmetic.COMPUTING_PACKAGES:
        (tmp_path / package / "inner").mkdir(parents=True)
        for path in (tmp_path / package / "a.py", tmp_path / package / "inner" / "b.py"):
            path.write_text("x = 1")
            hashes.add(arithmetic.hash_of_sources.__wrapped__())
    (tmp_path / "nn" / "a.py").write_text("x = 2")
    hashes.add(arithmetic.hash_of_sources.__wrapped__())
    assert len(hashes) == 2 * len(arithmetic.COMPUTING_PACKAGES) + 1


def test_a_key_has_short_values_that_a_message_can_print() -> None:
    key = key_of()
    assert set(key) > {"version", "torch", "kernels", "processor", "activations"}
    assert all(len(value) <= 60 for name, value in key.items() if name not in ("weights", "layout"))
