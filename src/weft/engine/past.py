"""Requests that have ended -> their tokens, for whoever looks at them afterwards.

Only ids are kept, of the last requests; rows stay in the caches as long as those have room.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from weft.engine.scheduling.sequence import Request


@dataclass(frozen=True)
class PastRequest:
    """A request and all tokens of its samples, prompt included; of a beam search the results, best
    first."""

    request: Request
    lines: dict[int, list[int]] = field(default_factory=dict)


class Past:
    """The last `limit` requests by name."""

    def __init__(self, limit: int = 256) -> None:
        self.limit = limit
        self.requests: OrderedDict[str, PastRequest] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        return name in self.requests

    def __getitem__(self, name: str) -> PastRequest:
        return self.requests[name]

    def lines(self, name: str) -> dict[int, list[int]]:
        """What is known of a request; nothing, where it is not known."""
        return self.requests[name].lines if name in self.requests else {}

    def add(self, request: Request, sample: int, output: list[int]) -> None:
        """A sample has ended; `output` are its new tokens."""
        kept = self.requests.setdefault(request.id, PastRequest(request))
        kept.lines[sample] = [*request.prompt, *output]
        while len(self.requests) > self.limit:
            self.requests.popitem(last=False)
