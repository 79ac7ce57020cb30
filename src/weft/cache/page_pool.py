"""The page pool: page ids with reference counts. Hands out free pages and counts their holders.

    free       count 0, on the stack of free pages
    held       page tables or an encoded source of a request hold it
    evictable  only a cache holds it: it counts as available, and can be evicted at any time
    page 0     the null page: never allocated, stands for a page outside of a sliding window

A cache calls `add_to_cache` for a page that a table holds too and `evict` to release it;
`num_evictable` is exact at all times. After vLLM's block pool (Kwon 2023), with two differences:
no hashes and no LRU queue here (the prefix caches know which pages are worth keeping), and pages
are plain integers.
"""

from __future__ import annotations

from collections.abc import Iterable

from weft.cache.events import EventListener, PageEvent, PageEventKind
from weft.core.errors import UsageError

NULL_PAGE = 0


class PagePool:
    """Reference counts of `num_pages` pages of `page_size` rows; page 0 is never allocated."""

    def __init__(
        self, num_pages: int, page_size: int = 16, listener: EventListener | None = None
    ) -> None:
        if num_pages < 2 or page_size < 1:
            raise UsageError(
                f"the KV cache has {num_pages} pages of {page_size} rows: it needs at least 2 "
                "pages (one is reserved) of at least 1 row. Raise the KV cache size."
            )
        self.num_pages, self.page_size, self.listener = num_pages, page_size, listener
        self.counts = [0] * num_pages
        self.is_cached = bytearray(num_pages)
        self.free_pages = list(range(num_pages - 1, 0, -1))
        """A stack: the page freed last is still in the processor's cache, so it is reused first."""
        self.num_evictable = 0
        self.step = 0
        """The engine step that events are labelled with."""
        self.clock = 0

    @property
    def num_free(self) -> int:
        return len(self.free_pages)

    @property
    def num_usable(self) -> int:
        """All pages except the null page."""
        return self.num_pages - 1

    def next_timestamp(self) -> int:
        """Advance the logical clock by which all caches order their last uses."""
        self.clock += 1
        return self.clock

    def allocate(self, number: int, owner: str) -> list[int] | None:
        """Return `number` free pages, each held once by `owner`; None, without any change, if
        fewer are free."""
        if number > len(self.free_pages):
            return None
        cut = len(self.free_pages) - number
        pages = self.free_pages[cut:]
        pages.reverse()
        del self.free_pages[cut:]
        for page in pages:
            self.counts[page] = 1
        self.emit("alloc", pages, owner)
        return pages

    def share(self, pages: Iterable[int], owner: str) -> None:
        """Add one reference to each page; null pages are skipped."""
        counts, is_cached = self.counts, self.is_cached
        pages = [page for page in pages if page]
        for page in pages:
            assert counts[page] > 0, f"page {page} is shared by {owner} but its count is 0"
            if counts[page] == 1 and is_cached[page]:
                self.num_evictable -= 1
            counts[page] += 1
        self.emit("share", pages, owner)

    def free(self, pages: Iterable[int], owner: str) -> None:
        """Remove one reference from each page; null pages are skipped."""
        counts, is_cached = self.counts, self.is_cached
        pages = [page for page in pages if page]
        self.emit("free", pages, owner)
        for page in pages:
            counts[page] -= 1
            count = counts[page]
            if count == 0:
                assert not is_cached[page], f"page {page} is freed by {owner}, but a cache keeps it"
                self.free_pages.append(page)
            elif count == 1 and is_cached[page]:
                self.num_evictable += 1
            assert count >= 0, f"page {page} is freed by {owner}: its count is {count}"

    def add_to_cache(self, pages: Iterable[int], owner: str) -> None:
        """Make a cache one more holder of pages that a table or a source holds now."""
        pages = [page for page in pages if page]
        self.share(pages, owner)
        for page in pages:
            assert not self.is_cached[page], f"page {page} is cached by {owner} a second time"
            self.is_cached[page] = 1

    def evict(self, pages: Iterable[int], owner: str) -> int:
        """Remove pages from a cache; return how many of them became free."""
        pages = [page for page in pages if page]
        self.emit("evict", pages, owner)
        before = len(self.free_pages)
        for page in pages:
            assert self.is_cached[page], f"page {page} is evicted by {owner} but is not cached"
            self.is_cached[page] = 0
            self.counts[page] -= 1
            if self.counts[page] == 0:
                self.num_evictable -= 1
                self.free_pages.append(page)
        return len(self.free_pages) - before

    def recount(self, cached: Iterable[int]) -> None:
        """Rebuild counts and free pages: the caches hold each of these pages once, and nothing else
        holds any. An AssertionError, without any change, if a page is cached twice."""
        counts, is_cached = [0] * self.num_pages, bytearray(self.num_pages)
        num_cached = 0
        for page in cached:
            assert 0 < page < self.num_pages, f"page {page} is cached, of {self.num_pages}"
            assert not counts[page], f"page {page} is cached twice"
            counts[page] = is_cached[page] = 1
            num_cached += 1
        self.counts, self.is_cached, self.num_evictable = counts, is_cached, num_cached
        self.free_pages = [page for page in range(self.num_pages - 1, 0, -1) if not counts[page]]

    def reference_counts(self) -> dict[int, int]:
        """Reference counts of all pages that are not free."""
        return {page: count for page, count in enumerate(self.counts) if count}

    def emit(self, kind: PageEventKind, pages: Iterable[int], owner: str, detail: int = 0) -> None:
        """Report one event for each page to the listener, if there is one."""
        if self.listener is not None:
            for page in pages:
                self.listener(PageEvent(kind, self.step, page, owner, detail))
