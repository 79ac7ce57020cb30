"""Changes of pages and of the radix tree as a stream of events; replay.py applies them.

Holders are named: a sequence's page tables by their owner ("r3/0": sample 0 of request r3), the
caches "prefix" and "sources". The stream is complete, unlike the logs of other engines: replayed
onto a snapshot (`Engine.cache_state`) it gives all pages and all nodes (tests do so after every
step). Copies between beams inside a multi-step plan are reported as writes after its last step.

`to_json` is the form in which events are sent. Each has `op` and `step`, the engine step, and:

    alloc           page owner       a free page gets its first holder; none of its rows is filled
    share           page owner       one more reference, by this owner
    free            page owner       this owner drops one reference; a page without any is free
    evict           page owner       the same, by a cache ("prefix" or "sources") to make space. If
                                     "prefix", the page becomes 0 in the node block that lists it
    write           page owner rows  its first `rows` rows are filled now
    copy            page owner from  its rows are those of page `from`, as many as are filled there
    reset                            no page is held, and there are no nodes: the engine recovered
                                     from an exception. Events for what the caches still hold follow
    node_added      node parent namespace tokens num_tokens blocks last_use
                                     a new node with 0 locks below `parent`, which is null for the
                                     root of a namespace. blocks: for each page of tokens, the page
                                     ids of all KV cache groups, 0 where one is missing. tokens is
                                     null if the text is another caller's
    node_grown      node tokens num_tokens blocks
                                     these are appended to the node
    node_split      node parent num_blocks
                                     a new node `parent` takes the node's place, its first
                                     `num_blocks` blocks with their tokens, and its locks and last
                                     use; the node keeps the others, as the only child of `parent`
    node_shortened  node num_blocks  only the first `num_blocks` blocks of the node are left, with
                                     their tokens
    node_filled     node block pages the page ids of block `block` of the node are `pages` now
    node_removed    node             the node had no locks and no children; its pages are evicted
    locked          node locks last_use
    unlocked        node locks last_use
                                     the number of sequences that use this node now, and the
                                     timestamp of the last use. A match changes each node of its
                                     path, the root included

Without a listener an event costs one comparison. An engine collects the events of a step in an
`EventQueue` and delivers them when the step is complete, so that a listener which raises cannot
interrupt a change of the pages. The events of KV-aware routers can be derived: node_added and
node_grown are vLLM's BlockStored, evict by "prefix" its BlockRemoved, reset AllBlocksCleared.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

log = logging.getLogger(__name__)

PREFIX = "prefix"
"""The name under which a prefix cache holds pages."""

PageEventKind = Literal["alloc", "write", "share", "copy", "evict", "free", "reset"]
TreeEventKind = Literal[
    "node_added",
    "node_grown",
    "node_split",
    "node_shortened",
    "node_filled",
    "node_removed",
    "locked",
    "unlocked",
]
Blocks = Sequence[Sequence[int]]
"""For each block of a node, a page id per KV cache group."""


class PageEvent(NamedTuple):
    """One change of one page in engine step `step`."""

    kind: PageEventKind
    step: int
    page: int
    owner: str
    detail: int = 0
    """write: number of filled rows; copy: the page that was copied."""

    def to_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"op": self.kind, "step": self.step}
        if self.kind == "reset":
            return entry
        entry |= {"page": self.page, "owner": self.owner}
        if self.kind in ("write", "copy"):
            entry["rows" if self.kind == "write" else "from"] = self.detail
        return entry


class TreeEvent(NamedTuple):
    """One change of one node of the radix tree in engine step `step`."""

    kind: TreeEventKind
    step: int
    node: int
    parent: int | None = None
    """node_split: the new node."""
    namespace: str = ""
    tokens: Sequence[int] = ()
    blocks: Blocks = ()
    """node_filled: the one block."""
    number: int = 0
    """node_split, node_shortened: a number of blocks; node_filled: the number of the block;
    locked, unlocked: the locks."""
    last_use: int = 0

    def to_json(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"op": self.kind, "step": self.step, "node": self.node}
        if self.kind == "node_added":
            entry |= {"parent": self.parent, "namespace": self.namespace, "last_use": self.last_use}
        if self.kind in ("node_added", "node_grown"):
            entry |= {"tokens": list(self.tokens), "num_tokens": len(self.tokens)}
            entry["blocks"] = [list(block) for block in self.blocks]
        elif self.kind == "node_split":
            entry |= {"parent": self.parent, "num_blocks": self.number}
        elif self.kind == "node_shortened":
            entry["num_blocks"] = self.number
        elif self.kind == "node_filled":
            entry |= {"block": self.number, "pages": list(self.blocks[0])}
        elif self.kind in ("locked", "unlocked"):
            entry |= {"locks": self.number, "last_use": self.last_use}
        return entry


CacheEvent = PageEvent | TreeEvent
EventListener = Callable[[CacheEvent], None]


class EventQueue:
    """Events that wait for the end of the current step, for any number of listeners."""

    def __init__(self) -> None:
        self.inboxes: list[tuple[EventListener, deque[CacheEvent]]] = []
        """Each listener with what it has not heard yet: an interrupt between two listeners loses
        no event."""

    @property
    def has_listeners(self) -> bool:
        return bool(self.inboxes)

    @property
    def collector(self) -> EventListener | None:
        """Puts an event into all inboxes; None: there is no listener."""
        if len(self.inboxes) == 1:
            return self.inboxes[0][1].append
        return self.append if self.inboxes else None

    def append(self, event: CacheEvent) -> None:
        for _, inbox in self.inboxes:
            inbox.append(event)

    def add(self, listener: EventListener) -> None:
        self.inboxes = [*self.inboxes, (listener, deque())]

    def remove(self, listener: EventListener) -> None:
        """Forget a listener and what it has not heard. Does nothing if it is unknown."""
        for other, inbox in self.inboxes:
            if other == listener:
                inbox.clear()
        self.inboxes = [one for one in self.inboxes if one[0] != listener]

    def deliver(self) -> None:
        """Call the listeners with each event, in order. One that raises is removed, and the
        exception is logged: the requests do not depend on it."""
        for listener, inbox in self.inboxes:
            while inbox:
                event = inbox.popleft()
                try:
                    listener(event)
                except Exception:
                    self.remove(listener)
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
