"""A prefix cache across a restart: exported runs of tokens -> a cache that holds them again.

The pages get new numbers, whatever is free; the answer says which, so that whoever saved the rows
can put them there. Runs that share a prefix share its pages again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.cache.pages import NULL_PAGE, PagePool
from weft.cache.prefix import Exported, PrefixCache
from weft.cache.tables import Column, Tables

OWNER = "restore"


def restore(
    cache: PrefixCache,
    pool: PagePool,
    windows: Sequence[int | None],
    runs: Iterable[Exported],
) -> dict[int, int]:
    """Hold exported runs again, each as far as free pages reach: {page then: page now}."""
    moved = {NULL_PAGE: NULL_PAGE}
    for run in runs:
        restore_run(cache, Tables(pool, windows, OWNER), run, moved)
    del moved[NULL_PAGE]
    return moved


def restore_run(cache: PrefixCache, tables: Tables, run: Exported, moved: dict[int, int]) -> None:
    """One run enters through the same door as a sequence's own pages."""
    for column in run.columns:
        if not take(tables, column, moved):
            break
    match = cache.match([], run.namespace)
    cache.extend(match, run.tokens, tables, tables.num_blocks)
    cache.release(match, tables.release())


def take(tables: Tables, column: Column, moved: dict[int, int]) -> bool:
    """One more block at the end of the tables: pages that moved already, or new ones."""
    unknown = [page for page in column if page not in moved]
    fresh = tables.pool.allocate(len(unknown), OWNER)
    if fresh is None:
        return False
    tables.pool.share([moved[page] for page in column if page in moved], OWNER)
    moved.update(zip(unknown, fresh, strict=True))
    for table, page in zip(tables.pages, column, strict=True):
        table.append(moved[page])
    return True
