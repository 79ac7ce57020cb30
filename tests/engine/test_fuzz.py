"""20,000 random steps of the scheduler: requests come, are cancelled, preempted and abandoned, with
every prefix cache and every kind of layer. After each step the invariants are counted from scratch;
every chunk reads exactly its own rows; every request ends with what it gives alone."""

from __future__ import annotations

import random

import pytest

from tests.engine.world import (
    CROSS,
    END,
    FULL,
    ONLY_WINDOWS,
    WINDOWS,
    World,
    base,
    next_token,
    random_request,
)
from weft.core.errors import UsageError
from weft.engine.schedule.plan import Plan
from weft.engine.schedule.request import Request, Sequence

LAYOUTS = {"full": FULL, "windows": WINDOWS, "cross": CROSS, "only windows": ONLY_WINDOWS}
FORCED = [{}, {"preempt_every": 9, "miss_every": 3}]
STEPS = 840
"""times 3 prefix caches, 4 layouts and 2 sets of switches: 20,160."""


def drafting(rng: random.Random):
    """Drafts that are right for a while."""

    def drafts(request: Request, sequence: Sequence) -> list[int]:
        chain, guesses = base(request), []
        for token in sequence.tokens:
            chain = hash((chain, token))
        for _ in range(rng.randint(0, 4)):
            token = next_token(chain, sequence.index) if rng.random() < 0.8 else rng.randrange(5)
            if token == END:
                break
            guesses.append(token)
            chain = hash((chain, token))
        return guesses

    return drafts


class Fuzz:
    """Random arrivals and disturbances of one world."""

    def __init__(self, prefix: str, layout: str, forced: dict[str, int]) -> None:
        self.rng, self.layout = random.Random(f"{prefix} {layout} {forced}"), LAYOUTS[layout]
        pages = {"full": 28, "windows": 62, "cross": 32, "only windows": 22}[layout]
        self.world = World(prefix, self.layout, pages, patience=5, order_window=6, **forced)
        lengths = [self.rng.choice([8, 16, 27]) for _ in range(4)]
        self.families = [self.rng.choices(range(5), k=length) for length in lengths]
        self.drafts = drafting(self.rng)
        self.cancelled: set[str] = set()
        self.arrived: dict[str, tuple[int, int]] = {}
        """Requests without their first turn: the step of their arrival, and how many were there."""
        self.longest_wait = 0

    def arrive(self, number: int) -> None:
        if len(self.world.state.jobs) >= 14 or self.rng.random() > 0.7:
            return
        request = random_request(self.rng, number, self.layout, self.families)
        try:
            self.world.add(request)
            self.arrived[request.id] = number, len(self.world.state.jobs)
        except UsageError:
            assert request.id not in self.world.state.jobs

    def step(self, number: int) -> None:
        plan = self.world.scheduler.plan(self.drafts if self.rng.random() < 0.7 else None)
        if self.rng.random() < 0.06 and self.world.state.jobs:
            self.cancelled.add(self.rng.choice(list(self.world.state.jobs)))
            for name in self.cancelled:
                self.world.scheduler.cancel(name)
        if self.rng.random() < 0.02:
            self.world.scheduler.abandon(plan)
        else:
            self.world.run_and_commit(plan)
        self.world.check()
        assert not self.cancelled & set(self.world.state.jobs), "cancelled ones go within a step"
        self.check_turns(plan, number)

    def check_turns(self, plan: Plan, number: int) -> None:
        """Nobody waits longer than order.py says, or gets away without computing a token."""
        for chunk in plan.chunks:
            if chunk.request.id in self.arrived:
                assert chunk.start < len(chunk.request.prompt), "a prompt token is computed"
                before, num_others = self.arrived.pop(chunk.request.id)
                self.longest_wait = max(self.longest_wait, number - before)
                assert number - before <= self.bound(num_others)

    def bound(self, num_others: int) -> int:
        requests = self.world.requests.values()
        longest = max(r.num_sequences * (len(r.prompt) + r.max_tokens) for r in requests)
        return (num_others + self.world.config.patience) * (longest + 2)


@pytest.mark.parametrize("forced", FORCED, ids=["free", "forced"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("prefix", ["none", "hash", "radix"])
def test_invariants_hold_over_random_steps(prefix, layout, forced):
    fuzz = Fuzz(prefix, layout, forced)
    for number in range(STEPS):
        fuzz.arrive(number)
        fuzz.step(number)
    fuzz.world.run_all()
    fuzz.world.check_results(fuzz.cancelled)
    fuzz.world.check_empty()
    statistics = fuzz.world.scheduler.statistics
    print(f"longest wait {fuzz.longest_wait} steps, {statistics}")
    assert statistics.admitted > 200 and (statistics.preempted or layout == "only windows")
    assert prefix == "none" or statistics.cached_tokens > 0
