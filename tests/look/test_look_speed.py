"""How long looking takes with a real model: SmolLM2, 20 tokens."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

import weft
from weft.checkpoint.hub import pull

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(900)]

TEXT = "The quick brown fox jumps over the lazy dog, and then the small grey cat sleeps in the sun."
COMMAND_SECONDS, LOOK_SECONDS = 5.0, 1.0


def test_the_command_takes_less_than_five_seconds() -> None:
    pull("smollm2", print)
    command = [sys.executable, "-m", "weft", "look", "smollm2", TEXT]
    subprocess.run(command, check=True, capture_output=True)  # files are in memory then
    began = time.monotonic()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds = time.monotonic() - began
    print(f"weft look, SmolLM2, 20 tokens: {seconds:.2f} s")
    assert "text -> 2" in done.stdout and "tokens" in done.stdout
    assert seconds < COMMAND_SECONDS


def test_the_second_look_takes_less_than_a_second() -> None:
    pull("smollm2", print)
    model = weft.load("smollm2")
    times = []
    for _ in range(4):
        began = time.monotonic()
        trace = model.look(TEXT)
        times.append(time.monotonic() - began)
    print(f"m.look(), SmolLM2, {len(trace.tokens['src'])} tokens: {times}")
    assert 18 <= len(trace.tokens["src"]) <= 24
    assert min(times[1:]) < LOOK_SECONDS
