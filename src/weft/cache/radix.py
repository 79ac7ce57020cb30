"""The radix tree: token ids -> pages of the longest cached prefix, over page-aligned runs.

    before   [a b | c d | e f]            a match of (a b c d x y) ends inside the node:
    split    [a b | c d] - [e f]          the first part becomes a parent, no page moves
    insert   [a b | c d] - [e f]
                         \\ [x y]

Locks count the sequences at or below a node; an unlocked leaf can be evicted, least recently used
first and from its end on. After SGLang's RadixAttention (Zheng 2024), with three differences: one
page table column (a page for each stripe) a block, tombstones for windows (windows.py), and a leaf
that only its own sequence uses grows in place, so that decoding makes no chain of tiny nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from weft.cache.leaves import Leaves, Node, agreeing_blocks
from weft.cache.pages import PagePool
from weft.cache.prefix import OWNER, Exported, Match, Probe, block_limit, settle
from weft.cache.tables import Column, Tables
from weft.cache.windows import WindowPages, readable_blocks


class RadixCache:
    """A prefix cache (prefix.py says what each method promises)."""

    def __init__(self, pool: PagePool, windows: Sequence[int | None]) -> None:
        self.pool, self.page_size = pool, pool.page_size
        self.window_sizes = list(windows)
        self.windows = WindowPages(pool, windows, OWNER)
        self.roots: dict[str, Node] = {}
        self.version = 0
        self.leaves = Leaves()

    def peek(self, probe: Probe) -> int:
        if probe.version != self.version:
            start = self.last_place(probe)
            path = self.walk(probe.tokens, start)
            before = 0 if start is None else start.end
            probe.length = before + self.readable(path) * self.page_size
            probe.version = self.version
            if path and not self.windows.stripes:
                whole = [node for node, k in path if k == len(node.columns)]
                probe.place = whole[-1] if whole else start
                probe.place_end = probe.place.end
        return probe.length

    def last_place(self, probe: Probe) -> Node | None:
        """Where the last look at a probe can be gone on with: its node is there and ends where it
        did (a split keeps the end of a node). Otherwise the root."""
        node: Node | None = probe.place
        if node is not None and node.parent is not None and node.end == probe.place_end:
            return node
        return self.roots.get(probe.namespace)

    def match(self, tokens: Sequence[int], namespace: str) -> Match:
        path = self.walk(tokens, self.roots.get(namespace))
        blocks = self.readable(path)
        columns = [column for node, k in path for column in node.columns[:k]][:blocks]
        node = self.node_at(path, blocks, namespace)
        self.lock(node, None)
        return Match(blocks * self.page_size, columns, node)

    def known(self, tokens: Sequence[int], namespace: str) -> list[Column]:
        # one token more, as a walk leaves out the last
        path = self.walk([*tokens, 0], self.roots.get(namespace))
        return [column for node, k in path for column in node.columns[:k]]

    def walk(self, tokens: Sequence[int], node: Node | None) -> list[tuple[Node, int]]:
        """Nodes on the way of the tokens behind `node`, each with how many blocks agree."""
        R, path, at = self.page_size, [], 0 if node is None else node.end
        limit = block_limit(len(tokens), R) * R
        while node is not None and at < limit:
            node = node.children.get(tuple(tokens[at : at + R]))
            if node is not None:
                k = agreeing_blocks(node.tokens, tokens[at : min(limit, at + len(node.tokens))], R)
                path.append((node, k))
                at += k * R
                if k < len(node.columns):
                    break
        return path

    def readable(self, path: list[tuple[Node, int]]) -> int:
        """How many of the blocks on a path can be used: all, or back to where the windows are."""
        if not self.windows.stripes:
            return sum(k for _, k in path)
        columns = [column for node, k in path for column in node.columns[:k]]
        return readable_blocks(columns, self.window_sizes, self.page_size)

    def node_at(self, path: list[tuple[Node, int]], blocks: int, namespace: str) -> Node:
        """The node that ends after so many blocks of a path; one is split if none does."""
        place = self.roots.get(namespace)
        if place is None:
            place = self.roots[namespace] = Node(None, [], [], namespace)
        for node, _ in path:
            if blocks == 0:
                break
            take = min(blocks, len(node.columns))
            place = self.split(node, take) if take < len(node.columns) else node
            blocks -= take
        return place

    def split(self, node: Node, blocks: int) -> Node:
        """The first blocks of a node become its parent; locks at its end stay with the node."""
        R, parent = self.page_size, node.parent
        assert parent is not None and 0 < blocks < len(node.columns), f"a split after {blocks}"
        first = Node(parent, node.tokens[: blocks * R], node.columns[:blocks], node.namespace)
        first.locks, first.last_use = node.locks, node.last_use
        parent.children[tuple(first.tokens[:R])] = first
        node.tokens, node.columns = node.tokens[blocks * R :], node.columns[blocks:]
        node.parent = first
        first.children[tuple(node.tokens[:R])] = node
        return first

    def extend(self, match: Match, tokens: Sequence[int], tables: Tables, num_blocks: int) -> None:
        R, start, node = self.page_size, match.place, match.place
        at = match.length // R
        if at >= num_blocks:
            return
        while at < num_blocks:
            child = node.children.get(tuple(tokens[at * R : (at + 1) * R]))
            if child is None:
                node = self.add(node, start, tokens, tables, range(at, num_blocks))
                break
            k = agreeing_blocks(child.tokens, tokens[at * R : num_blocks * R], R)
            node = self.split(child, k) if k < len(child.columns) else child
            for block, column in enumerate(node.columns, at):
                settle(column, tables, block, self.windows)
            at += k
        self.lock(node, start)
        match.length, match.place = num_blocks * R, node
        self.version += 1

    def add(
        self, node: Node, start: Node, tokens: Sequence[int], tables: Tables, blocks: range
    ) -> Node:
        """Hold new blocks behind a node; the node that ends with them. `start` is where the caller
        has its lock: if it is a leaf with no other, it grows."""
        run = list(tokens[blocks.start * self.page_size : blocks.stop * self.page_size])
        columns = [tables.column(block) for block in blocks]
        for column in columns:
            self.pool.keep(column, OWNER)
            self.windows.add(column)
        if node is start and node.can_grow:
            node.tokens += run
            node.columns += columns
            node.end += len(run)
            return node
        leaf = Node(node, run, columns, node.namespace)
        node.children[tuple(run[: self.page_size])] = leaf
        return leaf

    def lock(self, node: Node, above: Node | None) -> None:
        """One more lock from `node` up to, not including, `above`; ages are refreshed."""
        now = self.pool.tick()
        here: Node | None = node
        while here is not above:
            assert here is not None, "a lock climbed past the node it was to stop at"
            here.locks += 1
            here.last_use = now
            here = here.parent

    def fork(self, match: Match) -> Match:
        self.lock(match.place, None)
        return Match(match.length, [], match.place)

    def passed(self, pages: Iterable[int]) -> None:
        self.windows.note(pages, self.pool.tick())

    def release(self, match: Match, pages: Iterable[int]) -> None:
        now, node, root = self.pool.tick(), match.place, match.place
        assert node is not None, f"a match of {match.length} tokens is released a second time"
        while node is not None:
            node.locks -= 1
            assert node.locks >= 0, f"a node of {len(node.columns)} blocks has {node.locks} locks"
            node.last_use = now
            self.leaves.add(node)
            root, node = node, node.parent
        self.windows.note(pages, now)
        self.forget_root(root)
        match.place = None

    def oldest(self) -> int | None:
        leaf, idle = self.leaves.oldest(), self.windows.oldest()
        if leaf is None or idle is None:
            return idle if leaf is None else leaf.last_use
        return min(leaf.last_use, idle)

    def evict_oldest(self, number: int) -> int:
        leaf, idle = self.leaves.oldest(), self.windows.oldest()
        self.version += 1
        if leaf is None or (idle is not None and idle < leaf.last_use):
            return self.windows.evict() if idle is not None else 0
        return self.shorten(leaf, number)

    def shorten(self, leaf: Node, number: int) -> int:
        """Take blocks from the end of a leaf until `number` pages are free or the leaf is gone."""
        key, freed = tuple(leaf.tokens[: self.page_size]), 0
        while leaf.columns and freed < number:
            column = leaf.columns.pop()
            self.windows.forget(column)
            freed += self.pool.drop(column, OWNER)
        del leaf.tokens[len(leaf.columns) * self.page_size :]
        assert leaf.parent is not None, "a root is no leaf"
        leaf.end, leaf.was_shortened = leaf.parent.end + len(leaf.tokens), True
        if not leaf.columns:
            self.remove(leaf, key)
        return freed

    def remove(self, leaf: Node, key: tuple[int, ...]) -> None:
        """An empty leaf leaves the tree; its parent may be the next victim."""
        parent = leaf.parent
        assert parent is not None, "a root is no leaf"
        del parent.children[key]
        leaf.parent = None
        self.leaves.add(parent)
        self.forget_root(parent)

    def forget_root(self, node: Node) -> None:
        """An unused namespace leaves no trace."""
        if node.parent is None and not node.children and not node.locks:
            del self.roots[node.namespace]

    def nodes(self) -> Iterator[tuple[str, list[int], list[Column], Node]]:
        """Each node with its namespace and all tokens and columns from the root to its end."""
        for name, root in self.roots.items():
            stack: list[tuple[list[int], list[Column], Node]] = [([], [], root)]
            while stack:
                tokens, columns, node = stack.pop()
                tokens, columns = tokens + node.tokens, columns + node.columns
                yield name, tokens, columns, node
                stack.extend((tokens, columns, child) for child in node.children.values())

    def columns(self) -> Iterator[Column]:
        for _, _, _, node in self.nodes():
            yield from node.columns

    def export(self) -> list[Exported]:
        return [
            Exported(name, tokens, [list(column) for column in columns], node.last_use)
            for name, tokens, columns, node in self.nodes()
            if not node.children and tokens
        ]
