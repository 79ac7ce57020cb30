"""Overload on a simulated clock: the real scheduler and the real limits, without a model. Whoever
is refused and waits as long as it was told is accepted then, and the engine always has work."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from statistics import median, quantiles
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.engine.scheduling.world import World
from weft.engine.request import GenerationRequest
from weft.engine.scheduling.plan import Appended
from weft.engine.scheduling.sequence import Request
from weft.serve.api_errors import ApiError
from weft.serve.limits import Limits, Reservation
from weft.serve.retry_queue import GRACE_SECONDS, MAX_TICKETS, RetryQueue, fingerprint_of
from weft.serve.served_model import ServedModel

STEP_SECONDS, DECODE_SECONDS, PROMPT_SECONDS = 0.02, 0.002, 0.001
"""Of a step, and of each token that it decodes or reads."""


@dataclass
class Caller:
    """One client: it repeats its request until it is accepted."""

    prompt: tuple[int, ...]
    max_tokens: int
    came_at: float
    refused_at: float | None = None
    told: list[float] = field(default_factory=list)
    """The seconds of each 429."""
    accepted_at: float | None = None
    room_at: float | None = None
    """When there was room for it, had it returned then."""
    done_at: float | None = None
    reservation: Reservation | None = None

    @property
    def ratio(self) -> float:
        """What it was told first, relative to what was needed; 1 s is the least that is told."""
        ready_at = self.accepted_at if self.room_at is None else self.room_at
        assert ready_at is not None and self.refused_at is not None
        return self.told[0] / max(1.0, ready_at - self.refused_at)


class SimulatedServer:
    """A scheduler whose steps take a time that depends on their tokens, and its clients."""

    def __init__(self, limits: Limits, returns: bool = True, max_running: int = 16) -> None:
        self.time, self.limits, self.returns = 0.0, limits, returns
        limits.now = self.now
        self.world = World(
            "none",
            num_pages=4000,
            listen=False,
            now=self.now,
            token_budget=256,
            max_running=max_running,
            max_len=512,
        )
        scheduler = self.world.scheduler
        engine = SimpleNamespace(engine=SimpleNamespace(scheduler=scheduler), commands=())
        self.served = cast(ServedModel, SimpleNamespace(name="m", engine=engine))
        self.calls: list[tuple[float, int, Caller]] = []
        self.numbers, self.running = count(), dict[str, Caller]()
        self.refused: dict[int, Caller] = {}
        """By fingerprint."""
        self.busy_seconds = 0.0

    def now(self) -> float:
        return self.time

    def call(self, caller: Caller, at: float) -> None:
        heapq.heappush(self.calls, (at, next(self.numbers), caller))

    def answer(self, caller: Caller) -> None:
        """What the server does with a request."""
        request = GenerationRequest(caller.prompt, caller.max_tokens)
        try:
            reservation = self.limits.reserve(self.served, "", [request])
        except ApiError as error:
            assert error.status == 429
            caller.refused_at = self.time if caller.refused_at is None else caller.refused_at
            wait = int(error.headers["retry-after-ms"]) / 1000
            caller.told.append(wait)
            self.refused[fingerprint_of("", [request])] = caller
            if self.returns:
                self.call(caller, self.time + wait)
            return
        caller.accepted_at, caller.reservation = self.time, reservation
        reservation.stream = cast(Any, SimpleNamespace(times={"": None}))
        name = f"r{next(self.numbers)}"
        self.running[name] = caller
        self.world.scheduler.add(Request(name, caller.prompt, caller.max_tokens))

    def step(self) -> None:
        """One step, or a wait for the next request; requests that arrive meanwhile are answered."""
        scheduler = self.world.scheduler
        if scheduler.is_idle:
            end = self.calls[0][0]
        else:
            plan = scheduler.schedule()
            num_prompt = plan.num_prompt_tokens
            seconds = STEP_SECONDS + PROMPT_SECONDS * num_prompt
            end = self.time + seconds + DECODE_SECONDS * (plan.num_tokens - num_prompt)
            self.busy_seconds += end - self.time
        while self.calls and self.calls[0][0] <= end:
            self.time, _, caller = heapq.heappop(self.calls)
            self.answer(caller)
        self.time = end
        if scheduler.in_flight is not None:
            sampled = [chunk.sequence_id for chunk in plan.chunks if chunk.num_samples]
            for name, _ in scheduler.commit(plan, {key: Appended([7]) for key in sampled}):
                self.finish(self.running.pop(name))

        self.note_room()

    def note_room(self) -> None:
        """Note which of the refused would be accepted now, if they returned in their order."""
        queue = self.limits.queue_of(self.served)
        ahead = queue.work(self.served)
        for ticket in queue.keys[""].refused.tickets.values():
            caller = self.refused[ticket.fingerprint]
            if self.limits.excess(ahead, ticket.num_tokens, None) is not None:
                break
            caller.room_at = self.time if caller.room_at is None else caller.room_at
            ahead = ahead.plus(ticket.num_sequences, ticket.num_tokens)

    def finish(self, caller: Caller) -> None:
        caller.done_at = self.time
        assert caller.reservation is not None
        self.limits.release(caller.reservation)

    def run(self, callers: list[Caller]) -> None:
        for caller in callers:
            self.call(caller, caller.came_at)
        while self.calls or not self.world.scheduler.is_idle:
            self.step()


def callers(seed: int, rate: float, seconds: float) -> list[Caller]:
    """Clients that come at random times, so many per second."""
    rng, made, at = random.Random(seed), list[Caller](), 0.0
    while at < seconds:
        prompt = tuple(rng.choices(range(1000), k=rng.randint(16, 256)))
        made.append(Caller(prompt, rng.randint(1, 64), at))
        at += rng.expovariate(rate)
    return made


def capacity() -> float:
    """Requests per second of a server that always has work."""
    server = SimulatedServer(Limits(max_queued=10**6, max_queue_seconds=1e9))
    made = callers(9, 1000.0, 0.3)
    server.run(made)
    return len(made) / server.time


@pytest.fixture(scope="module")
def rate() -> float:
    return capacity()


def overload(rate: float, limits: Any, seed: int, before: float) -> tuple[SimulatedServer, Any]:
    """10 times the rate for 6 seconds, after some seconds with a little more than the rate."""
    server, made = SimulatedServer(Limits(**limits)), callers(seed, 10 * rate, 6.0)
    for one in made:
        one.came_at += before
    made += callers(seed + 100, 1.2 * rate, before) if before else []
    server.run(made)
    assert all(one.done_at is not None for one in made) and not server.limits.reservations
    assert len(made) / server.time >= 0.9 * rate, "goodput"
    return server, [one for one in made if one.told]


def errors_of(refused: list[Caller]) -> tuple[float, float]:
    """Median of the ratios, and the factor by which the worst tenth is wrong."""
    ratios = [one.ratio for one in refused]
    worst = quantiles([max(ratio, 1 / ratio) for ratio in ratios], n=10)[-1]
    print(f"{len(refused)} refused: ratio {median(ratios):.2f}, p90 {worst:.2f}")
    return median(ratios), worst


BOUNDS = [{"max_queue_seconds": 10.0}, {"max_queued": 32}]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("limits", BOUNDS, ids=lambda one: next(iter(one)))
def test_who_waits_as_long_as_told_is_accepted(rate: float, limits: Any, seed: int) -> None:
    _, refused = overload(rate, limits, seed, before=20.0)
    middle, worst = errors_of(refused)
    assert len(refused) > 100 and 1 / 1.5 <= middle <= 1.5 and worst <= 2.5
    assert sum(len(one.told) == 1 for one in refused) >= 0.9 * len(refused)


@pytest.mark.parametrize("limits", BOUNDS, ids=lambda one: next(iter(one)))
def test_a_burst_at_a_server_without_work_is_told_nearly_the_right_time(
    rate: float, limits: Any
) -> None:
    """The rate is overestimated at first, when nothing decodes yet."""
    _, refused = overload(rate, limits, 0, before=0.0)
    middle, worst = errors_of(refused)
    assert len(refused) > 100 and 1 / 1.5 <= middle <= 1.5 and worst <= 3.5


def test_an_engine_has_work_although_nobody_returns(rate: float) -> None:
    server = SimulatedServer(Limits(max_queue_seconds=3.0), returns=False)
    server.run(callers(2, 10 * rate, 15.0))

    assert server.busy_seconds >= 0.97 * server.time
    assert not server.limits.reservations


def test_the_estimate_does_not_depend_on_a_warm_up_of_few_tokens() -> None:
    """8 tokens of a first step, which took long, once stood for the rate of all prompts: 256
    clients were told that they would have to wait for 2,214 s."""
    server = SimulatedServer(Limits(max_queue_seconds=30.0))
    server.world.scheduler.add(Request("warm", tuple(range(8)), 1))
    plan = server.world.scheduler.schedule()
    server.time += 0.5
    server.world.scheduler.commit(plan, {one.sequence_id: Appended([7]) for one in plan.chunks})
    assert server.world.scheduler.load().prefill_rate == pytest.approx(16)
    made = callers(3, 256.0, 1.0)
    for caller in made:
        server.answer(caller)
    assert not any(caller.told for caller in made), "nothing was measured yet"
    for _ in range(20):
        server.step()
    load = server.world.scheduler.load()
    expected, begin = load.tokens_ahead / load.drain_rate, server.time
    while server.world.scheduler.load().tokens_ahead:
        server.step()
    assert expected == pytest.approx(server.time - begin, rel=0.4)


def test_an_impatient_client_keeps_its_place_and_learns_the_rest() -> None:
    queue, now = RetryQueue(), 100.0
    first, second = (queue.issue(number, 1, 10 * number) for number in (1, 2))
    assert first is not None and second is not None
    queue.promise(first, 8.0, now)
    queue.promise(second, 9.0, now)
    assert queue.find(2, now + 5) is second and not second.is_due(now + 5)
    assert queue.ahead_of(second) == (1, 10) and queue.ahead_of(first) == (0, 0)
    assert queue.ahead_of(None) == (2, 30) and second.is_due(now + 9)
    assert queue.find(1, now + 8 + GRACE_SECONDS) is first
    assert queue.find(1, now + 8.1 + GRACE_SECONDS) is None, "it did not return"
    queue.remove(second)
    assert len(queue) == 0 and queue.ahead_of(None) == (0, 0)


def test_the_number_of_tickets_is_bounded() -> None:
    queue = RetryQueue()
    assert all(queue.issue(number, 1, 1) for number in range(MAX_TICKETS))
    assert queue.issue(-1, 1, 1) is None and len(queue) == MAX_TICKETS


def same_and_others() -> Iterator[tuple[str, GenerationRequest]]:
    yield "a", GenerationRequest((1, 2), 4)
    yield "b", GenerationRequest((1, 2), 4)
    yield "a", GenerationRequest((1, 3), 4)
    yield "a", GenerationRequest((1, 2), 5)
    yield "a", GenerationRequest((1, 2), 4, n=2)
    yield "a", GenerationRequest((1, 2), 4, source=(3,))


def test_a_request_is_recognized_by_what_it_asks_for() -> None:
    prints = [fingerprint_of(key, [one]) for key, one in same_and_others()]
    assert len(set(prints)) == len(prints)
    assert prints == [fingerprint_of(key, [one]) for key, one in same_and_others()]


def test_a_key_that_fills_its_queue_does_not_keep_another_one_out() -> None:
    server = SimulatedServer(Limits(max_queued=8))
    served, limits = server.served, server.limits
    request = GenerationRequest((1, 2, 3), 4)
    for _ in range(8):
        limits.reserve(served, "alice", [request])
    for index in range(20):  # each refused one gets a ticket
        with pytest.raises(ApiError, match="the server is busy"):
            limits.reserve(served, "alice", [GenerationRequest((5, index), 4)])
    for _ in range(8):
        limits.reserve(served, "bob", [request])
    with pytest.raises(ApiError, match="8 requests with 24 prompt tokens wait"):
        limits.reserve(served, "bob", [request])
    for index in range(16):
        limits.reserve(served, f"key {index // 8}", [request])
    with pytest.raises(ApiError, match="32 requests with 96 prompt tokens wait"):
        limits.reserve(served, "last", [request])
