"""Window stripes in a prefix cache: which prefixes can still be read, and which pages may go.

A query behind a prefix of n blocks reads, in a stripe with a window, only the last window - 1
slots. So a cached prefix is usable when just those pages are there, and a cache may lose the others
one by one: a null in its column (a tombstone) while the full stripes stay.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from weft.cache.pages import NULL_PAGE, PagePool
from weft.cache.tables import Column, first_block


def readable_blocks(
    columns: Sequence[Column], windows: Sequence[int | None], page_size: int
) -> int:
    """The most leading blocks behind which a sequence can go on: all its windows are there."""
    n, checked = len(columns), -1
    while n != checked:
        checked = n
        for stripe, window in enumerate(windows):
            if window is not None:
                n = backed_off(columns, stripe, window, n, page_size)
    return n


def backed_off(columns: Sequence[Column], stripe: int, window: int, n: int, page_size: int) -> int:
    """The longest readable length up to `n` blocks, as far as one stripe can say."""
    block = n - 1
    while block >= first_block(n * page_size, window, page_size):
        if columns[block][stripe] == NULL_PAGE:
            n = block  # every longer prefix up to the old n would read this block too
        block -= 1
    return n


class WindowPages:
    """Pages of window stripes that a cache holds. One that no table holds any more can be evicted
    by itself, the one that has been idle longest first."""

    def __init__(self, pool: PagePool, windows: Sequence[int | None], owner: str) -> None:
        self.pool, self.owner = pool, owner
        self.stripes = [i for i, window in enumerate(windows) if window is not None]
        self.columns: dict[int, Column] = {}
        """The column that holds a page; columns move between nodes, pages stay in theirs."""
        self.idle: OrderedDict[int, int] = OrderedDict()
        """Pages that may be idle, with the moment at which they became so."""

    def add(self, column: Column) -> None:
        """A column was added or filled up."""
        for stripe in self.stripes:
            if column[stripe]:
                self.columns[column[stripe]] = column

    def forget(self, column: Column) -> None:
        """A column was evicted as a whole."""
        for stripe in self.stripes:
            self.columns.pop(column[stripe], None)
            self.idle.pop(column[stripe], None)

    def note(self, pages: Iterable[int], now: int) -> None:
        """Tables gave back these pages; those that nobody but the cache holds are idle."""
        if not self.columns:
            return
        for page in pages:
            if page in self.columns and self.pool.counts[page] == 1:
                self.idle[page] = now
                self.idle.move_to_end(page)

    def oldest(self) -> int | None:
        """Since when the next victim has been idle."""
        while self.idle:
            page, moment = next(iter(self.idle.items()))
            if self.pool.counts[page] == 1:
                return moment
            del self.idle[page]  # a table took it up again, and will note it again
        return None

    def evict(self) -> int:
        """Take the oldest idle page out of its column; how many pages are free now."""
        page, _ = self.idle.popitem(last=False)
        column = self.columns.pop(page)
        column[column.index(page)] = NULL_PAGE
        return self.pool.drop([page], self.owner)
