"""`ReplayedState`: a snapshot and the events since then -> holders and rows of pages, and the tree.

The reference for every other reducer: after each event another one must have the same JSON, and
after each step this one equals the engine's own state (`Engine.cache_state`).

    {"pages": [{"page": 5, "owners": {"r1/0": 1, "prefix": 1}, "rows": 16}, ...],
     "nodes": [{"node": 3, "parent": 1, "namespace": "", "tokens": [17, 4], "num_tokens": 2,
                "blocks": [[5]], "locks": 1, "last_use": 7}, ...]}

Pages are in the order of their ids, free ones absent; nodes in the order of theirs. `owners` counts
the references of each holder.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from weft.cache.events import PREFIX, CacheEvent, PageEvent, TreeEvent


@dataclass
class TreeNode:
    """A node of the radix tree, without references to others."""

    parent: int | None
    """None: the root of a namespace."""
    namespace: str
    tokens: list[int]
    blocks: list[list[int]]
    """For each block the page ids of all KV cache groups; 0: missing."""
    locks: int = 0
    last_use: int = 0

    def added_event(self, node: int, step: int) -> TreeEvent:
        """The event that adds this node, without locks. It shares the lists."""
        return TreeEvent(
            "node_added",
            step,
            node,
            self.parent,
            self.namespace,
            self.tokens,
            self.blocks,
            last_use=self.last_use,
        )

    def to_json(self, node: int) -> dict[str, Any]:
        return {
            "node": node,
            "parent": self.parent,
            "namespace": self.namespace,
            "tokens": list(self.tokens),
            "num_tokens": len(self.tokens),
            "blocks": [list(block) for block in self.blocks],
            "locks": self.locks,
            "last_use": self.last_use,
        }


@dataclass
class ReplayedState:
    """Pages and nodes. Two states are equal if all that is in their JSON is."""

    holders: dict[int, Counter[str]] = field(default_factory=dict)
    """{page: {owner: references}}. Free pages are absent."""
    rows: dict[int, int] = field(default_factory=dict)
    """Number of filled leading rows of each held page."""
    nodes: dict[int, TreeNode] = field(default_factory=dict)
    """By id."""
    block_of: dict[int, list[int]] = field(init=False, compare=False, repr=False)
    """The block, of some node, that lists a page."""

    def __post_init__(self) -> None:
        self.block_of = {}
        for node in self.nodes.values():
            self.note_blocks(node.blocks)

    @property
    def counts(self) -> dict[int, int]:
        return {page: owners.total() for page, owners in self.holders.items()}

    def to_json(self) -> dict[str, Any]:
        pages = [
            {"page": page, "owners": dict(self.holders[page]), "rows": self.rows[page]}
            for page in sorted(self.holders)
        ]
        nodes = [self.nodes[node].to_json(node) for node in sorted(self.nodes)]
        return {"pages": pages, "nodes": nodes}

    def apply(self, event: CacheEvent) -> None:
        """Apply one event; an AssertionError for a stream that contradicts itself."""
        if isinstance(event, TreeEvent):
            self.apply_to_tree(event)
        elif event.kind == "reset":
            for part in (self.holders, self.rows, self.nodes, self.block_of):
                part.clear()
        elif event.kind == "alloc":
            owners = self.holders.get(event.page)
            assert owners is None, f"page {event.page} is allocated while {owners} hold it"
            self.holders[event.page] = Counter({event.owner: 1})
            self.rows[event.page] = 0
        else:
            self.change_page(event)

    def change_page(self, event: PageEvent) -> None:
        """Apply an event of a page that is held."""
        owners = self.holders.get(event.page)
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
        if event.kind == "evict" and event.owner == PREFIX and event.page in self.block_of:
            block = self.block_of.pop(event.page)
            block[block.index(event.page)] = 0

    def remove_holder(self, event: PageEvent, owners: Counter[str]) -> None:
        """Drop one reference; a page without references is free."""
        assert owners[event.owner] > 0, f"{event.owner} frees page {event.page} held by {owners}"
        owners[event.owner] -= 1
        if not owners[event.owner]:
            del owners[event.owner]
        if not owners:
            del self.holders[event.page], self.rows[event.page]

    def apply_to_tree(self, event: TreeEvent) -> None:
        if event.kind == "node_added":
            self.add_node(event)
            return
        node = self.nodes.get(event.node)
        assert node is not None, f"{event.kind} of node {event.node}, which does not exist"
        if event.kind == "node_grown":
            node.tokens += event.tokens
            node.blocks += self.note_blocks(event.blocks)
        elif event.kind == "node_split":
            self.split_node(event, node)
        elif event.kind == "node_shortened":
            keep_blocks(node, event.number)
        elif event.kind == "node_filled":
            node.blocks[event.number] = self.note_blocks(event.blocks)[0]
        elif event.kind == "node_removed":
            self.remove_node(event.node, node)
        else:
            node.locks, node.last_use = event.number, event.last_use

    def add_node(self, event: TreeEvent) -> None:
        assert event.node not in self.nodes, f"node {event.node} is added twice"
        assert event.parent is None or event.parent in self.nodes, (
            f"node {event.node} is added below {event.parent}, which does not exist"
        )
        blocks = self.note_blocks(event.blocks)
        self.nodes[event.node] = TreeNode(
            event.parent, event.namespace, list(event.tokens), blocks, 0, event.last_use
        )

    def split_node(self, event: TreeEvent, node: TreeNode) -> None:
        assert event.parent is not None and event.parent not in self.nodes, (
            f"node {event.node} is split by node {event.parent}, which exists"
        )
        number, size = event.number, tokens_per_block(node)
        assert 0 < number < len(node.blocks), (
            f"node {event.node} of {len(node.blocks)} blocks is split after {number}"
        )
        self.nodes[event.parent] = TreeNode(
            node.parent,
            node.namespace,
            node.tokens[: number * size],
            node.blocks[:number],
            node.locks,
            node.last_use,
        )
        node.tokens, node.blocks = node.tokens[number * size :], node.blocks[number:]
        node.parent = event.parent

    def remove_node(self, number: int, node: TreeNode) -> None:
        has_children = any(one.parent == number for one in self.nodes.values())
        assert not node.locks and not has_children, (
            f"node {number} is removed with {node.locks} locks"
        )
        keep_blocks(node, 0)
        del self.nodes[number]

    def note_blocks(self, blocks: Sequence[Sequence[int]]) -> list[list[int]]:
        """Copies of new blocks, which their pages refer to."""
        copies = [list(block) for block in blocks]
        for block in copies:
            self.block_of.update((page, block) for page in block if page)
        return copies


def tokens_per_block(node: TreeNode) -> int:
    return len(node.tokens) // len(node.blocks) if node.blocks else 0


def keep_blocks(node: TreeNode, number: int) -> None:
    """Drop all but the first blocks of a node, whose pages were evicted."""
    size = tokens_per_block(node)
    held = [page for block in node.blocks[number:] for page in block if page]
    assert not held, f"pages {held} of a shortened node are not evicted"
    del node.tokens[number * size :], node.blocks[number:]


def replay(events: Iterable[CacheEvent], onto: ReplayedState | None = None) -> ReplayedState:
    """Return the state after the events; `onto` continues from an earlier state, in place."""
    state = onto or ReplayedState()
    for event in events:
        state.apply(event)
    return state
