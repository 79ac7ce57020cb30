"""Load shedding: a request that would wait too long is answered with 429 and Retry-After.

    reservation = limits.reserve(served, key, requests)     raises an ApiError 429
    limits.release(reservation)             when the engine is done, or the HTTP request has ended

The queue of a model has three bounds: number of requests (n samples count n times), seconds until
its prompts are computed at the measured rate, and tokens. Requests that were accepted but not yet
added to the scheduler, which happens between two steps, count as well. While the queue is within
its bounds, a single request of any size is accepted. Each API key has its own queue with these
bounds, and the scheduler serves keys equally; all keys together may have TOTAL_SHARE times as much.

    Retry-After = MARGIN * (work ahead - bound) / rate      between 1 and 60 seconds

The rate is the measured rate at which the queue became shorter while requests waited, decodes
included. Work ahead includes refused requests that will return earlier (retry_queue.py). Because
the estimate may be too low, a request that returns when it was told to is accepted up to DUE_SHARE
of the bounds. Because refused requests may never return, every request is accepted while less than
FREE_SHARE of the bounds waits, so that the engine does not run out of work.
"""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from weft.engine.output_stream import OutputStream
from weft.engine.request import GenerationRequest
from weft.engine.scheduling.scheduler_state import KeyLoad, SchedulerLoad
from weft.serve.api_errors import ApiError
from weft.serve.retry_queue import RetryQueue, fingerprint_of
from weft.serve.served_model import ServedModel

MIN_RETRY, MAX_RETRY = 1.0, 60.0
DUE_SHARE, FREE_SHARE, TOTAL_SHARE = 1.25, 0.5, 4.0
MARGIN = 1.15
"""Retry-After is the expected wait times this: a client that returns too early is refused again,
and the rate is overestimated while the first requests of a burst do not decode yet."""


@dataclass(eq=False)
class Reservation:
    """The place of one HTTP request in the queue of a model."""

    model: str
    key: str
    num_sequences: int
    num_tokens: int
    """Tokens of prompts and sources."""
    stream: OutputStream | None = None
    """Outputs of its requests; None until they are submitted."""

    @property
    def is_seen(self) -> bool:
        """Whether the scheduler has its requests."""
        return self.stream is not None and bool(self.stream.times)


@dataclass(frozen=True)
class QueuedWork:
    """Waiting requests and tokens, and the rates at which they become fewer."""

    num_waiting: int
    num_tokens: int
    token_rate: float
    request_rate: float
    """Per second; 0.0: not measured yet."""

    @property
    def seconds(self) -> float:
        """Expected seconds until all tokens are computed."""
        return self.num_tokens / self.token_rate if self.token_rate > 0.0 else 0.0

    def plus(self, num_sequences: int, num_tokens: int) -> QueuedWork:
        return replace(
            self,
            num_waiting=self.num_waiting + num_sequences,
            num_tokens=self.num_tokens + num_tokens,
        )


@dataclass
class KeyQueue:
    """Accepted and refused requests of one API key at one model."""

    num_sequences: int = 0
    """Sequences of all reservations."""
    unseen: set[Reservation] = field(default_factory=set)
    """Reservations whose requests the scheduler does not have yet."""
    refused: RetryQueue = field(default_factory=RetryQueue)

    @property
    def num_unseen_tokens(self) -> int:
        self.unseen = {one for one in self.unseen if not one.is_seen}
        return sum(one.num_tokens for one in self.unseen)


@dataclass
class ModelQueue:
    """The queues of one model."""

    keys: defaultdict[str, KeyQueue] = field(default_factory=lambda: defaultdict(KeyQueue))
    """By name of the API key."""
    load: SchedulerLoad | None = None
    load_of: tuple[int, ...] = ()
    """The scheduler state for which `load` was computed."""

    def current_load(self, served: ServedModel) -> SchedulerLoad:
        """The load of the scheduler, cached for a step: under overload, many requests arrive in
        each step."""
        scheduler = served.engine.engine.scheduler
        state = scheduler.state
        step = (scheduler.statistics.steps, state.num_arrived, len(state.groups))
        if self.load is None or step != self.load_of:
            self.load, self.load_of = scheduler.load(), step
        return self.load

    def work(self, served: ServedModel) -> QueuedWork:
        """The waiting work of a model."""
        load, queues = self.current_load(served), list(self.keys.values())
        accepted = sum(one.num_sequences for one in queues)
        accepted -= served.engine.engine.scheduler.state.num_running
        return QueuedWork(
            max(accepted, load.num_waiting + len(served.engine.commands)),
            load.tokens_ahead + sum(one.num_unseen_tokens for one in queues),
            load.drain_rate,
            load.admission_rate,
        )

    def work_of(self, served: ServedModel, key: str) -> QueuedWork:
        """The waiting work of one key at a model, with its equal share of the rates."""
        others = [one for name, one in self.keys.items() if name != key and one.num_sequences > 0]
        if not others:
            return self.work(served)
        load, queue = self.current_load(served), self.keys[key]
        seen, num_keys = load.keys.get(key, KeyLoad()), len(others) + 1
        return QueuedWork(
            max(queue.num_sequences - seen.num_running, seen.num_waiting),
            seen.tokens_ahead + queue.num_unseen_tokens,
            load.drain_rate / num_keys,
            load.admission_rate / num_keys,
        )


@dataclass
class Limits:
    """Bounds of the queue of each API key at each model. Thread-safe."""

    max_queued: int = 1024
    max_queue_seconds: float = 30.0
    max_concurrent: int | None = None
    """Maximum number of sequences of one key at a time, over all models."""
    max_output: int | None = None
    """Upper bound of max_tokens."""
    now: Callable[[], float] = time.monotonic
    reservations: set[Reservation] = field(default_factory=set)
    queues: dict[str, ModelQueue] = field(default_factory=dict)
    """By name of the model."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def capped(self, requests: Sequence[GenerationRequest]) -> list[GenerationRequest]:
        """The requests with at most `max_output` new tokens."""
        limit = self.max_output
        return [
            one if limit is None or one.max_tokens <= limit else replace(one, max_tokens=limit)
            for one in requests
        ]

    def reserve(
        self,
        served: ServedModel,
        key: str,
        requests: Sequence[GenerationRequest],
        max_queued_tokens: int | None = None,
    ) -> Reservation:
        """Reserve a place in the queue; raises an ApiError 429 if there is none."""
        num_sequences = sum(num_sequences_of(one) for one in requests)
        num_tokens = sum(len(one.prompt) + len(one.source or ()) for one in requests)
        reservation = Reservation(served.name, key, num_sequences, num_tokens)
        fingerprint = fingerprint_of(key, requests)
        with self.lock:
            self.check_key(key, num_sequences)
            self.check_queue(served, reservation, fingerprint, max_queued_tokens)
            queue = self.queue_of(served).keys[key]
            queue.num_sequences += num_sequences
            queue.unseen.add(reservation)
            self.reservations.add(reservation)
        return reservation

    def release(self, reservation: Reservation) -> None:
        """Release a reservation. Idempotent."""
        with self.lock:
            if reservation in self.reservations:
                self.reservations.remove(reservation)
                queue = self.queues[reservation.model].keys[reservation.key]
                queue.num_sequences -= reservation.num_sequences
                queue.unseen.discard(reservation)

    def queue_of(self, served: ServedModel) -> ModelQueue:
        return self.queues.setdefault(served.name, ModelQueue())

    def check_key(self, key: str, num_sequences: int) -> None:
        """Raise an ApiError if the key would exceed max_concurrent."""
        limit = self.max_concurrent
        if limit is None:
            return
        if num_sequences > limit:
            raise ApiError(
                400,
                f"the request asks for {num_sequences} texts at a time: at most {limit} are "
                "allowed. Ask for fewer, or raise --max-concurrent.",
            )
        active = sum(one.num_sequences for one in self.reservations if one.key == key)
        if active + num_sequences > limit:
            who = f"key '{key}' has" if key else "there are"
            raise too_busy(
                f"{who} {active} texts in progress, and at most {limit} are allowed.", MIN_RETRY
            )

    def check_room(self, served: ServedModel) -> None:
        """Raise an ApiError 429 if a request without a reservation would wait too long."""
        with self.lock:
            work = self.queue_of(served).work(served)
        wait = self.excess(work, 0, None)
        if wait is not None:
            raise too_busy(busy_sentence(work, 0), wait)

    def check_queue(
        self, served: ServedModel, request: Reservation, fingerprint: int, token_bound: int | None
    ) -> None:
        """Raise an ApiError 429, and issue a ticket, for a request that would wait too long."""
        model, now = self.queue_of(served), self.now()
        queue = model.keys[request.key]
        ticket = queue.refused.find(fingerprint, now)
        key_work = model.work_of(served, request.key)
        work_ahead = key_work.plus(*queue.refused.ahead_of(ticket))

        def excess(work: QueuedWork, share: float = 1.0) -> float | None:
            return self.excess(work, request.num_tokens, token_bound, share)

        key_excess, total_work = excess(work_ahead), model.work(served)
        retry_after = None if key_excess is None else MARGIN * key_excess
        total_excess = excess(total_work, TOTAL_SHARE)
        if total_excess is not None:
            raise too_busy(busy_sentence(total_work, 0), max(total_excess, retry_after or 0.0))
        is_due = ticket is not None and ticket.is_due(now)
        if (
            retry_after is None
            or (is_due and excess(work_ahead, DUE_SHARE) is None)
            or excess(key_work, FREE_SHARE) is None
        ):
            if ticket is not None:
                queue.refused.remove(ticket)
            return
        num_refused = len(queue.refused)
        if ticket is None:
            ticket = queue.refused.issue(fingerprint, request.num_sequences, request.num_tokens)
        if ticket is not None:
            queue.refused.promise(ticket, clamped(retry_after), now)
        raise too_busy(busy_sentence(key_work, num_refused), retry_after)

    def excess(
        self, work: QueuedWork, num_tokens: int, token_bound: int | None, share: float = 1.0
    ) -> float | None:
        """Seconds until the work is within a share of the bounds, for a request with `num_tokens`
        tokens; None: it is now."""
        waits = []
        num_allowed = share * self.max_queued
        if work.num_waiting >= num_allowed:
            num_excess = work.num_waiting + 1 - num_allowed
            waits.append(num_excess / work.request_rate if work.request_rate else MIN_RETRY)
        if work.seconds > share * self.max_queue_seconds:
            waits.append(work.seconds - share * self.max_queue_seconds)
        if token_bound is not None and work.num_tokens > 0:
            num_excess = work.num_tokens + num_tokens - share * token_bound
            if num_excess > 0:
                waits.append(num_excess / work.token_rate if work.token_rate else MIN_RETRY)
        return max(waits, default=None)


def busy_sentence(work: QueuedWork, num_refused: int) -> str:
    """The reason why a request is refused, for the error message."""
    later = f", and {num_refused} that were refused return before" if num_refused else ""
    return (
        f"the server is busy: {work.num_waiting} requests with {work.num_tokens} prompt tokens "
        f"wait for about {work.seconds:.0f} s{later}."
    )


def check_prompts(requests: Sequence[GenerationRequest], limit: int | None) -> None:
    """Raise an ApiError 400 for a prompt or source of more than `limit` tokens."""
    longest = max((max(len(one.prompt), len(one.source or ())) for one in requests), default=0)
    if limit is not None and longest > limit:
        raise ApiError(
            400,
            f"the prompt has {longest} tokens, and this server accepts at most {limit}. Shorten "
            "it, or raise --max-prompt.",
            code="context_length_exceeded",
        )


def num_sequences_of(request: GenerationRequest) -> int:
    return max(1, request.n, request.beam.width if request.beam is not None else 1)


def clamped(wait: float) -> float:
    """The wait, limited to the range of Retry-After."""
    return min(MAX_RETRY, max(MIN_RETRY, wait))


def too_busy(problem: str, wait: float) -> ApiError:
    """The error for a request that should be repeated after `wait` seconds."""
    retry = clamped(wait)
    return ApiError(
        429,
        f"{problem} Try again in {math.ceil(retry)} s.",
        code="rate_limit_exceeded",
        headers={
            "retry-after": str(math.ceil(retry)),
            "retry-after-ms": str(math.ceil(retry * 1000)),
        },
    )
