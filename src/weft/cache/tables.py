"""The page tables of one sequence: slot -> page, one table a stripe of self-attention.

    slots   0 .. 15 | 16 .. 31 | 32 .. 47        page of slot s is table[s // R], row s % R
    full        7   |     2    |    9
    window      0   |     5    |    4            0: the window has passed, the page is given back

`fork` shares all pages; whoever writes first into a shared last page gets a `Copy` of it, which the
runner executes before the pass. Tables are arrays of 32-bit integers, so that a runner can read
them without a loop. Differs from vLLM's: a table may be rewritten to an equal page that a cache
holds already (`replace`), so that no two copies of one prefix stay.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from weft.cache.pages import NULL_PAGE, PagePool

Column = list[int]
"""The pages of R tokens: one a stripe of self-attention; null where a window's page is gone."""


class Copy(NamedTuple):
    """Copy the first rows of page `source` to page `target`, all layers of its stripe."""

    source: int
    target: int
    rows: int
    """Those that hold something; the next is about to be written."""


def blocks_for(num_slots: int, page_size: int) -> int:
    """Pages that so many slots begin."""
    return -(-num_slots // page_size)


def first_block(slot: int, window: int | None, page_size: int) -> int:
    """The first block that a query at `slot` or later still reads."""
    return 0 if window is None else max(0, slot - window + 1) // page_size


class Tables:
    """Holds one reference to every page in it, under the name `owner`."""

    def __init__(self, pool: PagePool, windows: Sequence[int | None], owner: str) -> None:
        self.pool, self.windows, self.owner = pool, windows, owner
        self.has_windows = any(window is not None for window in windows)
        self.pages = [array("i") for _ in windows]
        self.passed = [0] * len(windows)
        """Blocks of each stripe that its window has left behind."""

    @property
    def num_blocks(self) -> int:
        return len(self.pages[0])

    def column(self, block: int) -> Column:
        return [table[block] for table in self.pages]

    def adopt(self, columns: Sequence[Column]) -> None:
        """Begin with a cached prefix; windows take only what the next query can still read."""
        R = self.pool.page_size
        for stripe, (table, window) in enumerate(zip(self.pages, self.windows, strict=True)):
            first = first_block(len(columns) * R, window, R)
            table.extend([NULL_PAGE] * first)
            table.extend([column[stripe] for column in columns[first:]])
            self.passed[stripe] = first
            self.pool.share(table[first:], self.owner)

    def shared_at(self, slot: int) -> list[int]:
        """Stripes whose page of this slot has other holders: they must be copied to be written."""
        block, counts = slot // self.pool.page_size, self.pool.counts
        if block >= self.num_blocks:
            return []
        return [i for i, table in enumerate(self.pages) if counts[table[block]] > 1]

    def needs(self, start: int, end: int) -> int:
        """Pages that must be allocated before slots `start` to `end` - 1 can be written."""
        # plain loops: every sequence asks this in every step
        pool, pages = self.pool, self.pages
        num_blocks, block = len(pages[0]), start // pool.page_size
        number = max(0, -(-end // pool.page_size) - num_blocks) * len(pages)
        if block < num_blocks:
            for table in pages:
                if pool.counts[table[block]] > 1:
                    number += 1
        return number

    def grow(self, start: int, end: int, fresh: Sequence[int]) -> list[Copy]:
        """Make slots `start` to `end` - 1 writable with as many fresh pages as `needs` said."""
        rest = list(fresh)
        copies = [self.own_page(stripe, start, rest.pop()) for stripe in self.shared_at(start)]
        new = max(0, blocks_for(end, self.pool.page_size) - self.num_blocks)
        for table in self.pages:
            table.extend(rest[:new])
            del rest[:new]
        assert not rest, f"{self.owner} got {len(rest)} pages more than it needs"
        return copies

    def own_page(self, stripe: int, slot: int, fresh: int) -> Copy:
        """Put a fresh page in place of a shared one."""
        block = slot // self.pool.page_size
        source = self.pages[stripe][block]
        self.pages[stripe][block] = fresh
        self.pool.tell("copy", [fresh], self.owner, source)
        self.pool.free([source], self.owner)
        return Copy(source, fresh, slot % self.pool.page_size)

    def replace(self, stripe: int, block: int, page: int) -> None:
        """Hold an equal page in place of the own one."""
        mine = self.pages[stripe][block]
        self.pool.share([page], self.owner)
        self.pages[stripe][block] = page
        self.pool.free([mine], self.owner)

    def fork(self, owner: str, num_slots: int) -> Tables:
        """Tables that share the pages of the first `num_slots` slots."""
        twin = Tables(self.pool, self.windows, owner)
        blocks = blocks_for(num_slots, self.pool.page_size)
        twin.pages = [table[:blocks] for table in self.pages]
        twin.passed = list(self.passed)
        for table, passed in zip(twin.pages, twin.passed, strict=True):
            self.pool.share(table[passed:], owner)
        return twin

    def front(self, blocks: int) -> list[array[int]]:
        """The first pages of each stripe."""
        return [table[:blocks] for table in self.pages]

    def exchange(self, front: Sequence[array[int]]) -> list[int]:
        """Begin with pages that are shared with `owner` already; the pages given back for them."""
        given: list[int] = []
        for table, pages in zip(self.pages, front, strict=True):
            given += table[: len(pages)]
            table[: len(pages)] = pages
        self.pool.free(given, self.owner)
        return given

    def trim(self, num_computed: int) -> list[int]:
        """Give back what no query from slot `num_computed` on can read; the pages it was."""
        given = []
        for stripe, window in enumerate(self.windows):
            first = first_block(num_computed, window, self.pool.page_size)
            table = self.pages[stripe]
            for block in range(self.passed[stripe], first):
                given.append(table[block])
                table[block] = NULL_PAGE
            self.passed[stripe] = max(first, self.passed[stripe])
        self.pool.free(given, self.owner)
        return given

    def release(self) -> list[int]:
        """Give back everything; the pages it was."""
        given = [page for table in self.pages for page in table if page]
        self.pages = [array("i") for _ in self.windows]
        self.pool.free(given, self.owner)
        return given
