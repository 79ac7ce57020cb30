"""One budget for all: a request for pages -> pages, after evicting what was used longest ago.

The prefix cache and the source cache share one pool and one clock, so the victim is whichever of
their next ones is older. Differs from engines that give encoder results a cache of their own size.
"""

from __future__ import annotations

from weft.cache.layout import Layout
from weft.cache.pages import PagePool
from weft.cache.prefix import PrefixCache
from weft.cache.sources import SourceCache


class Memory:
    """The pool and the caches that live in it."""

    def __init__(self, layout: Layout, pool: PagePool, prefix: type[PrefixCache]) -> None:
        """`prefix` is an entry of PREFIX_CACHES."""
        self.layout, self.pool, self.windows = layout, pool, layout.windows
        self.prefix = prefix(pool, layout.windows)
        self.sources = SourceCache(pool, len(layout.cross))
        self.num_evicted = 0
        """Pages that were taken from a cache to make room."""

    @property
    def room(self) -> int:
        """Pages that can be had now: the free ones, and those that only a cache holds."""
        return self.pool.num_free + self.pool.num_idle

    def allocate(self, number: int, owner: str) -> list[int] | None:
        """That many pages; None, and nothing evicted, when there is no room for them."""
        if number > self.room:
            return None
        while self.pool.num_free < number:
            self.evict(number - self.pool.num_free)
        return self.pool.allocate(number, owner)

    def evict(self, number: int) -> int:
        """One eviction, of up to `number` pages where that can be said; how many were freed."""
        prefix, source = self.prefix.oldest(), self.sources.oldest()
        assert prefix is not None or source is not None, (
            f"{self.pool.num_idle} pages are said to be idle, but no cache can evict one"
        )
        if prefix is None or (source is not None and source < prefix):
            freed = self.sources.evict_oldest(number)
        else:
            freed = self.prefix.evict_oldest(number)
        self.num_evicted += freed
        return freed
