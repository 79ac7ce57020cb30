"""Rates of steps, the times of a request, and the load of a scheduler, with a clock of the test."""

from __future__ import annotations

from math import inf

import pytest

from tests.engine.scheduling.test_layered_prefill import chunk_of
from tests.engine.scheduling.world import CROSS, World
from weft.engine.config import SchedulerConfig
from weft.engine.scheduling.latency_budget import LatencyBudget
from weft.engine.scheduling.layered_prefill import LayeredPrefill
from weft.engine.scheduling.plan import Appended
from weft.engine.scheduling.sequence import Request
from weft.engine.scheduling.step_times import (
    DRAIN_STEPS,
    UNLIMITED,
    ChunkCost,
    MovingAverage,
    Rate,
    StepTimes,
)


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


def step_of(world: World, clock: FakeClock, seconds: float) -> float:
    """A step of 0.02 s, and so many seconds for each token after the first; no token is the end."""
    plan = world.scheduler.schedule()
    duration = 0.02 + seconds * (plan.num_tokens - 1)
    clock.time += duration
    appended = {chunk.sequence_id: Appended([7]) for chunk in plan.chunks if chunk.num_samples}
    world.scheduler.commit(plan, appended)
    return duration


def measured(world: World, clock: FakeClock, seconds: float) -> StepTimes:
    """Steps of a stream and of two prompts."""
    world.add(Request("stream", (1, 2, 3), 400, is_streamed=True))
    for number in range(60):
        if number in (10, 20):
            world.add(Request(f"prompt{number}", tuple(range(number, number + 200)), 1))
        step_of(world, clock, seconds)
    return world.state.step_times


def stream_world(clock: FakeClock, **settings: float) -> World:
    defaults = {"token_budget": 128, "max_len": 512, "num_pages": 400}
    return World("none", now=clock, **(defaults | settings))


def test_prompt_tokens_are_predicted_from_earlier_chunks():
    clock = FakeClock()
    times = measured(stream_world(clock), clock, 0.005)
    assert times.decode_seconds(1) == pytest.approx(0.02)
    assert times.prefill_tokens(0.1, 0) == pytest.approx(20, rel=0.1)
    assert StepTimes().prefill_tokens(0.1, 0) == UNLIMITED
    assert StepTimes().encoder_tokens(0.1) == UNLIMITED


def test_the_cost_of_a_token_grows_with_its_context():
    cost = ChunkCost()
    for number in range(40):
        context = 100 * (number % 20)
        cost.add(context, 0.001 * (1 + context / 1000), number)
    assert cost.line.half_context == pytest.approx(1000, rel=0.05)
    assert cost.at(3000) == pytest.approx(0.004, rel=0.1)


def test_a_size_that_was_slow_once_is_tried_again():
    times = StepTimes(num_prefills=2)
    times.chunks[6] = slow = ChunkCost()
    slow.add(0, 1.0, 1)
    assert times.prefill_tokens(0.5, 0) == 1
    times.chunks[2] = ChunkCost()
    times.chunks[2].add(0, 0.01, 2)
    assert times.prefill_tokens(0.5, 0) == 50


def test_a_size_that_was_not_used_for_long_costs_no_less_than_larger_ones():
    times = StepTimes()
    small, large = ChunkCost(), ChunkCost()
    small.add(0, 0.001, 1)
    large.add(3000, 0.004, 2)
    times.chunks, times.num_prefills = {5: small, 7: large}, 2
    assert times.token_seconds(5, 3000) == pytest.approx(0.004)
    small.add(3000, 0.002, 3)  # measured again
    assert times.token_seconds(5, 3000) == small.at(3000)


@pytest.mark.parametrize("share", [1.25, 3.0])
def test_prefills_leave_a_stream_its_share_of_a_step(share):
    clock = FakeClock()
    world = stream_world(clock, prefill_share=share)
    measured(world, clock, 0.005)
    world.add(Request("long", tuple(range(300)), 1))
    longest = 0.0
    while "long" in world.state.groups:
        longest = max(longest, step_of(world, clock, 0.005))
    assert 0.7 * share <= (longest - 0.02) / 0.02 <= 1.1 * share + 0.1


@pytest.mark.parametrize("cost", [0.0003, 0.0005, 0.0008, 0.0012])
def test_chunks_are_so_large_that_steps_compute_whole_layers(cost):
    times, config = StepTimes(), SchedulerConfig(num_layers=30)
    times.add_decode(1, 1, 0.008)
    times.layered.add(0, cost, inf)
    budget = LatencyBudget(config, times, 1, has_stream=True)
    num_tokens = budget.num_tokens(0)
    assert 160 <= num_tokens <= 400
    chunk = chunk_of("long", 0, num_tokens)
    layered, ends = LayeredPrefill({"long": [chunk]}, 30), list[int]()
    while not ends or ends[-1] < 30 * num_tokens:
        part = layered.next_range(*budget.num_layered_tokens([chunk]))
        layered.position = part.end
        ends.append(part.end)
    assert all(end % num_tokens == 0 for end in ends)
    assert len(ends) <= 30 and cost * num_tokens / len(ends) <= budget.seconds


def test_without_a_stream_a_plan_takes_at_most_its_maximum():
    clock = FakeClock()
    world = stream_world(clock, max_plan_seconds=0.5)
    for number in range(6):
        world.add(Request(f"r{number}", tuple(range(number, number + 200)), 3))
    seconds = []
    while not world.scheduler.is_idle:
        seconds.append(step_of(world, clock, 0.01))
    assert seconds[0] > 1 and max(seconds[1:]) <= 0.55
    assert sorted(seconds)[len(seconds) // 2] > 0.35


def test_a_stream_limits_the_steps_of_a_multi_step_plan():
    clock = FakeClock()
    world = World(now=clock, num_steps=8, num_pages=100)
    world.add(Request("beam", (1, 2, 3), 60, beam=2))
    counts = []
    while not world.scheduler.is_idle:
        plan = world.scheduler.schedule()
        counts.append(plan.num_steps)
        clock.time += 0.05 * plan.num_steps
        world.run_and_commit(plan)
    assert max(counts) == 8
    budget = LatencyBudget(world.config, world.state.step_times, 2, has_stream=True)
    assert budget.num_steps(8) == 3
    slow = world.config.model_copy(update={"max_plan_seconds": 0.22})
    assert LatencyBudget(slow, world.state.step_times, 2).num_steps(8) == 4


def test_sources_are_limited_by_the_time_of_the_encoder():
    clock = FakeClock()
    world = World(now=clock, layout=CROSS, encoder_budget=64, max_plan_seconds=0.1, num_pages=200)
    for number in range(12):
        world.add(Request(f"r{number}", (1,), 1, source=tuple(range(number, number + 10))))
    counts = []
    while not world.scheduler.is_idle:
        plan = world.scheduler.schedule()
        clock.time += 0.005 * (plan.num_encoder_tokens + plan.num_tokens)
        counts.append(len(plan.sources))
        world.run_and_commit(plan)
    assert counts[0] == 6 and max(counts[1:]) <= 2


def test_times_that_were_recorded_in_part_are_usable(monkeypatch):
    """Ctrl-C may arrive between any two lines of a step, these included."""
    world = World(now=FakeClock())
    world.add(Request("a", tuple(range(12)), 3))
    plan, times = world.scheduler.schedule(), StepTimes()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ChunkCost, "add", interrupt)
        times.add(plan, 0.12)
    assert times.prefill_tokens(0.1, 0) == UNLIMITED and times.prefill_seconds(8, 0) == 0.0
    times.add(plan, 0.12)
    assert times.prefill_seconds(12, 5.5) == pytest.approx(0.12)


def test_plans_are_short_while_another_engine_waits_for_its_turn():
    times = StepTimes()
    times.decode_steps[2] = MovingAverage(0.02, 3)
    times.chunks[6] = ChunkCost(MovingAverage(0.001, 3))
    config = SchedulerConfig()
    alone = LatencyBudget(config, times, 2)
    shared = LatencyBudget(config, times, 2, is_shared=True)
    assert alone.num_tokens(0) == 1480 and shared.num_tokens(0) == 100
    assert shared.num_steps(64) == 1 + 5 and alone.num_steps(64) == 64
    stream = LatencyBudget(config, times, 2, has_stream=True)
    both = LatencyBudget(config, times, 2, has_stream=True, is_shared=True)
    assert both.seconds == stream.seconds == pytest.approx(0.04)
    times.decode_steps[2] = MovingAverage(0.3, 3)  # decodes that take longer leave time for prompts
    assert LatencyBudget(config, times, 2, is_shared=True).seconds == pytest.approx(0.6)


def test_the_rate_of_a_queue_is_by_the_clock_and_measured_while_requests_wait():
    clock = FakeClock()
    world = World("none", now=clock, max_running=1, token_budget=12)
    assert (world.scheduler.load().drain_rate, world.scheduler.load().admission_rate) == (0, 0)
    for number in range(6):
        world.add(Request(f"r{number}", tuple(range(number, number + 12)), 1))
    for _ in range(DRAIN_STEPS):
        assert world.scheduler.load().drain_rate == 0.0, "a few steps may be slow"
        timed_step(world, clock, 0.1)
        clock.time += 0.02  # between two steps
    timed_step(world, clock, 0.1)
    load = world.scheduler.load()
    assert load.drain_rate == pytest.approx(12 / 0.12)
    assert load.admission_rate == pytest.approx(1 / 0.12)
    timed_step(world, clock, 0.14)  # the last request: nothing waits after it
    clock.time += 1000.0
    world.add(Request("later", (1, 2, 3), 1))
    timed_step(world, clock, 50.0)
    assert world.scheduler.load().drain_rate == pytest.approx(4 * 12 / (3 * 0.12 + 0.14), rel=0.01)


def test_requests_that_the_next_step_admits_have_waited():
    """A server adds requests between two steps; the rate of a busy one was not measured, or only
    in steps that had no room for all of them, and was too high by half."""
    clock = FakeClock()
    world = World("none", now=clock, max_running=8, num_pages=200)
    for number in range(40):
        if world.scheduler.is_idle:
            world.add(Request(f"long{number}", (1, 2, 3), 60))
            timed_step(world, clock, 0.02)
        world.add(Request(f"r{number}", tuple(range(10)), 1))
        timed_step(world, clock, 0.2)
        assert not world.state.waiting
        timed_step(world, clock, 0.02)  # nobody waits
    assert world.scheduler.load().drain_rate == pytest.approx(10 / 0.2)


def test_a_queue_that_does_not_move_has_a_low_rate_and_not_none():
    clock = FakeClock()
    world = World("none", now=clock, max_running=1)
    world.add(Request("long", (1, 2, 3), 60))
    timed_step(world, clock, 0.1)
    world.add(Request("waits", (4, 5, 6), 1))
    for _ in range(11):
        plan = world.scheduler.schedule()
        clock.time += 1.0
        appended = {chunk.sequence_id: Appended([7]) for chunk in plan.chunks}
        world.scheduler.commit(plan, appended)
    assert 0.05 < world.scheduler.load().drain_rate < 0.2


def test_prefixes_that_were_cached_count_as_computed():
    clock = FakeClock()
    world = World(now=clock, max_running=1, num_pages=200)
    for number in range(8):
        world.add(Request(f"r{number}", (*range(12), 20 + number, 30 + number), 1))
    while len(world.state.waiting) > 1:
        timed_step(world, clock, 0.5)
    assert world.scheduler.statistics.cached_tokens > 0
    assert world.scheduler.load().drain_rate == pytest.approx(14 / 0.5, rel=0.01)


def test_a_step_that_takes_long_once_does_not_set_the_rate_of_a_queue():
    clock = FakeClock()
    world = World("none", now=clock, max_running=1, token_budget=12)
    for number in range(12):
        world.add(Request(f"r{number}", tuple(range(number, number + 12)), 1))
    for number in range(10):
        timed_step(world, clock, 30.0 if number in (0, 1, 3) else 0.1)
    assert 60 < world.scheduler.load().drain_rate < 120
