"""Load shedding: requests that would wait too long are answered with 429 and when to try again.

The queue is bounded in requests and in seconds of prompt computation, by the measured rate. The
header Retry-After is (tokens ahead - limit) / rate, between 1 and 60 seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from weft.engine.request import GenerationRequest
from weft.serve.api_errors import ApiError
from weft.serve.served_model import ServedModel

MIN_RETRY, MAX_RETRY = 1.0, 60.0


@dataclass
class Limits:
    """Bounds of the queue of each model."""

    max_queued: int = 1024
    max_queue_seconds: float = 30.0

    def check_room(self, served: ServedModel, requests: Sequence[GenerationRequest]) -> None:
        """Raise an ApiError 429 if the requests would wait too long."""
        load = served.engine.engine.scheduler.load()
        num_waiting = load.num_waiting + len(served.engine.commands)
        seconds = load.tokens_ahead / load.prefill_rate if load.prefill_rate > 0.0 else 0.0
        if num_waiting < self.max_queued and seconds <= self.max_queue_seconds:
            return
        wait = seconds - self.max_queue_seconds
        retry = min(MAX_RETRY, max(MIN_RETRY, wait))
        raise ApiError(
            429,
            f"the server is busy: {num_waiting} requests wait for about {seconds:.0f} s of "
            f"computation. Try again in {math.ceil(retry)} s.",
            code="rate_limit_exceeded",
            headers={
                "retry-after": str(math.ceil(retry)),
                "retry-after-ms": str(int(retry * 1000)),
            },
        )
