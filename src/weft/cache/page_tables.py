"""Page tables of one sequence: slot -> page, one table per self-attention KV cache group.

    slots    0 .. 15 | 16 .. 31 | 32 .. 47        slot s lies in page table[s // R], row s % R
    full         7   |     2    |    9
    window       0   |     5    |    4            0: outside of the sliding window, page freed

A block is R = page_size consecutive slots of a sequence; each group has one page for it. `fork`
shares all pages; the first sequence that writes into a shared last page gets a copy (`PageCopy`,
copy-on-write), which the model runner executes before the forward pass. Tables are arrays of 32-bit
integers, which numpy reads without a loop. Unlike vLLM's block tables, an entry may be replaced by
an equal page that the prefix cache already holds (`replace_page`), so that a prefix is stored once.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

from weft.cache.page_pool import NULL_PAGE, PagePool

PageIds = list[int]
"""Pages of one block: one per self-attention group; null where a window's page was freed."""


class PageCopy(NamedTuple):
    """Copy the first rows of page `source` to page `target`, in all layers of its group."""

    source: int
    target: int
    rows: int
    """Filled rows; the next row is about to be written."""


def num_blocks_for(num_slots: int, page_size: int) -> int:
    """Number of blocks that cover `num_slots` slots."""
    return -(-num_slots // page_size)


def first_readable_block(slot: int, window: int | None, page_size: int) -> int:
    """The first block that a query at `slot` or later can attend to."""
    return 0 if window is None else max(0, slot - window + 1) // page_size


class PageTables:
    """Holds one reference to each of its pages, under the name `owner`."""

    def __init__(self, pool: PagePool, windows: Sequence[int | None], owner: str) -> None:
        self.pool, self.windows, self.owner = pool, windows, owner
        self.has_windows = any(window is not None for window in windows)
        self.by_group = [array("i") for _ in windows]
        self.num_out_of_window = [0] * len(windows)
        """Leading blocks of each group whose pages were freed by its sliding window."""

    @property
    def num_blocks(self) -> int:
        return len(self.by_group[0])

    def page_ids(self, block: int) -> PageIds:
        """The pages of one block, one per group."""
        return [table[block] for table in self.by_group]

    def adopt(self, block_pages: Sequence[PageIds]) -> None:
        """Start with a cached prefix; window groups take only pages that are still readable."""
        R = self.pool.page_size
        for group, (table, window) in enumerate(zip(self.by_group, self.windows, strict=True)):
            first = first_readable_block(len(block_pages) * R, window, R)
            table.extend([NULL_PAGE] * first)
            table.extend([page_ids[group] for page_ids in block_pages[first:]])
            self.num_out_of_window[group] = first
            self.pool.share(table[first:], self.owner)

    def shared_at(self, slot: int) -> list[int]:
        """Groups whose page of this slot has other holders and must be copied before a write."""
        block, counts = slot // self.pool.page_size, self.pool.counts
        if block >= self.num_blocks:
            return []
        return [i for i, table in enumerate(self.by_group) if counts[table[block]] > 1]

    def num_pages_needed(self, start: int, end: int) -> int:
        """Pages to allocate before slots `start` to `end` - 1 can be written."""
        # plain loops: this runs for every sequence in every step
        pool, tables = self.pool, self.by_group
        num_blocks, block = len(tables[0]), start // pool.page_size
        number = max(0, -(-end // pool.page_size) - num_blocks) * len(tables)
        if block < num_blocks:
            for table in tables:
                if pool.counts[table[block]] > 1:
                    number += 1
        return number

    def add_pages(self, start: int, end: int, new_pages: Sequence[int]) -> list[PageCopy]:
        """Make slots `start` to `end` - 1 writable with `num_pages_needed` newly allocated pages;
        return the copies to execute before the write."""
        rest = list(new_pages)
        copies = [self.copy_on_write(group, start, rest.pop()) for group in self.shared_at(start)]
        num_new = max(0, num_blocks_for(end, self.pool.page_size) - self.num_blocks)
        for table in self.by_group:
            table.extend(rest[:num_new])
            del rest[:num_new]
        assert not rest, f"{self.owner} got {len(rest)} pages more than it needs"
        return copies

    def copy_on_write(self, group: int, slot: int, new_page: int) -> PageCopy:
        """Put a new page in place of a shared one."""
        block = slot // self.pool.page_size
        source = self.by_group[group][block]
        self.by_group[group][block] = new_page
        self.pool.emit("copy", [new_page], self.owner, source)
        self.pool.free([source], self.owner)
        return PageCopy(source, new_page, slot % self.pool.page_size)

    def replace_page(self, group: int, block: int, page: int) -> None:
        """Hold an equal page of a cache instead of the current one."""
        old_page = self.by_group[group][block]
        self.pool.share([page], self.owner)
        self.by_group[group][block] = page
        self.pool.free([old_page], self.owner)

    def fork(self, owner: str, num_slots: int) -> PageTables:
        """Return tables that share the pages of the first `num_slots` slots."""
        child = PageTables(self.pool, self.windows, owner)
        blocks = num_blocks_for(num_slots, self.pool.page_size)
        child.by_group = [table[:blocks] for table in self.by_group]
        child.num_out_of_window = list(self.num_out_of_window)
        for table, num_freed in zip(child.by_group, child.num_out_of_window, strict=True):
            self.pool.share(table[num_freed:], owner)
        return child

    def leading_pages(self, num_blocks: int) -> list[array[int]]:
        """The pages of the first blocks, by group."""
        return [table[:num_blocks] for table in self.by_group]

    def replace_leading(self, leading: Sequence[array[int]]) -> list[int]:
        """Start with other pages, of which `owner` holds a reference already; return the pages
        that were freed."""
        freed: list[int] = []
        for table, pages in zip(self.by_group, leading, strict=True):
            freed += table[: len(pages)]
            table[: len(pages)] = pages
        self.pool.free(freed, self.owner)
        return freed

    def free_out_of_window(self, num_computed: int) -> list[int]:
        """Free pages that no query from slot `num_computed` on can read; return them."""
        freed = []
        for group, window in enumerate(self.windows):
            first = first_readable_block(num_computed, window, self.pool.page_size)
            table = self.by_group[group]
            for block in range(self.num_out_of_window[group], first):
                freed.append(table[block])
                table[block] = NULL_PAGE
            self.num_out_of_window[group] = max(first, self.num_out_of_window[group])
        self.pool.free(freed, self.owner)
        return freed

    def release(self) -> list[int]:
        """Free all pages; return them."""
        freed = [page for table in self.by_group for page in table if page]
        self.by_group = [array("i") for _ in self.windows]
        self.pool.free(freed, self.owner)
        return freed
