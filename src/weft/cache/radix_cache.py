"""The radix tree: token ids -> pages of the longest cached prefix, over page-aligned runs.

    before   [a b | c d | e f]            a match of (a b c d x y) ends inside the node:
    split    [a b | c d] - [e f]          the first part becomes a parent, no page is copied
    insert   [a b | c d] - [e f]
                         \\ [x y]

A node's lock count is the number of sequences that end at or below it; an unlocked leaf can be
evicted, least recently used first and from its end. After SGLang's RadixAttention (Zheng 2023),
with three differences: a block has one page per KV cache group; pages outside of a sliding window
may be missing (prefix_cache.py); and a leaf used by a single sequence grows in place, so that
decoding does not create a chain of tiny nodes.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from weft.cache.events import TreeEvent, TreeEventKind
from weft.cache.page_pool import PagePool
from weft.cache.page_tables import PageIds, PageTables
from weft.cache.prefix_cache import (
    OWNER,
    CachedRun,
    PrefixMatch,
    PrefixQuery,
    WindowPages,
    check_block,
    deduplicate,
    max_match_blocks,
    num_readable_blocks,
)
from weft.cache.replay import TreeNode


class RadixNode:
    """A run of full blocks. The root of a namespace has none, and no parent."""

    __slots__ = (
        "block_pages",
        "children",
        "end",
        "id",
        "is_queued",
        "last_use",
        "locks",
        "namespace",
        "parent",
        "tokens",
        "was_shortened",
    )

    def __init__(
        self,
        parent: RadixNode | None,
        tokens: list[int],
        block_pages: list[PageIds],
        namespace: str,
        number: int,
    ) -> None:
        self.id = number
        self.parent, self.tokens, self.block_pages = parent, tokens, block_pages
        self.namespace = namespace
        self.end: int = len(tokens) + (parent.end if parent is not None else 0)
        """Tokens from the root to the end of the run."""
        self.children: dict[tuple[int, ...], RadixNode] = {}
        """By the tokens of the child's first block."""
        self.locks = 0
        """Matches that end here or below."""
        self.last_use = 0
        self.is_queued = False
        """It has an entry in the LRU queue."""
        self.was_shortened = False
        """It lost blocks at its end and never grows again, so that an equal end implies an equal
        run (`RadixCache.resume_node`)."""

    @property
    def is_evictable(self) -> bool:
        return not self.locks and not self.children and self.parent is not None

    @property
    def can_grow(self) -> bool:
        """A leaf whose only lock is the caller's."""
        is_leaf = not self.children and self.parent is not None
        return is_leaf and self.locks == 1 and not self.was_shortened


class LRUQueue:
    """Unlocked leaves by last use: a heap of (last use, serial number, node), at most one entry per
    node. An entry is a lower bound: a node that was used, locked or given children since is
    corrected when it reaches the top. So using a node costs nothing here, and evicting one never
    scans the tree."""

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, RadixNode]] = []
        self.serial = itertools.count()

    def add(self, node: RadixNode) -> None:
        """Queue a node if it can be evicted now."""
        if node.is_evictable and not node.is_queued:
            node.is_queued = True
            heapq.heappush(self.heap, (node.last_use, next(self.serial), node))

    def oldest(self) -> RadixNode | None:
        """The least recently used evictable leaf."""
        while self.heap:
            timestamp, _, node = self.heap[0]
            if node.is_evictable and node.last_use == timestamp:
                return node
            heapq.heappop(self.heap)
            node.is_queued = False
            self.add(node)
        return None


Path = list[tuple[RadixNode, int]]
"""Nodes from the root on, each with its number of matching blocks."""


class RadixCache:
    """A prefix cache (contract: prefix_cache.py). The handle of a match is its last node."""

    def __init__(self, pool: PagePool, windows: Sequence[int | None]) -> None:
        self.pool, self.page_size = pool, pool.page_size
        self.window_sizes = list(windows)
        self.windows = WindowPages(pool, windows, OWNER)
        self.roots: dict[str, RadixNode] = {}
        self.version = 0
        self.leaves = LRUQueue()
        self.next_id = itertools.count(1).__next__

    def peek(self, query: PrefixQuery) -> int:
        if query.version != self.version:
            start = self.resume_node(query)
            path = self.walk(query.tokens, start)
            before = 0 if start is None else start.end
            query.length = before + self.num_readable(path) * self.page_size
            query.version = self.version
            if path and not self.windows.groups:
                complete = [node for node, k in path if k == len(node.block_pages)]
                last = complete[-1] if complete else start
                assert last is not None, "a path without a root"
                query.node, query.node_end = last, last.end
        return query.length

    def resume_node(self, query: PrefixQuery) -> RadixNode | None:
        """Where the last look-up of a query can continue: its node, if it is still in the tree and
        ends where it did (a split keeps the end of a node). Otherwise the root."""
        node = query.node
        if not isinstance(node, RadixNode) or node.parent is None or node.end != query.node_end:
            return self.roots.get(query.namespace)
        return node

    def match(self, tokens: Sequence[int], namespace: str) -> PrefixMatch:
        path = self.walk(tokens, self.roots.get(namespace))
        num_blocks = self.num_readable(path)
        block_pages = [pages for node, k in path for pages in node.block_pages[:k]][:num_blocks]
        node = self.node_at(path, num_blocks, namespace)
        self.lock(node, None)
        return PrefixMatch(num_blocks * self.page_size, block_pages, node)

    def lookup(self, tokens: Sequence[int], namespace: str) -> list[PageIds]:
        # one more token, because a walk leaves out the last
        path = self.walk([*tokens, 0], self.roots.get(namespace))
        return [page_ids for node, k in path for page_ids in node.block_pages[:k]]

    def walk(self, tokens: Sequence[int], node: RadixNode | None) -> Path:
        """The path of the tokens below `node`."""
        R, path, at = self.page_size, Path(), 0 if node is None else node.end
        limit = max_match_blocks(len(tokens), R) * R
        while node is not None and at < limit:
            node = node.children.get(tuple(tokens[at : at + R]))
            if node is not None:
                rest = tokens[at : min(limit, at + len(node.tokens))]
                k = num_matching_blocks(node.tokens, rest, R)
                path.append((node, k))
                at += k * R
                if k < len(node.block_pages):
                    break
        return path

    def num_readable(self, path: Path) -> int:
        """Number of usable blocks of a path: all, or those after which all windows are there."""
        if not self.windows.groups:
            return sum(k for _, k in path)
        block_pages = [page_ids for node, k in path for page_ids in node.block_pages[:k]]
        return num_readable_blocks(block_pages, self.window_sizes, self.page_size)

    def node_at(self, path: Path, num_blocks: int, namespace: str) -> RadixNode:
        """The node that ends after `num_blocks` of a path; splits a node if none does."""
        last = self.roots.get(namespace)
        if last is None:
            last = self.roots[namespace] = RadixNode(None, [], [], namespace, self.next_id())
            self.emit_added(last)
        for node, _ in path:
            if num_blocks == 0:
                break
            k = min(num_blocks, len(node.block_pages))
            last = self.split(node, k) if k < len(node.block_pages) else node
            num_blocks -= k
        return last

    def split(self, node: RadixNode, num_blocks: int) -> RadixNode:
        """Move the first blocks of a node to a new parent; locks at its end stay with the node."""
        R, parent = self.page_size, node.parent
        assert parent is not None and 0 < num_blocks < len(node.block_pages), (
            f"a node of {len(node.block_pages)} blocks is split after {num_blocks}"
        )
        leading_tokens, leading_pages = node.tokens[: num_blocks * R], node.block_pages[:num_blocks]
        first = RadixNode(parent, leading_tokens, leading_pages, node.namespace, self.next_id())
        first.locks, first.last_use = node.locks, node.last_use
        parent.children[tuple(first.tokens[:R])] = first
        node.tokens, node.block_pages = node.tokens[num_blocks * R :], node.block_pages[num_blocks:]
        node.parent = first
        first.children[tuple(node.tokens[:R])] = node
        self.emit("node_split", node, parent=first.id, number=num_blocks)
        return first

    def extend(
        self, match: PrefixMatch, tokens: Sequence[int], tables: PageTables, num_blocks: int
    ) -> None:
        R, start, node = self.page_size, node_of(match), node_of(match)
        at = match.length // R
        if at >= num_blocks:
            return
        while at < num_blocks:
            child = node.children.get(tuple(tokens[at * R : (at + 1) * R]))
            if child is None:
                node = self.add(node, start, tokens, tables, range(at, num_blocks))
                break
            k = num_matching_blocks(child.tokens, tokens[at * R : num_blocks * R], R)
            node = self.split(child, k) if k < len(child.block_pages) else child
            for block, page_ids in enumerate(node.block_pages, at):
                if deduplicate(page_ids, tables, block, self.windows):
                    self.emit("node_filled", node, blocks=[[*page_ids]], number=block - at)
            at += k
        self.lock(node, start)
        match.length, match.handle = num_blocks * R, node
        self.version += 1

    def add(
        self,
        node: RadixNode,
        start: RadixNode,
        tokens: Sequence[int],
        tables: PageTables,
        blocks: range,
    ) -> RadixNode:
        """Cache new blocks below a node; return the node that ends with them. `start` is the node
        that the caller has locked: if it is a leaf without other locks, it grows."""
        run = list(tokens[blocks.start * self.page_size : blocks.stop * self.page_size])
        block_pages = [tables.page_ids(block) for block in blocks]
        for page_ids in block_pages:
            self.pool.add_to_cache(page_ids, OWNER)
            self.windows.add(page_ids)
        if node is start and node.can_grow:
            node.tokens += run
            node.block_pages += block_pages
            node.end += len(run)
            if self.pool.listener is not None:
                copied = [list(page_ids) for page_ids in block_pages]
                self.emit("node_grown", node, tokens=run, blocks=copied)
            return node
        leaf = RadixNode(node, run, block_pages, node.namespace, self.next_id())
        node.children[tuple(run[: self.page_size])] = leaf
        self.emit_added(leaf)
        return leaf

    def lock(self, node: RadixNode, above: RadixNode | None) -> None:
        """Add one lock from `node` up to, not including, `above`; updates access times."""
        now = self.pool.next_timestamp()
        current: RadixNode | None = node
        while current is not above:
            assert current is not None, "a lock climbed past the node it was to stop at"
            current.locks += 1
            current.last_use = now
            current = current.parent
        if self.pool.listener is not None:
            self.emit_locks("locked", node, above)

    def fork(self, match: PrefixMatch) -> PrefixMatch:
        node = node_of(match)
        self.lock(node, None)
        return PrefixMatch(match.length, [], node)

    def note_freed(self, pages: Iterable[int]) -> None:
        self.windows.note_freed(pages, self.pool.next_timestamp())

    def release(self, match: PrefixMatch, pages: Iterable[int]) -> None:
        now, root = self.pool.next_timestamp(), node_of(match)
        node: RadixNode | None = root
        while node is not None:
            node.locks -= 1
            assert node.locks >= 0, (
                f"a node of {len(node.block_pages)} blocks has {node.locks} locks"
            )
            node.last_use = now
            self.leaves.add(node)
            root, node = node, node.parent
        if self.pool.listener is not None:
            self.emit_locks("unlocked", node_of(match), None)
        self.windows.note_freed(pages, now)
        self.remove_unused_root(root)
        match.handle = None

    def oldest_use(self) -> int | None:
        leaf, window_use = self.leaves.oldest(), self.windows.oldest_use()
        if leaf is None or window_use is None:
            return window_use if leaf is None else leaf.last_use
        return min(leaf.last_use, window_use)

    def evict_oldest(self, number: int) -> int:
        leaf, window_use = self.leaves.oldest(), self.windows.oldest_use()
        self.version += 1
        if leaf is None or (window_use is not None and window_use < leaf.last_use):
            return self.windows.evict() if window_use is not None else 0
        return self.shorten(leaf, number)

    def shorten(self, leaf: RadixNode, number: int) -> int:
        """Evict blocks from the end of a leaf until `number` pages are free or the leaf is empty;
        return how many pages became free."""
        key, num_freed = tuple(leaf.tokens[: self.page_size]), 0
        while leaf.block_pages and num_freed < number:
            page_ids = leaf.block_pages.pop()
            self.windows.remove(page_ids)
            num_freed += self.pool.evict(page_ids, OWNER)
        del leaf.tokens[len(leaf.block_pages) * self.page_size :]
        assert leaf.parent is not None, "a root is no leaf"
        leaf.end, leaf.was_shortened = leaf.parent.end + len(leaf.tokens), True
        if leaf.block_pages:
            self.emit("node_shortened", leaf, number=len(leaf.block_pages))
        else:
            self.remove(leaf, key)
        return num_freed

    def remove(self, leaf: RadixNode, key: tuple[int, ...]) -> None:
        """Remove an empty leaf; its parent may be the next victim."""
        parent = leaf.parent
        assert parent is not None, "a root is no leaf"
        del parent.children[key]
        leaf.parent = None
        self.emit("node_removed", leaf)
        self.leaves.add(parent)
        self.remove_unused_root(parent)

    def remove_unused_root(self, node: RadixNode) -> None:
        """Remove the root of a namespace that has no nodes and no locks."""
        if node.parent is None and not node.children and not node.locks:
            del self.roots[node.namespace]
            self.emit("node_removed", node)

    def emit(self, kind: TreeEventKind, node: RadixNode, **fields: Any) -> None:
        """Report a change of a node to the listener, if there is one."""
        if self.pool.listener is not None:
            self.pool.listener(TreeEvent(kind, self.pool.step, node.id, **fields))

    def emit_locks(
        self, kind: TreeEventKind, node: RadixNode | None, above: RadixNode | None
    ) -> None:
        """Report the locks from `node` up to, not including, `above`."""
        while node is not None and node is not above:
            self.emit(kind, node, number=node.locks, last_use=node.last_use)
            node = node.parent

    def emit_added(self, node: RadixNode) -> None:
        if self.pool.listener is not None:
            self.pool.listener(copy_node(node).added_event(node.id, self.pool.step))

    def nodes(self) -> Iterator[tuple[str, list[int], list[PageIds], RadixNode]]:
        """Each node with its namespace and all tokens and pages from the root to its end."""
        for name, root in self.roots.items():
            stack: list[tuple[list[int], list[PageIds], RadixNode]] = [([], [], root)]
            while stack:
                tokens, block_pages, node = stack.pop()
                tokens, block_pages = tokens + node.tokens, block_pages + node.block_pages
                yield name, tokens, block_pages, node
                stack.extend((tokens, block_pages, child) for child in node.children.values())

    def block_pages(self) -> Iterator[PageIds]:
        for _, _, _, node in self.nodes():
            yield from node.block_pages

    def check(self, matches: Iterable[PrefixMatch]) -> None:
        locks: Counter[int] = Counter()
        for match in matches:
            node: RadixNode | None = node_of(match)
            while node is not None:
                locks[id(node)] += 1
                node = node.parent
        for node in self.checked_nodes():
            number = locks.pop(id(node), 0)
            assert node.locks == number, f"a node has {node.locks} locks of {number} matches"
        assert not locks, f"{len(locks)} locked nodes are not in the tree"

    def recount(self) -> None:
        nodes = sorted(self.checked_nodes(), key=lambda node: node.last_use)
        self.version += 1
        self.leaves = LRUQueue()
        self.windows = WindowPages(self.pool, self.window_sizes, OWNER)
        self.roots = {name: root for name, root in self.roots.items() if root.children}
        for node in nodes:
            node.locks, node.is_queued = 0, False
            self.leaves.add(node)
            for page_ids in node.block_pages:
                self.windows.add_unused(page_ids, node.last_use)

    def clear(self) -> None:
        self.roots = {}
        self.version += 1
        self.leaves = LRUQueue()
        self.windows = WindowPages(self.pool, self.window_sizes, OWNER)

    def checked_nodes(self) -> list[RadixNode]:
        """All nodes; an AssertionError if one does not continue its parent."""
        nodes = list(self.roots.values())
        for name, root in self.roots.items():
            is_root = root.parent is None and root.namespace == name and not root.end
            assert is_root and not root.block_pages, f"the root of {name!r} has tokens or a parent"
        for node in nodes:  # children are appended while it runs
            for key, child in node.children.items():
                self.check_child(node, key, child)
                nodes.append(child)
        return nodes

    def check_child(self, node: RadixNode, key: tuple[int, ...], child: RadixNode) -> None:
        R, length = self.page_size, len(child.tokens)
        assert child.parent is node and child.namespace == node.namespace, "a child elsewhere"
        assert length == len(child.block_pages) * R > 0, (
            f"a node has {length} tokens in {len(child.block_pages)} blocks of {R}"
        )
        assert key == tuple(child.tokens[:R]), f"a child with tokens {child.tokens[:R]} is at {key}"
        assert child.end == node.end + length, f"{child.end} is not {node.end} + {length}"
        for page_ids in child.block_pages:
            check_block(page_ids, self.window_sizes)

    def export(self) -> list[CachedRun]:
        return [
            CachedRun(name, tokens, [list(page_ids) for page_ids in block_pages], node.last_use)
            for name, tokens, block_pages, node in self.nodes()
            if not node.children and tokens
        ]

    def tree(self) -> dict[int, TreeNode]:
        nodes = list(self.roots.values())
        for node in nodes:  # children are appended while it runs
            nodes += node.children.values()
        return {node.id: copy_node(node) for node in nodes}


def copy_node(node: RadixNode) -> TreeNode:
    """A node as others see it."""
    return TreeNode(
        None if node.parent is None else node.parent.id,
        node.namespace,
        list(node.tokens),
        [list(page_ids) for page_ids in node.block_pages],
        node.locks,
        node.last_use,
    )


def num_matching_blocks(stored: list[int], tokens: Sequence[int], page_size: int) -> int:
    """Number of equal leading blocks of two runs: one comparison, or a binary search."""
    tokens = list(tokens)
    low, high = 0, min(len(stored), len(tokens)) // page_size
    if stored[: high * page_size] == tokens[: high * page_size]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        part = slice(low * page_size, middle * page_size)
        low, high = (middle, high) if stored[part] == tokens[part] else (low, middle)
    return low


def node_of(match: PrefixMatch) -> RadixNode:
    """The last node of a match."""
    node = match.handle
    assert isinstance(node, RadixNode), f"a match of {match.length} tokens is released already"
    return node
