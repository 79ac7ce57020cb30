"""20,000 random steps of the scheduler: requests come, are cancelled, preempted and abandoned, with
every prefix cache and every kind of layer. After each step the invariants are counted from scratch;
every chunk reads exactly its own rows; every request ends with what it gives alone."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.engine.scheduling.world import (
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
from weft.engine.scheduling.plan import Plan
from weft.engine.scheduling.sequence import Request, Sequence

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

    def __init__(
        self, prefix: str, layout: str, forced: dict[str, int], seed: int | None = None
    ) -> None:
        name = f"{prefix} {layout} {forced}" + ("" if seed is None else f" {seed}")
        self.rng, self.layout = random.Random(name), LAYOUTS[layout]
        pages = {"full": 28, "windows": 62, "cross": 32, "only windows": 22}[layout]
        self.time = 0.0
        settings = {"patience": 5, "order_window": 6, **forced}
        if not self.layout.cross_groups:
            settings |= {"num_layers": 6, "prefill_share": 0.4, "min_prefill_seconds": 0.004}
        self.world = World(prefix, self.layout, pages, now=lambda: self.time, **settings)
        lengths = [self.rng.choice([8, 16, 27]) for _ in range(4)]
        self.keys = ("",) if prefix == "hash" else ("", "a", "a", "b")
        """API keys; one of them sends half of the requests."""
        self.families = [self.rng.choices(range(5), k=length) for length in lengths]
        self.drafts = drafting(self.rng)
        self.cancelled: set[str] = set()
        self.overtaken: dict[str, int] = {}
        """Requests without their first turn, in the order they came: how many that came later had
        theirs."""
        self.most_overtaken = 0
        self.width = 0
        """Above 0: only searches of so many beams arrive."""
        self.passes = 1
        """Of the last plan."""

    @property
    def source(self) -> tuple[int, ...] | None:
        return (1, 2, 3) if self.layout.cross_groups else None

    def arrive(self, number: int) -> None:
        if len(self.world.state.groups) >= 14 or self.rng.random() > 0.7:
            return
        request = random_request(self.rng, number, self.layout, self.families, self.keys)
        if self.width:
            source, prompt = request.source or self.source, request.prompt[:1]
            limit = self.rng.choice([1, 2, 18, 18, 18])
            salt, key = request.salt, request.key
            request = Request(request.id, prompt, limit, source, salt, beam=self.width, key=key)
        try:
            self.world.add(request)
            self.overtaken[request.id] = 0
        except UsageError:
            assert request.id not in self.world.state.groups

    def step(self, number: int) -> None:
        plan = self.world.scheduler.schedule(self.drafts if self.rng.random() < 0.7 else None)
        self.passes = plan.num_steps
        self.time += self.rng.uniform(0.5, 2) * (0.004 + 0.002 * plan.total_tokens)
        if self.rng.random() < 0.06 and self.world.state.groups:
            self.cancelled.add(self.rng.choice(list(self.world.state.groups)))
            for name in self.cancelled:
                self.world.scheduler.cancel(name)
        chance = self.rng.random()
        if chance < 0.02:
            self.world.scheduler.rollback(plan)
        elif chance < 0.03:
            self.world.scheduler.recover()
        else:
            self.world.run_and_commit(plan)
        self.world.check()
        assert not self.cancelled & set(self.world.state.groups), "cancelled ones go within a step"
        self.check_first_tokens(plan)
        self.check_turns(plan)

    def check_first_tokens(self, plan: Plan) -> None:
        """However much is cached, something is computed: of a prompt at its first turn, and of any
        sequence besides its drafts."""
        for chunk in plan.chunks:
            assert len(chunk.tokens) > chunk.num_drafts
            if chunk.request.id in self.overtaken:
                assert chunk.start < len(chunk.request.prompt), "a prompt token is computed"

    def check_turns(self, plan: Plan) -> None:
        """Nobody is overtaken by requests of the same key more often than the settings say, counted
        from the plans alone."""
        for name in self.cancelled & set(self.overtaken):
            del self.overtaken[name]
        order = list(self.overtaken)
        admitted = set(plan.request_ids) & set(order)
        for name in admitted:
            del self.overtaken[name]
        for name in self.overtaken:
            place = order.index(name)
            key = self.world.requests[name].key
            self.overtaken[name] += sum(
                order.index(other) > place and self.world.requests[other].key == key
                for other in admitted
            )
        self.most_overtaken = max(self.most_overtaken, *self.overtaken.values(), 0)
        assert self.most_overtaken <= self.world.config.patience


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
    print(f"overtaken {fuzz.most_overtaken} times at most, {statistics}")
    assert statistics.admitted > 200 and (statistics.preempted or layout == "only windows")
    assert prefix == "none" or (statistics.cached_tokens > 0 and fuzz.most_overtaken > 0)
    assert layout != "cross" or statistics.cached_source_tokens > 0
    assert layout == "cross" or fuzz.world.num_layered > 50, "prefills are divided by layers"
    assert {request.beam > 1 for request in fuzz.world.requests.values()} == {True, False}


@pytest.mark.parametrize("forced", FORCED, ids=["free", "forced"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("width", "prefix"), [(1, "radix"), (3, "radix"), (3, "hash")])
def test_invariants_hold_where_a_plan_has_several_passes(width, prefix, layout, forced):
    """Searches of one width, and now and then a time of everything."""
    fuzz, num_passes = Fuzz(prefix, layout, {"num_steps": 5, **forced}), Counter[int]()
    for number in range(STEPS):
        fuzz.width = width if number % 200 < 150 else 0
        fuzz.arrive(number)
        fuzz.step(number)
        num_passes[fuzz.passes] += 1
    fuzz.world.run_all()
    fuzz.world.check_results(fuzz.cancelled)
    fuzz.world.check_empty()
    assert num_passes[1] > 100 and num_passes[5] > 50, num_passes
