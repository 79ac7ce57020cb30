"""The hash prefix cache: chained hashes of full pages -> page ids.

    key of block k = sha256(key of block k - 1, its tokens)      key before the first: the namespace

A look-up is one dictionary access per block. Eviction goes block by block, least recently used
first, the end of a chain before its beginning. After vLLM (Kwon 2023), with sha256 because a
collision would expose one user's text to another. Unlike the radix tree it does not know which
prompts share a prefix; unlike vLLM, equal pages are merged as soon as they are full.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256

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


class HashedPage:
    """One cached block. `parent` is the block before it, or the namespace of the first."""

    __slots__ = ("key", "last_use", "num_children", "page_ids", "parent", "tokens", "uses")

    def __init__(
        self, key: bytes, parent: HashedPage | str, tokens: list[int], page_ids: PageIds
    ) -> None:
        self.key, self.parent, self.tokens, self.page_ids = key, parent, tokens, page_ids
        self.uses = 0
        """Matches that lock this block."""
        self.last_use = 0
        self.num_children = 0


class HashCache:
    """A prefix cache (contract: prefix_cache.py). The handle of a match is (namespace, chain)."""

    def __init__(self, pool: PagePool, windows: Sequence[int | None]) -> None:
        self.pool, self.page_size = pool, pool.page_size
        self.window_sizes = list(windows)
        self.windows = WindowPages(pool, windows, OWNER)
        self.blocks: dict[bytes, HashedPage] = {}
        self.unused: OrderedDict[bytes, HashedPage] = OrderedDict()
        """Unlocked blocks, the next victim first; the end of a chain before its beginning."""
        self.version = 0

    def peek(self, query: PrefixQuery) -> int:
        if query.version != self.version:
            chain = self.chain(query)
            query.length = self.num_readable(chain) * self.page_size
            query.version = self.version
        return query.length

    def match(self, tokens: Sequence[int], namespace: str) -> PrefixMatch:
        chain = self.chain(PrefixQuery(list(tokens), namespace))
        chain = chain[: self.num_readable(chain)]
        for block in chain:
            self.lock(block)
        block_pages = [block.page_ids for block in chain]
        return PrefixMatch(len(chain) * self.page_size, block_pages, (namespace, chain))

    def lookup(self, tokens: Sequence[int], namespace: str) -> list[PageIds]:
        # one more token, because a chain leaves out the last
        return [block.page_ids for block in self.chain(PrefixQuery([*tokens, 0], namespace))]

    def chain(self, query: PrefixQuery) -> list[HashedPage]:
        """The leading blocks that are cached. Computed hashes are stored in the query."""
        chain: list[HashedPage] = []
        for index in range(max_match_blocks(len(query.tokens), self.page_size)):
            if index == len(query.keys):
                parent = query.keys[-1] if index else first_key(query.namespace)
                start = index * self.page_size
                query.keys.append(block_key(parent, query.tokens[start : start + self.page_size]))
            block = self.blocks.get(query.keys[index])
            if block is None:
                break
            chain.append(block)
        return chain

    def num_readable(self, chain: Sequence[HashedPage]) -> int:
        if not self.windows.groups:
            return len(chain)
        block_pages = [block.page_ids for block in chain]
        return num_readable_blocks(block_pages, self.window_sizes, self.page_size)

    def lock(self, block: HashedPage) -> None:
        if block.uses == 0:
            self.unused.pop(block.key, None)
        block.uses += 1

    def extend(
        self, match: PrefixMatch, tokens: Sequence[int], tables: PageTables, num_blocks: int
    ) -> None:
        namespace, chain = chain_of(match)
        if len(chain) >= num_blocks:
            return
        for index in range(len(chain), num_blocks):
            run = list(tokens[index * self.page_size : (index + 1) * self.page_size])
            key = block_key(chain[-1].key if chain else first_key(namespace), run)
            block = self.blocks.get(key)
            if block is None:
                parent = chain[-1] if chain else namespace
                block = self.add(key, parent, run, tables.page_ids(index))
            else:
                deduplicate(block.page_ids, tables, index, self.windows)
            self.lock(block)
            chain.append(block)
        match.length = num_blocks * self.page_size
        self.version += 1

    def add(
        self, key: bytes, parent: HashedPage | str, run: list[int], page_ids: PageIds
    ) -> HashedPage:
        block = self.blocks[key] = HashedPage(key, parent, run, page_ids)
        if isinstance(parent, HashedPage):
            parent.num_children += 1
        self.pool.add_to_cache(page_ids, OWNER)
        self.windows.add(page_ids)
        return block

    def fork(self, match: PrefixMatch) -> PrefixMatch:
        namespace, chain = chain_of(match)
        for block in chain:
            self.lock(block)
        return PrefixMatch(match.length, [], (namespace, list(chain)))

    def note_freed(self, pages: Iterable[int]) -> None:
        self.windows.note_freed(pages, self.pool.next_timestamp())

    def release(self, match: PrefixMatch, pages: Iterable[int]) -> None:
        now, (_, chain) = self.pool.next_timestamp(), chain_of(match)
        for block in reversed(chain):
            block.uses -= 1
            if block.uses == 0:
                block.last_use = now
                self.unused[block.key] = block
        self.windows.note_freed(pages, now)
        match.handle = None

    def oldest_use(self) -> int | None:
        block, window_use = next(iter(self.unused.values()), None), self.windows.oldest_use()
        if block is None or window_use is None:
            return window_use if block is None else block.last_use
        return min(block.last_use, window_use)

    def evict_oldest(self, number: int) -> int:
        block, window_use = next(iter(self.unused.values()), None), self.windows.oldest_use()
        self.version += 1
        if block is None or (window_use is not None and window_use < block.last_use):
            return self.windows.evict() if window_use is not None else 0
        return self.remove(block)

    def remove(self, block: HashedPage) -> int:
        assert not block.num_children, f"a block with {block.num_children} children is evicted"
        del self.unused[block.key], self.blocks[block.key]
        if isinstance(block.parent, HashedPage):
            block.parent.num_children -= 1
        self.windows.remove(block.page_ids)
        return self.pool.evict(block.page_ids, OWNER)

    def block_pages(self) -> Iterator[PageIds]:
        return (block.page_ids for block in self.blocks.values())

    def check(self, matches: Iterable[PrefixMatch]) -> None:
        uses: Counter[bytes] = Counter()
        for match in matches:
            uses.update(block.key for block in chain_of(match)[1])
        num_children = self.checked_children()
        for key, block in self.blocks.items():
            assert block.uses == uses[key], f"a block has {block.uses} uses of {uses[key]} matches"
            assert (key in self.unused) == (not block.uses), "a block is unused and locked"
            number = num_children[key]
            assert block.num_children == number, f"{block.num_children} children, not {number}"

    def recount(self) -> None:
        num_children, now = self.checked_children(), self.pool.next_timestamp()
        depths: dict[bytes, int] = {}
        for block in reversed(self.chain_ends(num_children)):
            depths[block.key] = len(depths)
        last_use = {key: now if one.uses else one.last_use for key, one in self.blocks.items()}
        # in the order of `depths` every block comes after the one before it in its chain
        for key in reversed(depths):
            parent = self.blocks[key].parent
            if isinstance(parent, HashedPage):
                last_use[parent.key] = max(last_use[parent.key], last_use[key])
        order = sorted(depths, key=lambda key: (last_use[key], -depths[key]))
        self.version += 1
        self.windows = WindowPages(self.pool, self.window_sizes, OWNER)
        self.unused = OrderedDict((key, self.blocks[key]) for key in order)
        for key, block in self.unused.items():
            block.uses, block.last_use, block.num_children = 0, last_use[key], num_children[key]
            self.windows.add_unused(block.page_ids, block.last_use)

    def chain_ends(self, num_children: Counter[bytes]) -> list[HashedPage]:
        """All blocks, each before the one that it continues."""
        left = Counter(num_children)
        order = [block for key, block in self.blocks.items() if not num_children[key]]
        for block in order:  # parents are appended while it runs
            if isinstance(block.parent, HashedPage):
                left[block.parent.key] -= 1
                if not left[block.parent.key]:
                    order.append(block.parent)
        return order

    def clear(self) -> None:
        self.blocks, self.unused = {}, OrderedDict()
        self.version += 1
        self.windows = WindowPages(self.pool, self.window_sizes, OWNER)

    def checked_children(self) -> Counter[bytes]:
        """The number of blocks that continue each block; an AssertionError if a block is
        inconsistent or continues one that is not cached."""
        num_children: Counter[bytes] = Counter()
        for key, block in self.blocks.items():
            parent = block.parent
            if isinstance(parent, HashedPage):
                assert self.blocks.get(parent.key) is parent, "a block continues an evicted one"
                num_children[parent.key] += 1
            assert key == block.key and len(block.tokens) == self.page_size, "a damaged block"
            check_block(block.page_ids, self.window_sizes)
        return num_children

    def export(self) -> list[CachedRun]:
        now = self.pool.clock
        ends = [block for block in self.blocks.values() if not block.num_children]
        return [run_ending_with(block, now if block.uses else block.last_use) for block in ends]

    def tree(self) -> dict[int, TreeNode]:
        return {}


def first_key(namespace: str) -> bytes:
    return sha256(namespace.encode()).digest()


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    return sha256(parent + array("q", tokens).tobytes()).digest()


def run_ending_with(last: HashedPage, last_use: int) -> CachedRun:
    """The complete chain that ends with a block."""
    blocks, block = [], last
    while True:
        blocks.append(block)
        if isinstance(block.parent, str):
            break
        block = block.parent
    blocks.reverse()
    tokens = [token for block in blocks for token in block.tokens]
    return CachedRun(block.parent, tokens, [list(block.page_ids) for block in blocks], last_use)


def chain_of(match: PrefixMatch) -> tuple[str, list[HashedPage]]:
    """The namespace and the pages of a match."""
    assert isinstance(match.handle, tuple), f"a match of {match.length} tokens is released already"
    return match.handle
