"""Equal shares of wall time, with step times that tests choose. No clock runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest

from weft.engine.turns import TimeShare, Turns

StepTime = Callable[[], float]


class Simulation:
    """Engines with given step times; `used` is what each has really used."""

    def __init__(self, steps: Sequence[StepTime]) -> None:
        self.turns, self.steps = Turns(), steps
        self.shares = [TimeShare() for _ in steps]
        self.used = [0.0] * len(steps)

    def run(self, *active: int) -> int:
        """One turn of the active engines; the number of the engine that got it."""
        share = self.turns.choose([self.shares[number] for number in active])
        number = self.shares.index(share)
        seconds = self.steps[number]()
        self.turns.charge(share, seconds)
        self.used[number] += seconds
        return number

    def run_for(self, seconds: float, *active: int) -> None:
        end = sum(self.used) + seconds
        while sum(self.used) < end:
            self.run(*active)


def always(seconds: float) -> StepTime:
    return lambda: seconds


@pytest.mark.parametrize("seed", range(20))
def test_engines_with_work_are_never_further_apart_than_one_step(seed):
    rng = random.Random(seed)
    longest = [10 ** rng.uniform(-4, 0) for _ in range(rng.randrange(2, 6))]
    one = Simulation([lambda limit=limit: rng.uniform(limit / 100, limit) for limit in longest])
    active = range(len(longest))
    for _ in range(3000):
        one.run(*active)
        for a in active:
            for b in active:
                assert one.used[a] - one.used[b] <= longest[a] + 1e-9


def test_an_engine_that_used_more_waits_until_the_others_have_caught_up():
    one = Simulation([iter([2.0, 0.5, 0.5]).__next__, always(0.5)])
    assert [one.run(0, 1) for _ in range(7)] == [0, 1, 1, 1, 1, 0, 1]


def test_time_without_work_is_no_credit():
    one = Simulation([always(0.01), always(0.01)])
    one.run_for(1.0, 0)
    assert one.used[1] == 0
    before = one.used[0]
    one.run_for(1.0, 0, 1)
    assert one.used[1] == pytest.approx(0.5, abs=0.011)
    assert one.used[0] - before == pytest.approx(0.5, abs=0.011)


def test_an_engine_that_ran_alone_before_does_not_pay_for_it():
    """Neither beside the one that came later, nor after a time in which nobody had work."""
    one = Simulation([always(0.01)] * 3)
    one.run_for(100.0, 0)
    one.run_for(0.5, 1)
    before = list(one.used)
    one.run_for(3.0, 0, 1, 2)
    assert [used - old for used, old in zip(one.used, before, strict=True)] == pytest.approx(
        [1.0] * 3, abs=0.021
    )


def test_work_that_comes_and_goes_gets_no_more_than_half():
    """An engine whose requests follow one another has no work for a moment after each of them."""
    one = Simulation([always(0.03), always(0.01)])
    for turn in range(3000):
        has_pause = turn % 2 == 0
        one.run(1) if has_pause else one.run(0, 1)
    assert 0 < one.used[0] <= one.used[1]


@pytest.mark.parametrize("seconds", [0.0, 1e-6, 5.0])
def test_nobody_waits_longer_than_the_longest_step_of_the_others(seconds):
    one = Simulation([always(seconds), always(0.001), always(0.002)])
    waited = [0.0] * 3
    for _ in range(20_000):
        before = sum(one.used)
        number = one.run(0, 1, 2)
        passed = sum(one.used) - before
        waited = [0.0 if n == number else time + passed for n, time in enumerate(waited)]
        # until each of the two others is past the end of one's own longest step, and one more
        assert max(waited) <= 2 * (max(seconds, 0.002) + max(seconds, 0.002)) + 1e-9
    assert all(share.last_turn > 10_000 for share in one.shares)


def test_steps_that_take_no_time_alternate():
    one = Simulation([always(0.0)] * 3)
    assert [one.run(0, 1, 2) for _ in range(9)] == [0, 1, 2] * 3
