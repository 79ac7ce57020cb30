"""Load shedding: requests that would wait too long are answered with 429 and when to try again.

    reservation = limits.reserve(served, key, requests)     raises an ApiError 429
    limits.release(reservation)                             when the HTTP request has ended

The queue of a model is bounded in requests, of which n samples count n times, and in seconds of
prompt computation by the measured rate. What has been accepted but not yet seen by the scheduler,
which looks at new requests between two steps, is counted too. Retry-After is (tokens ahead - limit)
/ rate, between 1 and 60 seconds. A single request is accepted whatever its size while the queue has
room: refusing it would not help anyone.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from weft.engine.async_engine import OutputStream
from weft.engine.request import GenerationRequest
from weft.serve.api_errors import ApiError
from weft.serve.served_model import ServedModel

MIN_RETRY, MAX_RETRY = 1.0, 60.0


@dataclass(eq=False)
class Reservation:
    """The place of one HTTP request in the queue of a model."""

    model: str
    key: str
    num_sequences: int
    num_tokens: int
    """Of prompts and sources."""
    stream: OutputStream | None = None
    """Its requests, once they are submitted."""

    @property
    def unseen_tokens(self) -> int:
        """Tokens that the scheduler does not know of yet."""
        has_arrived = self.stream is not None and bool(self.stream.times)
        return 0 if has_arrived else self.num_tokens


@dataclass
class Limits:
    """Bounds of the queue of each model, and of each API key. Thread-safe."""

    max_queued: int = 1024
    max_queue_seconds: float = 30.0
    max_concurrent: int | None = None
    """Sequences of one key at a time, of all models."""
    max_output: int | None = None
    """Upper bound of max_tokens."""
    reservations: set[Reservation] = field(default_factory=set)
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
        """A place in the queue; an ApiError 429 if there is none."""
        num_sequences = sum(num_sequences_of(one) for one in requests)
        num_tokens = sum(len(one.prompt) + len(one.source or ()) for one in requests)
        reservation = Reservation(served.name, key, num_sequences, num_tokens)
        with self.lock:
            self.check_key(key, num_sequences)
            self.check_room(served, requests)
            self.check_tokens(served, num_tokens, max_queued_tokens)
            self.reservations.add(reservation)
        return reservation

    def release(self, reservation: Reservation) -> None:
        """Give a place back; once is enough."""
        with self.lock:
            self.reservations.discard(reservation)

    def check_key(self, key: str, num_sequences: int) -> None:
        """Raise an ApiError if a key would have too many sequences at a time."""
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

    def check_room(self, served: ServedModel, requests: Sequence[GenerationRequest]) -> None:
        """Raise an ApiError 429 if further requests would wait too long."""
        scheduler = served.engine.engine.scheduler
        load, mine = scheduler.load(), self.of_model(served.name)
        accepted = sum(one.num_sequences for one in mine) - scheduler.state.num_running
        num_waiting = max(accepted, load.num_waiting + len(served.engine.commands))
        tokens = load.tokens_ahead + sum(one.unseen_tokens for one in mine)
        seconds = tokens / load.prefill_rate if load.prefill_rate > 0.0 else 0.0
        if num_waiting < self.max_queued and seconds <= self.max_queue_seconds:
            return
        raise too_busy(
            f"the server is busy: {num_waiting} requests wait for about {seconds:.0f} s of "
            "computation.",
            seconds - self.max_queue_seconds,
        )

    def check_tokens(self, served: ServedModel, num_tokens: int, limit: int | None) -> None:
        """Raise an ApiError 429 if more than `limit` tokens of prompts would wait."""
        if limit is None:
            return
        load = served.engine.engine.scheduler.load()
        ahead = load.tokens_ahead + sum(one.unseen_tokens for one in self.of_model(served.name))
        excess = ahead + num_tokens - limit
        if ahead > 0 and excess > 0:
            raise too_busy(
                f"the server is busy: {ahead} prompt tokens wait, and with these there would be "
                f"{ahead + num_tokens} of at most {limit}.",
                excess / load.prefill_rate if load.prefill_rate > 0.0 else MIN_RETRY,
            )

    def of_model(self, name: str) -> list[Reservation]:
        return [one for one in list(self.reservations) if one.model == name]


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


def too_busy(problem: str, wait: float) -> ApiError:
    """The answer to a request that should be repeated after `wait` seconds."""
    retry = min(MAX_RETRY, max(MIN_RETRY, wait))
    return ApiError(
        429,
        f"{problem} Try again in {math.ceil(retry)} s.",
        code="rate_limit_exceeded",
        headers={
            "retry-after": str(math.ceil(retry)),
            "retry-after-ms": str(math.ceil(retry * 1000)),
        },
    )
