"""Page changes as a stream of events, and `replay`: events -> holders and filled rows of each page.

    alloc  a free page gets its first holder      share  one more holder
    free   a holder releases the page             evict  a cache releases the page to make space
    copy   `page` was filled from page `detail`   write  its first `detail` rows are filled
    reset  all pages are free: the engine recovered from an exception; events for the pages that
           the caches still hold follow

Holders are named: a sequence's page tables by their owner, the caches "prefix" and "sources".
Without a listener an event costs one comparison. Copies between beams inside a multi-step plan are
reported as writes after its last step. Unlike the logs of other engines the stream is complete:
replaying it gives the reference counts of the pool (a test does so after every step).

An engine collects the events of a step in an `EventQueue` and delivers them when the step is
complete, so that a listener which raises cannot interrupt a change of the pages.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

log = logging.getLogger(__name__)

EventKind = Literal["alloc", "write", "share", "copy", "evict", "free", "reset"]


class CacheEvent(NamedTuple):
    """One change of one page in engine step `step`."""

    kind: EventKind
    step: int
    page: int
    owner: str
    detail: int = 0


EventListener = Callable[[CacheEvent], None]


class EventQueue:
    """Events that wait for the end of the current step."""

    def __init__(self) -> None:
        self.listener: EventListener | None = None
        self.events: deque[CacheEvent] = deque()

    def deliver(self) -> None:
        """Call the listener with each event, in order. A listener that raises is removed, and the
        exception is logged: the requests do not depend on it."""
        while self.events:
            event = self.events.popleft()
            try:
                if self.listener is not None:
                    self.listener(event)
            except Exception:
                self.listener = None
                log.exception("listener=removed reason='it raised' event=%s", event)


class EventLog:
    """A listener that keeps the last `limit` events; `num_dropped` counts the older ones."""

    def __init__(self, limit: int | None = 65536) -> None:
        self.events: deque[CacheEvent] = deque(maxlen=limit)
        self.num_seen = 0

    def __call__(self, event: CacheEvent) -> None:
        self.events.append(event)
        self.num_seen += 1

    @property
    def num_dropped(self) -> int:
        return self.num_seen - len(self.events)


@dataclass
class ReplayedState:
    """Holders of each page: {page: {owner: references}}. Free pages are absent."""

    holders: dict[int, Counter[str]] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    """Number of filled leading rows of each held page."""

    @property
    def counts(self) -> dict[int, int]:
        return {page: owners.total() for page, owners in self.holders.items()}

    def apply(self, event: CacheEvent) -> None:
        """Apply one event; an AssertionError for a stream that contradicts itself."""
        owners = self.holders.get(event.page)
        if event.kind == "reset":
            self.holders.clear()
            self.rows.clear()
            return
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
            self.remove_holder(event, owners)

    def remove_holder(self, event: CacheEvent, owners: Counter[str]) -> None:
        """Drop one reference; a page without references is free."""
        assert owners[event.owner] > 0, f"{event.owner} frees page {event.page} held by {owners}"
        owners[event.owner] -= 1
        if not owners[event.owner]:
            del owners[event.owner]
        if not owners:
            del self.holders[event.page], self.rows[event.page]


def replay(events: Iterable[CacheEvent], onto: ReplayedState | None = None) -> ReplayedState:
    """Return the state after the events; `onto` continues from an earlier state, in place."""
    state = onto or ReplayedState()
    for event in events:
        state.apply(event)
    return state
