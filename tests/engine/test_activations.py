"""Inputs in 8 bits: near the exact logits, the same bits however served, and said where idle."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import weft
from tests.checkpoint.gguf.test_quantized_model import logits, write
from weft.core.errors import ConfigError, DataError
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.loaded_model import LoadedModel

from .test_engine import SMALL, requests, run
from .tiny import tiny_folder

INT8 = {**SMALL, "activations": "int8"}


@pytest.fixture(params=["llama", "deepseek", "gpt2"])
def path(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return write(tmp_path, monkeypatch, request.param, rest="Q4_1", token_embd="Q8_0")


def load_int8(path: Path) -> LoadedModel:
    return weft.load(path, engine=INT8)


def test_a_request_has_the_same_bits_however_it_is_served(path: Path) -> None:
    def engine(**config: Any) -> Engine:
        loaded = load_int8(path)
        return Engine(loaded.model, None, EngineConfig(**{**INT8, **config}))

    alone = engine(prefix_cache="none")
    generation_requests = requests(alone)
    expected = run(alone, generation_requests, at_once=False)
    exact = run(Engine(weft.load(path).model, None, EngineConfig(**SMALL)), generation_requests)
    assert expected != exact, "this must not have been the exact product"
    for config in ({}, {"preempt_every": 3}, {"token_budget": 5, "max_running": 4}):
        batched = engine(**config)
        assert run(batched, generation_requests) == expected, config
        assert run(batched, generation_requests[::-1])[::-1] == expected, "warm"


def test_logits_are_near_the_exact_ones(path: Path) -> None:
    ids_BT = torch.randint(290, (2, 9))
    rounded, exact = load_int8(path).client.engine.model, weft.load(path).client.engine.model
    with torch.inference_mode():
        result, expected = logits(rounded, ids_BT), logits(exact, ids_BT)
    off = (result - expected).norm() / expected.norm()
    assert 0 < off < 0.05


def test_a_model_in_floats_says_that_it_has_nothing_to_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_folder(tmp_path / "m", "decoder")
    with caplog.at_level(logging.WARNING):
        loaded = load_int8(folder)
    assert "activations=float32 requested=int8" in caplog.text
    text = weft.load(folder, engine=SMALL).generate("the cat", 5, temperature=0)
    assert loaded.generate("the cat", 5, temperature=0) == text


def test_a_cache_of_other_arithmetic_is_refused(path: Path, tmp_path: Path) -> None:
    exact = weft.load(path, engine=SMALL)
    exact.generate("the cat sat on the mat", 5, temperature=0)
    exact.client.engine.save_cache(tmp_path / "kept")
    with pytest.raises(DataError, match="activations float32, but this engine has int8"):
        load_int8(path).client.engine.load_cache(tmp_path / "kept")


def test_other_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="activations"):
        EngineConfig.from_dict({"activations": "int4"})
