"""The desk: several callers in one process share an engine, and each follows its own requests.

Whoever waits for something drives the engine a step; what the step brings for others lies in their
inboxes until they look. A caller who leaves in the middle gives back all pages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from weft.core.errors import DataError
from weft.engine.attention import AttentionRow
from weft.engine.beam import Hypothesis
from weft.engine.engine import Engine
from weft.engine.writing import Update, Writing


class Desk:
    """Requests by name, with an inbox each."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.inboxes: dict[str, deque[Update]] = {}
        self.ended: set[str] = set()
        """Requests that have ended and that nobody has looked at since."""

    def open(self, writing: Writing) -> str:
        """A new request; follow it, or close it."""
        name = self.engine.submit(writing)
        self.inboxes[name] = deque()
        return name

    def open_all(self, writings: Sequence[Writing]) -> list[str]:
        """All of them, or none where one is refused."""
        names: list[str] = []
        try:
            for writing in writings:
                names.append(self.open(writing))
        except BaseException:
            for name in names:
                self.close(name)
            raise
        return names

    def open_text(self, ids: Sequence[int]) -> str:
        name = self.engine.submit_text(ids)
        self.inboxes[name] = deque()
        return name

    def open_scored(self, ids: Sequence[int]) -> str:
        """A text whose tokens' log-probabilities are wanted."""
        name = self.engine.submit_scored(ids)
        self.inboxes[name] = deque()
        return name

    def follow(self, name: str) -> Iterator[Update]:
        """What comes of one request of a single sample, to its end."""
        try:
            while True:
                update = refuse_error(self.next(name))
                yield update
                if update.finish is not None:
                    return
        finally:
            self.close(name)

    def results(self, names: Sequence[str]) -> Iterator[tuple[int, Update]]:
        """The last update of each request, with its place in `names`, as they end."""
        waiting = {name: place for place, name in enumerate(names)}
        try:
            while waiting:
                yield from self.some_results(waiting)
        finally:
            for name in waiting:
                self.close(name)

    def some_results(self, waiting: dict[str, int]) -> list[tuple[int, Update]]:
        """Those who have ended leave `waiting`, names with their places: the last update of each.
        Where nobody has, the engine is driven a step."""
        if not self.ended & waiting.keys():
            for name in waiting:
                self.refuse_lost(name)
            self.step()
        names = self.ended & waiting.keys()
        self.ended -= names
        return [(waiting.pop(name), refuse_error(self.inboxes.pop(name)[-1])) for name in names]

    def search(self, writings: Sequence[Writing]) -> Iterator[tuple[int, list[Hypothesis]]]:
        """What the beam searches have found, with their places in `writings`, as they end."""
        for place, update in self.results(self.open_all(writings)):
            yield place, update.hypotheses

    def next(self, name: str) -> Update:
        """The next update of a request, however many steps it takes."""
        inbox = self.inboxes[name]
        while not inbox:
            self.refuse_lost(name)
            self.step()
        return inbox.popleft()

    def refuse_lost(self, name: str) -> None:
        """Nobody waits for what cannot come: a step that fails takes its requests with it."""
        if not self.engine.has(name) and name not in self.ended:
            raise DataError(f"request {name} was lost in a step that failed. Ask again.")

    def step(self) -> None:
        for update in self.engine.step():
            inbox = self.inboxes.get(update.request_id)
            if inbox is not None:
                inbox.append(update)
                if update.finish is not None or update.error is not None:
                    self.ended.add(update.request_id)

    def attention(
        self, name: str, layer: int, head: int, query: int, sample: int = 0
    ) -> AttentionRow:
        """What one token of a request looks at, also when the request has ended."""
        return self.engine.attention(name, layer, head, query, sample)

    def close(self, name: str) -> None:
        """Nobody follows this request any more."""
        self.ended.discard(name)
        if self.inboxes.pop(name, None) is not None:
            self.engine.cancel(name)


def refuse_error(update: Update) -> Update:
    """The update, unless its request could not go on."""
    if update.error is not None:
        raise DataError(update.error)
    return update
