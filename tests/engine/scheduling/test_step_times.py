"""Rates of steps, the times of a request, and the load of a scheduler, with a clock of the test."""

from __future__ import annotations

import pytest

from tests.engine.scheduling.world import CROSS, World
from weft.engine.scheduling.sequence import Request
from weft.engine.scheduling.step_times import Rate


class FakeClock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def timed_step(world: World, clock: FakeClock, seconds: float) -> None:
    plan = world.scheduler.schedule()
    clock.time += seconds
    world.run_and_commit(plan)


def test_a_rate_forgets_old_steps():
    rate = Rate()
    assert rate.per_second == 0.0
    rate.add(100, 1.0)
    assert rate.per_second == 100
    for _ in range(100):
        rate.add(50, 1.0)
    assert rate.per_second == pytest.approx(50, rel=0.01)


def test_prefill_and_decode_rates_are_measured_from_completed_steps():
    clock = FakeClock()
    world = World(now=clock)
    load = world.scheduler.load()
    assert (load.prefill_rate, load.decode_rate, load.tokens_ahead) == (0.0, 0.0, 0)
    world.add(Request("a", tuple(range(12)), 20))
    assert world.scheduler.load().tokens_ahead == 12
    timed_step(world, clock, 0.12)
    assert world.scheduler.load().prefill_rate == pytest.approx(100)
    for _ in range(3):
        timed_step(world, clock, 0.05)
    load = world.scheduler.load()
    assert load.decode_rate == pytest.approx(20) and load.tokens_ahead == 0
    world.add(Request("b", tuple(range(50, 60)), 5))
    timed_step(world, clock, 0.05 + 0.1)
    assert world.scheduler.load().prefill_rate == pytest.approx(100), "without the decode's part"


def test_a_step_that_was_rolled_back_is_not_measured():
    clock = FakeClock()
    world = World(now=clock)
    world.add(Request("a", tuple(range(12)), 3))
    plan = world.scheduler.schedule()
    clock.time += 1000
    world.scheduler.rollback(plan)
    assert world.scheduler.load().prefill_rate == 0.0


def test_times_of_a_request_are_those_of_arrival_and_first_admission():
    clock = FakeClock()
    world = World(now=clock, max_running=1)
    shared = tuple(range(8))
    world.add(Request("a", (*shared, 20), 2))
    world.add(Request("b", (*shared, 21), 2))
    times = world.scheduler.times_of("b")
    assert times is not None and times.arrived_at == 100.0 and times.queue_seconds is None
    while not world.scheduler.is_idle:
        timed_step(world, clock, 1.0)
    assert world.scheduler.times_of("b") is None
    assert times.admitted_at == 100.0 + times.queue_seconds and times.queue_seconds >= 1.0
    assert times.num_cached == 8


def test_a_preemption_does_not_change_the_times():
    clock = FakeClock()
    world = World(now=clock, preempt_every=2)
    world.add(Request("a", tuple(range(12)), 6))
    times = world.scheduler.times_of("a")
    while not world.scheduler.is_idle:
        timed_step(world, clock, 1.0)
    assert world.scheduler.statistics.preempted
    assert (times.admitted_at, times.num_cached) == (100.0, 0)


def test_tokens_ahead_are_all_that_is_not_computed_yet():
    world = World(layout=CROSS, token_budget=8, max_running=2)
    world.add(Request("a", tuple(range(10)), 4, source=(1, 2, 3)))
    world.add(Request("text", tuple(range(5)), 0, is_pooling=True))
    load = world.scheduler.load()
    assert (load.num_waiting, load.num_running, load.tokens_ahead) == (2, 0, 10 + 3 + 5)
    world.step()
    load = world.scheduler.load()
    assert (load.num_waiting, load.num_running, load.tokens_ahead) == (0, 1, 2)
    world.step()
    assert world.scheduler.load().tokens_ahead == 0
