"""The page pool: numbers of pages with reference counts -> pages for whoever asks.

    free     count 0, on the stack of free pages
    held     some table or source of a request holds it
    idle     only a cache holds it: it can be evicted at any time, and counts as room
    page 0   the null page: never given out, stands where a window has passed

A cache `keep`s a page that a table holds too and `drop`s it to evict it; `num_idle` is exact at all
times. After vLLM's block pool (Kwon 2023), with two changes: no hashes and no queue in here (the
prefix caches know what is worth keeping), and pages are plain numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

from weft.cache.events import Event, Kind, Listener
from weft.core.errors import UsageError

NULL_PAGE = 0


class PagePool:
    """Reference counts of `num_pages` pages of `page_size` rows; page 0 is never given out."""

    def __init__(
        self, num_pages: int, page_size: int = 16, listener: Listener | None = None
    ) -> None:
        if num_pages < 2 or page_size < 1:
            raise UsageError(
                f"the cache has {num_pages} pages of {page_size} rows: it needs at least 2 pages "
                "(one is never used) of at least 1 row. Give it more memory."
            )
        self.num_pages, self.page_size, self.listener = num_pages, page_size, listener
        self.counts = [0] * num_pages
        self.is_cached = bytearray(num_pages)
        self.free_pages = list(range(num_pages - 1, 0, -1))
        """A stack: the page freed last is warm in the processor's cache, and is used first."""
        self.num_idle = 0
        self.step = 0
        """The step that events belong to."""
        self.clock = 0

    @property
    def num_free(self) -> int:
        return len(self.free_pages)

    @property
    def num_usable(self) -> int:
        """All pages but the null page."""
        return self.num_pages - 1

    def tick(self) -> int:
        """The next moment of the one clock by which all caches order their last uses."""
        self.clock += 1
        return self.clock

    def allocate(self, number: int, owner: str) -> list[int] | None:
        """That many free pages, each held once by `owner`; None, and nothing done, if too few."""
        if number > len(self.free_pages):
            return None
        cut = len(self.free_pages) - number
        pages = self.free_pages[cut:]
        pages.reverse()
        del self.free_pages[cut:]
        for page in pages:
            self.counts[page] = 1
        self.tell("alloc", pages, owner)
        return pages

    def share(self, pages: Iterable[int], owner: str) -> None:
        """One more holder of each page; null pages are passed over."""
        counts, is_cached = self.counts, self.is_cached
        pages = [page for page in pages if page]
        for page in pages:
            assert counts[page] > 0, f"page {page} is shared by {owner} but its count is 0"
            if counts[page] == 1 and is_cached[page]:
                self.num_idle -= 1
            counts[page] += 1
        self.tell("share", pages, owner)

    def free(self, pages: Iterable[int], owner: str) -> None:
        """`owner` lets go of each page; what nobody holds is free again. Null is passed over."""
        counts, is_cached = self.counts, self.is_cached
        pages = [page for page in pages if page]
        self.tell("free", pages, owner)
        for page in pages:
            counts[page] -= 1
            count = counts[page]
            if count == 0:
                assert not is_cached[page], f"page {page} is freed by {owner}, but a cache keeps it"
                self.free_pages.append(page)
            elif count == 1 and is_cached[page]:
                self.num_idle += 1
            assert count >= 0, f"page {page} is freed by {owner}: its count is {count}"

    def keep(self, pages: Iterable[int], owner: str) -> None:
        """A cache becomes one more holder of pages that a table or a source holds now."""
        pages = [page for page in pages if page]
        self.share(pages, owner)
        for page in pages:
            assert not self.is_cached[page], f"page {page} is kept by {owner} a second time"
            self.is_cached[page] = 1

    def drop(self, pages: Iterable[int], owner: str) -> int:
        """A cache lets go of its pages; how many of them are free now."""
        pages = [page for page in pages if page]
        self.tell("evict", pages, owner)
        before = len(self.free_pages)
        for page in pages:
            assert self.is_cached[page], f"page {page} is dropped by {owner}, which has it not"
            self.is_cached[page] = 0
            self.counts[page] -= 1
            if self.counts[page] == 0:
                self.num_idle -= 1
                self.free_pages.append(page)
        return len(self.free_pages) - before

    def snapshot(self) -> dict[int, int]:
        """Reference counts of all pages that somebody holds."""
        return {page: count for page, count in enumerate(self.counts) if count}

    def tell(self, kind: Kind, pages: Iterable[int], owner: str, detail: int = 0) -> None:
        if self.listener is not None:
            for page in pages:
                self.listener(Event(kind, self.step, page, owner, detail))
