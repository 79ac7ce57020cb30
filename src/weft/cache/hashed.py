"""The hash prefix cache: chained hashes of whole blocks -> their pages.

    key of block k = sha256(key of block k - 1, its tokens)      key before the first: the namespace

A look-up is one dictionary access a block; eviction goes block by block, least recent use first,
the end of a chain before its beginning. After vLLM (Kwon 2023), with sha256 because a collision
would show one person's text to another. Differs from the radix tree in that it does not know which
prompts share what; differs from vLLM in that equal pages become one as soon as they are full.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256

from weft.cache.pages import PagePool
from weft.cache.prefix import OWNER, Exported, Match, Probe, block_limit, settle
from weft.cache.tables import Column, Tables
from weft.cache.windows import WindowPages, readable_blocks


class Block:
    """One cached block. `parent` is the block before it, or the namespace of the first."""

    __slots__ = ("column", "key", "last_use", "num_children", "parent", "tokens", "uses")

    def __init__(self, key: bytes, parent: Block | str, tokens: list[int], column: Column) -> None:
        self.key, self.parent, self.tokens, self.column = key, parent, tokens, column
        self.uses = 0
        """Matches that hold this block."""
        self.last_use = 0
        self.num_children = 0


class HashCache:
    """A prefix cache (prefix.py says what each method promises). A match's place is its chain."""

    def __init__(self, pool: PagePool, windows: Sequence[int | None]) -> None:
        self.pool, self.page_size = pool, pool.page_size
        self.window_sizes = list(windows)
        self.windows = WindowPages(pool, windows, OWNER)
        self.blocks: dict[bytes, Block] = {}
        self.unused: OrderedDict[bytes, Block] = OrderedDict()
        """Blocks without a match, the next victim first; a chain's end before its beginning."""
        self.version = 0

    def peek(self, probe: Probe) -> int:
        if probe.version != self.version:
            chain = self.chain(probe)
            probe.length = self.readable(chain) * self.page_size
            probe.version = self.version
        return probe.length

    def match(self, tokens: Sequence[int], namespace: str) -> Match:
        chain = self.chain(Probe(list(tokens), namespace))
        chain = chain[: self.readable(chain)]
        for block in chain:
            self.hold(block)
        columns = [block.column for block in chain]
        return Match(len(chain) * self.page_size, columns, (namespace, chain))

    def known(self, tokens: Sequence[int], namespace: str) -> list[Column]:
        # one token more, as a chain leaves out the last
        return [block.column for block in self.chain(Probe([*tokens, 0], namespace))]

    def chain(self, probe: Probe) -> list[Block]:
        """The leading blocks that are cached. Hashes that were needed stay in the probe."""
        found: list[Block] = []
        for index in range(block_limit(len(probe.tokens), self.page_size)):
            if index == len(probe.keys):
                parent = probe.keys[-1] if index else first_key(probe.namespace)
                start = index * self.page_size
                probe.keys.append(block_key(parent, probe.tokens[start : start + self.page_size]))
            block = self.blocks.get(probe.keys[index])
            if block is None:
                break
            found.append(block)
        return found

    def readable(self, chain: Sequence[Block]) -> int:
        if not self.windows.stripes:
            return len(chain)
        columns = [block.column for block in chain]
        return readable_blocks(columns, self.window_sizes, self.page_size)

    def hold(self, block: Block) -> None:
        if block.uses == 0:
            self.unused.pop(block.key, None)
        block.uses += 1

    def extend(self, match: Match, tokens: Sequence[int], tables: Tables, num_blocks: int) -> None:
        namespace, chain = match.place
        if len(chain) >= num_blocks:
            return
        for index in range(len(chain), num_blocks):
            run = list(tokens[index * self.page_size : (index + 1) * self.page_size])
            key = block_key(chain[-1].key if chain else first_key(namespace), run)
            block = self.blocks.get(key)
            if block is None:
                block = self.add(key, chain[-1] if chain else namespace, run, tables.column(index))
            else:
                settle(block.column, tables, index, self.windows)
            self.hold(block)
            chain.append(block)
        match.length = num_blocks * self.page_size
        self.version += 1

    def add(self, key: bytes, parent: Block | str, run: list[int], column: Column) -> Block:
        block = self.blocks[key] = Block(key, parent, run, column)
        if isinstance(parent, Block):
            parent.num_children += 1
        self.pool.keep(column, OWNER)
        self.windows.add(column)
        return block

    def fork(self, match: Match) -> Match:
        namespace, chain = match.place
        for block in chain:
            self.hold(block)
        return Match(match.length, [], (namespace, list(chain)))

    def passed(self, pages: Iterable[int]) -> None:
        self.windows.note(pages, self.pool.tick())

    def release(self, match: Match, pages: Iterable[int]) -> None:
        assert match.place is not None, f"a match of {match.length} tokens is released again"
        now, (_, chain) = self.pool.tick(), match.place
        for block in reversed(chain):
            block.uses -= 1
            if block.uses == 0:
                block.last_use = now
                self.unused[block.key] = block
        self.windows.note(pages, now)
        match.place = None

    def oldest(self) -> int | None:
        block, idle = next(iter(self.unused.values()), None), self.windows.oldest()
        if block is None or idle is None:
            return idle if block is None else block.last_use
        return min(block.last_use, idle)

    def evict_oldest(self, number: int) -> int:
        block, idle = next(iter(self.unused.values()), None), self.windows.oldest()
        self.version += 1
        if block is None or (idle is not None and idle < block.last_use):
            return self.windows.evict() if idle is not None else 0
        return self.remove(block)

    def remove(self, block: Block) -> int:
        assert not block.num_children, f"a block with {block.num_children} behind it is evicted"
        del self.unused[block.key], self.blocks[block.key]
        if isinstance(block.parent, Block):
            block.parent.num_children -= 1
        self.windows.forget(block.column)
        return self.pool.drop(block.column, OWNER)

    def columns(self) -> Iterator[Column]:
        return (block.column for block in self.blocks.values())

    def export(self) -> list[Exported]:
        now = self.pool.clock
        ends = [block for block in self.blocks.values() if not block.num_children]
        return [exported(block, now if block.uses else block.last_use) for block in ends]


def first_key(namespace: str) -> bytes:
    return sha256(namespace.encode()).digest()


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    return sha256(parent + array("q", tokens).tobytes()).digest()


def exported(last: Block, last_use: int) -> Exported:
    """The whole chain that ends with a block."""
    blocks, here = [], last
    while True:
        blocks.append(here)
        if isinstance(here.parent, str):
            break
        here = here.parent
    blocks.reverse()
    tokens = [token for block in blocks for token in block.tokens]
    return Exported(here.parent, tokens, [list(block.column) for block in blocks], last_use)
