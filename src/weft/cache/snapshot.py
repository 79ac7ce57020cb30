"""Cache contents across a restart: a KVCacheManager -> `CacheSnapshot`, and back into another one.

Restoring assigns new page ids, whatever is free, lets the caller write the saved rows there, and
then adds runs and sources to the caches: an exception at any point leaves no cached page without
its rows, and `KVCacheManager.recount` frees the others. Runs that share a prefix share its pages
again. If the new pool is smaller, the most recently used runs and sources are restored. The
eviction order is preserved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.page_pool import NULL_PAGE
from weft.cache.page_tables import PageIds, PageTables
from weft.cache.prefix_cache import CachedRun, NoPrefixCache

OWNER = "restore"


class SavedSource(NamedTuple):
    """One encoded source: its page tables, one per cross-attention group."""

    key: str
    num_tokens: int
    tables: list[list[int]]
    last_use: int


@dataclass(frozen=True)
class CacheSnapshot:
    """Runs and sources, with the ids of the pages that hold their rows."""

    runs: list[CachedRun]
    sources: list[SavedSource]

    @property
    def pages(self) -> list[int]:
        """Each page once, in ascending order."""
        pages = {page for run in self.runs for page_ids in run.block_pages for page in page_ids}
        pages |= {page for source in self.sources for table in source.tables for page in table}
        return sorted(pages - {NULL_PAGE})

    @property
    def by_age(self) -> list[CachedRun | SavedSource]:
        """Least recently used first."""
        return sorted([*self.runs, *self.sources], key=lambda entry: entry.last_use)

    def renumbered(self, new_ids: Mapping[int, int]) -> CacheSnapshot:
        """The same contents with other page ids; null stays null."""
        ids = {NULL_PAGE: NULL_PAGE, **new_ids}
        return CacheSnapshot(
            [run._replace(block_pages=map_pages(run.block_pages, ids)) for run in self.runs],
            [source._replace(tables=map_pages(source.tables, ids)) for source in self.sources],
        )


def map_pages(tables: Iterable[Iterable[int]], ids: Mapping[int, int]) -> list[list[int]]:
    return [[ids[page] for page in table] for table in tables]


def take_snapshot(kv_cache: KVCacheManager) -> CacheSnapshot:
    """Everything the caches hold, including what requests are using now."""
    now = kv_cache.pool.clock
    return CacheSnapshot(
        kv_cache.prefix_cache.export(),
        [
            SavedSource(
                source.key,
                source.num_tokens,
                [list(table) for table in source.page_tables],
                now if source.uses else source.last_use,
            )
            for source in kv_cache.encoder_cache.sources.values()
            if source.is_written
        ],
    )


def what_fits(snapshot: CacheSnapshot, num_pages: int) -> CacheSnapshot:
    """As much as fits into `num_pages` pages, most recently used first. A run may lose its end; a
    source is included completely or not at all."""
    collected: set[int] = set()
    kept = CacheSnapshot([], [])
    for entry in reversed(snapshot.by_age):
        if isinstance(entry, CachedRun):
            run = truncate_run(entry, collected, num_pages)
            if run.block_pages:
                kept.runs.append(run)
        elif collect_pages(entry.tables, collected, num_pages):
            kept.sources.append(entry)
    return kept


def truncate_run(run: CachedRun, collected: set[int], num_pages: int) -> CachedRun:
    """The leading blocks of a run whose pages still fit."""
    page_size, block_pages = len(run.tokens) // len(run.block_pages), list[PageIds]()
    for page_ids in run.block_pages:
        if not collect_pages([page_ids], collected, num_pages):
            break
        block_pages.append(page_ids)
    return run._replace(tokens=run.tokens[: len(block_pages) * page_size], block_pages=block_pages)


def collect_pages(tables: Iterable[Iterable[int]], collected: set[int], num_pages: int) -> bool:
    """Add pages to `collected` if all of them fit; return whether they do."""
    new = {page for table in tables for page in table if page not in collected} - {NULL_PAGE}
    if len(collected) + len(new) > num_pages:
        return False
    collected |= new
    return True


def restore(
    kv_cache: KVCacheManager,
    snapshot: CacheSnapshot,
    write_rows: Callable[[Mapping[int, int]], None] = lambda new_ids: None,
) -> dict[int, int]:
    """Put a snapshot into empty caches, as far as free pages reach: {page in it: page now}.
    `write_rows` gets this mapping before anything is cached."""
    assert not any(kv_cache.pool.is_cached), "restored into a cache that is not empty"
    assert not (snapshot.runs and isinstance(kv_cache.prefix_cache, NoPrefixCache)), (
        f"{len(snapshot.runs)} runs cannot be restored without a prefix cache"
    )
    kept = what_fits(snapshot, kv_cache.pool.num_free)
    allocated = kv_cache.pool.allocate(len(kept.pages), OWNER)
    assert allocated is not None, "what_fits has counted the pages"
    new_ids = dict(zip(kept.pages, allocated, strict=True))
    write_rows(new_ids)
    for entry in kept.renumbered(new_ids).by_age:
        if isinstance(entry, CachedRun):
            restore_run(kv_cache, entry)
        else:
            restore_source(kv_cache, entry)
    kv_cache.pool.free(allocated, OWNER)
    return new_ids


def restore_run(kv_cache: KVCacheManager, run: CachedRun) -> None:
    """Add one run to the prefix cache, the way the pages of a sequence are added."""
    pool = kv_cache.pool
    tables = PageTables(pool, kv_cache.windows, OWNER)
    for page_ids in run.block_pages:
        pool.share(page_ids, OWNER)
        pool.emit("write", [page for page in page_ids if page], OWNER, pool.page_size)
        for table, page in zip(tables.by_group, page_ids, strict=True):
            table.append(page)
    match = kv_cache.prefix_cache.match([], run.namespace)
    kv_cache.prefix_cache.extend(match, run.tokens, tables, tables.num_blocks)
    kv_cache.prefix_cache.release(match, tables.release())


def restore_source(kv_cache: KVCacheManager, saved: SavedSource) -> None:
    pages = [page for table in saved.tables for page in table]
    kv_cache.pool.share(pages, OWNER)
    source = kv_cache.encoder_cache.add(saved.key, saved.num_tokens, pages, OWNER)
    kv_cache.encoder_cache.mark_written(source)
    kv_cache.encoder_cache.release(source, OWNER)
