"""Learning rates: up, then each in its own way down."""

from __future__ import annotations

import math

import pytest

from weft.training.schedule import SCHEDULES, ScheduleConfig, rate_factor


@pytest.mark.parametrize("kind", SCHEDULES)
def test_every_schedule_climbs_to_one_and_stays_between_zero_and_one(kind: str) -> None:
    config = ScheduleConfig(kind=kind, warmup=10)
    values = [rate_factor(step, 100, config) for step in range(1, 101)]
    assert values[0] == 0.1 and values[9] == 1.0
    assert all(0 <= value <= 1 for value in values)
    assert all(a >= b for a, b in zip(values[9:], values[10:], strict=False))


def test_the_ends_are_where_they_are_promised() -> None:
    assert rate_factor(400, 1000, ScheduleConfig(warmup=100)) == 0.5
    assert rate_factor(100, 100, ScheduleConfig(kind="cosine", warmup=0, floor=0.1)) == (
        pytest.approx(0.1)
    )
    half = rate_factor(50, 100, ScheduleConfig(kind="cosine", warmup=0))
    assert math.isclose(half, 0.5)
    wsd = ScheduleConfig(kind="wsd", warmup=0, decay=0.2)
    assert [rate_factor(step, 100, wsd) for step in (1, 80, 90, 100)] == [1.0, 1.0, 0.5, 0.0]
