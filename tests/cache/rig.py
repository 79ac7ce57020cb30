"""A pool, one kind of prefix cache over it, and sequences that come and go."""

from __future__ import annotations

from collections.abc import Sequence

from weft.cache import PREFIX_CACHES
from weft.cache.events import EventLog
from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.kv_groups import KVCacheGroup, KVCacheLayout
from weft.cache.page_pool import PagePool
from weft.cache.page_tables import PageTables
from weft.cache.prefix_cache import PrefixMatch, PrefixQuery


class Rig:
    """Pages of 2 tokens, so that short runs have many."""

    def __init__(self, kind: str, windows: Sequence[int | None] = (None,), num_pages: int = 40):
        self.log = EventLog(None)
        self.pool = PagePool(num_pages, 2, self.log)
        self.windows = windows
        groups = (KVCacheGroup((i,), window=window) for i, window in enumerate(windows))
        self.kv_cache = KVCacheManager(KVCacheLayout(tuple(groups)), self.pool, PREFIX_CACHES[kind])
        self.cache = self.kv_cache.prefix_cache
        self.serial = 0

    def begin(self, tokens: list[int], namespace: str = "") -> tuple[PrefixMatch, PageTables]:
        """A sequence that found what is cached, and has pages for the rest."""
        self.serial += 1
        match = self.cache.match(tokens, namespace)
        tables = PageTables(self.pool, self.windows, f"s{self.serial}")
        tables.adopt(match.block_pages)
        fresh = self.pool.allocate(tables.num_pages_needed(match.length, len(tokens)), tables.owner)
        assert fresh is not None
        tables.add_pages(match.length, len(tokens), fresh)
        return match, tables

    def compute(self, match: PrefixMatch, tables: PageTables, tokens: list[int]) -> None:
        """All tokens have rows now."""
        self.cache.extend(match, tokens, tables, len(tokens) // 2)
        self.cache.note_freed(tables.free_out_of_window(len(tokens)))

    def end(self, match: PrefixMatch, tables: PageTables) -> None:
        self.cache.release(match, tables.release())

    def store(self, tokens: list[int], namespace: str = "") -> None:
        """A whole life: afterwards the tokens are cached, as far as the kind caches anything."""
        match, tables = self.begin(tokens, namespace)
        self.compute(match, tables, tokens)
        self.end(match, tables)

    def cached(self, tokens: list[int], namespace: str = "") -> int:
        return self.cache.peek(PrefixQuery(tokens, namespace))

    @property
    def num_held(self) -> int:
        return self.pool.num_usable - self.pool.num_free
