"""Recent responses: id of a response -> engine requests of its choices, by API key.

    service.recent.remember(response_id, call.caller, served, generation)   after it was started
    service.recent.find(response_id, call.caller)                           None: unknown or expired

Only ids are kept; tokens and rows stay in the engine and its KV cache until they are evicted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.serve.api_keys import Caller
from weft.serve.served_model import ServedModel

if TYPE_CHECKING:
    from weft.serve.generation import Generation

MAX_RESPONSES = 256


@dataclass(frozen=True)
class RecentResponse:
    """The engine requests of one response."""

    served: ServedModel
    request_ids: tuple[str, ...]
    num_choices: tuple[int, ...]
    """Of each request: its samples, or the results of its beam search."""
    selected: tuple[int, ...] | None = None
    """The choices that the response has, among those of the engine; None: all, in order."""

    @property
    def size(self) -> int:
        """Number of choices that the response has."""
        return sum(self.num_choices) if self.selected is None else len(self.selected)

    def choice(self, index: int) -> tuple[str, int] | None:
        """Engine request and sample of a choice; None if there are fewer."""
        if self.selected is not None:
            if index >= len(self.selected):
                return None
            index = self.selected[index]
        for request_id, number in zip(self.request_ids, self.num_choices, strict=True):
            if index < number:
                return request_id, index
            index -= number
        return None


class RecentResponses:
    """The last responses of each API key. Used by the event loop only."""

    def __init__(self, limit: int = MAX_RESPONSES) -> None:
        self.limit = limit
        self.by_key: dict[str, OrderedDict[str, RecentResponse]] = {}
        """By the name of the API key, then by id: no key finds or displaces another's."""

    def remember(
        self,
        response_id: str,
        caller: Caller,
        served: ServedModel,
        generation: Generation,
        selected: Sequence[int] | None = None,
    ) -> None:
        """Keep the requests of a response under its id. `selected`: the generated choices that the
        response has, in its order; None: all."""
        numbers = tuple(request.num_choices for request in generation.requests)
        chosen = None if selected is None else tuple(selected)
        response = RecentResponse(served, tuple(generation.stream.ids), numbers, chosen)
        responses = self.by_key.setdefault(caller.name, OrderedDict())
        responses[response_id] = response
        responses.move_to_end(response_id)
        while len(responses) > self.limit:
            responses.popitem(last=False)

    def find(self, response_id: str, caller: Caller) -> RecentResponse | None:
        """A response of this caller."""
        responses = self.by_key.get(caller.name)
        return None if responses is None else responses.get(response_id)
