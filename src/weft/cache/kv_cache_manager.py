"""One page budget for running sequences, the prefix cache and the encoder cache.

A request for pages evicts the least recently used cached pages as needed. Both caches share one
pool and one clock, so the next victim is the older of their two candidates. Differs from engines
that give encoder results a cache of a fixed size.
"""

from __future__ import annotations

from collections.abc import Iterator

from weft.cache.encoder_cache import OWNER as SOURCES
from weft.cache.encoder_cache import EncoderCache
from weft.cache.kv_groups import KVCacheLayout
from weft.cache.page_pool import NULL_PAGE, PagePool
from weft.cache.prefix_cache import OWNER as PREFIX
from weft.cache.prefix_cache import PrefixCache


class KVCacheManager:
    """The page pool and the caches that store their pages in it."""

    def __init__(
        self,
        layout: KVCacheLayout,
        pool: PagePool,
        prefix: type[PrefixCache],
        keeps_sources: bool = True,
    ) -> None:
        """`prefix` is an entry of PREFIX_CACHES."""
        self.layout, self.pool, self.windows = layout, pool, layout.windows
        self.prefix_cache = prefix(pool, layout.windows)
        self.encoder_cache = EncoderCache(pool, len(layout.cross_groups), keeps_sources)
        self.num_evicted = 0
        """Pages that were evicted from a cache, in total."""
        self.num_resets = 0

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

    def recount(self) -> None:
        """Rebuild reference counts, locks and free pages from the caches alone: no page tables are
        left, and no request uses a source. An AssertionError if a cache is inconsistent, because
        one of its operations was interrupted; then only `reset` helps."""
        self.prefix_cache.recount()
        self.encoder_cache.recount()
        self.pool.recount(page for _, page, _ in self.cached_rows())
        self.emit_state()

    def reset(self) -> None:
        """Empty both caches: all pages are free. No page tables may be left."""
        self.num_resets += 1
        self.prefix_cache.clear()
        self.encoder_cache.clear()
        self.pool.recount(())
        self.emit_state()

    def cached_rows(self) -> Iterator[tuple[str, int, int]]:
        """Owner, page and number of filled rows of each cached page."""
        R = self.pool.page_size
        for page_ids in self.prefix_cache.block_pages():
            yield from ((PREFIX, page, R) for page in page_ids if page)
        for source in self.encoder_cache.sources.values():
            for table in source.page_tables:
                for block, page in enumerate(table):
                    yield SOURCES, page, min(R, source.num_tokens - block * R)

    def emit_state(self) -> None:
        """Events from which a listener knows all cached pages and nodes, whatever it knew before.
        No node is locked."""
        if self.pool.listener is None:
            return
        self.pool.emit("reset", [NULL_PAGE], "")
        for owner, page, num_rows in self.cached_rows():
            self.pool.emit("alloc", [page], owner)
            self.pool.emit("write", [page], owner, num_rows)
        for number, node in self.prefix_cache.tree().items():
            assert not node.locks, f"node {number} has {node.locks} locks after a recount"
            self.pool.listener(node.added_event(number, self.pool.step))
