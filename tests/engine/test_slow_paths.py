"""A warning names the reason why the native kernels are not used, if the user can change it."""

from __future__ import annotations

import logging

import pytest
import torch

from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.request import GenerationRequest
from weft.native.library import native

from .tiny import tiny

LLAMA = {
    "attention": {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2},
    "position": {"kind": "rotary"},
    "norm": {"kind": "rmsnorm", "placement": "before"},
}


def run(engine: Engine) -> None:
    engine.submit(GenerationRequest((5, 6, 7), 4))
    while not engine.is_idle:
        engine.step()


def slow_paths(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if text.startswith("slow path: ")]


@pytest.mark.skipif(native() is None, reason="there is no library")
def test_a_hook_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny("decoder", **LLAMA).model
    engine = Engine(model, config=EngineConfig(cache_gib=0.01))
    with caplog.at_level(logging.WARNING, "weft"):
        run(engine)
        assert slow_paths(caplog) == []
        handle = model.decoder.norm.register_forward_hook(lambda *_: None)
        run(engine)
        run(engine)
    (message,) = slow_paths(caplog)
    assert "forward hook" in message and "Remove the hook" in message
    handle.remove()


def test_hooks_of_a_model_that_cannot_be_compiled_are_not_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = tiny("decoder", position={"kind": "alibi"}).model
    model.decoder.norm.register_forward_hook(lambda *_: None)
    with caplog.at_level(logging.WARNING, "weft"):
        run(Engine(model, config=EngineConfig(cache_gib=0.01)))
    assert slow_paths(caplog) == []


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_weights_without_native_kernels_are_reported(
    dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = tiny("decoder", **LLAMA).model.to(getattr(torch, dtype))
    with caplog.at_level(logging.WARNING, "weft"):
        run(Engine(model, config=EngineConfig(cache_gib=0.01)))
    expected = [] if dtype == "float32" else ["the weights are float64"]
    assert [text.split(": ")[1].split(",")[0] for text in slow_paths(caplog)] == expected
