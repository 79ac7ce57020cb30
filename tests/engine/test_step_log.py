"""Logging of the engine: one line per step at DEBUG, and a warning for a preemption storm."""

from __future__ import annotations

import logging
import re

import pytest

from weft.engine.config import EngineConfig
from weft.engine.engine import PREEMPTION_WINDOW, Engine
from weft.engine.request import GenerationRequest

from .tiny import tiny


def run(steps: int = 10_000, **config: object) -> int:
    """Run two requests; returns the number of steps."""
    checkpoint = tiny("decoder", max_len=200)
    engine = Engine(checkpoint.model, checkpoint.tokenizer, EngineConfig(**config))
    for prompt in ((5, 9, 30), (6, 9, 31)):
        engine.submit(GenerationRequest(prompt, 120))
    number = 0
    while not engine.is_idle and number < steps:
        engine.step()
        number += 1
    return number


def test_every_step_is_one_line_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "weft.engine.engine")
    number = run(steps=7)
    lines = [one.getMessage() for one in caplog.records if one.name == "weft.engine.engine"]
    assert len(lines) == number == 7
    assert re.fullmatch(r"step=1 tokens=6 encoder_tokens=0 chunks=2 .* free_pages=\d+", lines[0])
    assert "tokens=2 " in lines[1] and "running=2 waiting=0" in lines[1]


def test_a_preemption_storm_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "weft.engine.engine")
    run()
    assert not caplog.records, "an engine with enough pages warns of nothing"
    assert run(preempt_every=2) > PREEMPTION_WINDOW
    warning = caplog.records[0].getMessage()
    assert re.match(r"preemptions=\d+ steps=100 reason='the KV cache is too small", warning)
