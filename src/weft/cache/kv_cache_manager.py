"""One page budget for running sequences, the prefix cache and the encoder cache.

A request for pages evicts the least recently used cached pages as needed. Both caches share one
pool and one clock, so the next victim is the older of their two candidates. Differs from engines
that give encoder results a cache of a fixed size.
"""

from __future__ import annotations

from weft.cache.encoder_cache import EncoderCache
from weft.cache.kv_groups import KVCacheLayout
from weft.cache.page_pool import PagePool
from weft.cache.prefix_cache import PrefixCache


class KVCacheManager:
    """The page pool and the caches that store their pages in it."""

    def __init__(self, layout: KVCacheLayout, pool: PagePool, prefix: type[PrefixCache]) -> None:
        """`prefix` is an entry of PREFIX_CACHES."""
        self.layout, self.pool, self.windows = layout, pool, layout.windows
        self.prefix_cache = prefix(pool, layout.windows)
        self.encoder_cache = EncoderCache(pool, len(layout.cross_groups))
        self.num_evicted = 0
        """Pages that were evicted from a cache, in total."""

    @property
    def num_available(self) -> int:
        """Pages that can be allocated now: free pages and those that only a cache holds."""
        return self.pool.num_free + self.pool.num_evictable

    def allocate(self, number: int, owner: str) -> list[int] | None:
        """Return `number` pages, evicting as needed; None, without evicting, if fewer are
        available."""
        if number > self.num_available:
            return None
        while self.pool.num_free < number:
            self.evict(number - self.pool.num_free)
        return self.pool.allocate(number, owner)

    def evict(self, number: int) -> int:
        """Evict once from the cache with the oldest victim, up to `number` pages where the cache
        can stop there; return how many pages became free."""
        prefix, source = self.prefix_cache.oldest_use(), self.encoder_cache.oldest_use()
        assert prefix is not None or source is not None, (
            f"{self.pool.num_evictable} pages count as evictable, but no cache can evict one"
        )
        if prefix is None or (source is not None and source < prefix):
            num_freed = self.encoder_cache.evict_oldest(number)
        else:
            num_freed = self.prefix_cache.evict_oldest(number)
        self.num_evicted += num_freed
        return num_freed
