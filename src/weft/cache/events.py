"""Every change of the pages as a stream of events, and `replay`: events -> who holds what, and how
full it is.

    alloc  a free page gets its first holder      share  one more holder
    free   a holder lets go                       evict  a cache lets go to make room
    copy   `page` was filled from page `detail`   write  its first `detail` rows are filled

Holders are named: a sequence's table by its owner, the caches "prefix" and "sources". Nobody
listening costs one comparison a call. What beams copy while a plan has several passes is told as
written, behind the last of them. Differs from the logs of other engines: the stream is complete, so
that replaying it gives the pool's own counts (a test does it after every step).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal["alloc", "write", "share", "copy", "evict", "free"]


class Event(NamedTuple):
    kind: Kind
    step: int
    page: int
    owner: str
    detail: int = 0


Listener = Callable[[Event], None]


class EventLog:
    """A listener that keeps the last `limit` events; `num_dropped` older ones are gone."""

    def __init__(self, limit: int | None = 65536) -> None:
        self.events: deque[Event] = deque(maxlen=limit)
        self.num_seen = 0

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self.num_seen += 1

    @property
    def num_dropped(self) -> int:
        return self.num_seen - len(self.events)


@dataclass
class Replayed:
    """Who holds each page: {page: {owner: times}}. Free pages are absent."""

    holders: dict[int, Counter[str]] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    """How many leading rows of each held page are filled."""

    @property
    def counts(self) -> dict[int, int]:
        return {page: owners.total() for page, owners in self.holders.items()}

    def apply(self, event: Event) -> None:
        """One event; a stream that contradicts itself fails here."""
        owners = self.holders.get(event.page)
        if event.kind == "alloc":
            assert owners is None, f"page {event.page} is allocated while {owners} hold it"
            self.holders[event.page] = Counter({event.owner: 1})
            self.rows[event.page] = 0
            return
        assert owners is not None, f"{event.kind} of page {event.page}, which is free"
        if event.kind == "share":
            owners[event.owner] += 1
        elif event.kind == "write":
            self.rows[event.page] = event.detail
        elif event.kind == "copy":
            assert event.detail in self.rows, f"page {event.page} is a copy of a free one"
            self.rows[event.page] = self.rows[event.detail]
        elif event.kind in ("free", "evict"):
            self.let_go(event, owners)

    def let_go(self, event: Event, owners: Counter[str]) -> None:
        assert owners[event.owner] > 0, f"{event.owner} frees page {event.page} held by {owners}"
        owners[event.owner] -= 1
        if not owners[event.owner]:
            del owners[event.owner]
        if not owners:
            del self.holders[event.page], self.rows[event.page]


def replay(events: Iterable[Event], onto: Replayed | None = None) -> Replayed:
    """The state behind the events; `onto` goes on from an earlier one."""
    state = onto or Replayed()
    for event in events:
        state.apply(event)
    return state
