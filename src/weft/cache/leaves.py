"""The nodes of a radix tree, and the queue of those that may be evicted, least recent use first.

The queue is a heap of (last use, serial, node) with at most one entry a node. An entry is a lower
bound: a node that was used since, locked or given children is corrected when it comes to the top.
So using a node costs nothing here, and evicting one never scans the tree.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence

from weft.cache.tables import Column


class Node:
    """A run of whole blocks. The root of a namespace has none, and no parent."""

    __slots__ = (
        "children",
        "columns",
        "end",
        "is_queued",
        "last_use",
        "locks",
        "namespace",
        "parent",
        "tokens",
        "was_shortened",
    )

    def __init__(
        self, parent: Node | None, tokens: list[int], columns: list[Column], namespace: str
    ) -> None:
        self.parent, self.tokens, self.columns = parent, tokens, columns
        self.namespace = namespace
        self.end: int = len(tokens) + (parent.end if parent is not None else 0)
        """Tokens from the root to the end of the run."""
        self.children: dict[tuple[int, ...], Node] = {}
        """By the tokens of the child's first block."""
        self.locks = 0
        """Matches that end here or below."""
        self.last_use = 0
        self.is_queued = False
        """It has an entry in the queue."""
        self.was_shortened = False
        """It lost blocks at its end, and never grows again: the same end is the same run."""

    @property
    def is_evictable(self) -> bool:
        return not self.locks and not self.children and self.parent is not None

    @property
    def can_grow(self) -> bool:
        """A leaf with one lock, which is that of whoever asks."""
        is_leaf = not self.children and self.parent is not None
        return is_leaf and self.locks == 1 and not self.was_shortened


class Leaves:
    """Leaves that no match locks."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Node]] = []
        self.serial = itertools.count()

    def add(self, node: Node) -> None:
        """Remember a node if it may be evicted now."""
        if node.is_evictable and not node.is_queued:
            node.is_queued = True
            heapq.heappush(self.heap, (node.last_use, next(self.serial), node))

    def oldest(self) -> Node | None:
        """The evictable leaf used longest ago."""
        while self.heap:
            moment, _, node = self.heap[0]
            if node.is_evictable and node.last_use == moment:
                return node
            heapq.heappop(self.heap)
            node.is_queued = False
            self.add(node)
        return None


def agreeing_blocks(stored: list[int], tokens: Sequence[int], page_size: int) -> int:
    """How many leading blocks of two runs are the same: one comparison, or a binary search."""
    tokens = list(tokens)
    low, high = 0, min(len(stored), len(tokens)) // page_size
    if stored[: high * page_size] == tokens[: high * page_size]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        here = slice(low * page_size, middle * page_size)
        low, high = (middle, high) if stored[here] == tokens[here] else (low, middle)
    return low
