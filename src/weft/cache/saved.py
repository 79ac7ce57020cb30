"""The caches across a restart: what a memory holds -> `Contents`, and back into another memory.

The pages get new numbers, whatever is free; the answer says which, so that whoever saved the rows
can put them there. Runs that share a prefix share its pages again. Where the new pool is smaller,
what was used last comes back, and the order of ages is the old one: the next victim is the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from weft.cache.memory import Memory
from weft.cache.pages import NULL_PAGE
from weft.cache.prefix import Exported, NoPrefixCache
from weft.cache.tables import Column, Tables

OWNER = "restore"


class SavedSource(NamedTuple):
    """One source: its pages, one table a stripe of cross-attention."""

    key: str
    num_tokens: int
    tables: list[list[int]]
    last_use: int


@dataclass(frozen=True)
class Contents:
    """Runs and sources, with the numbers of the pages that hold their rows."""

    runs: list[Exported]
    sources: list[SavedSource]

    @property
    def pages(self) -> list[int]:
        """Each page once, in ascending order."""
        found = {page for run in self.runs for column in run.columns for page in column}
        found |= {page for source in self.sources for table in source.tables for page in table}
        return sorted(found - {NULL_PAGE})

    @property
    def by_age(self) -> list[Exported | SavedSource]:
        """Longest unused first."""
        return sorted([*self.runs, *self.sources], key=lambda one: one.last_use)

    def renumbered(self, numbers: Mapping[int, int]) -> Contents:
        """The same with other page numbers; null stays null."""
        new = {NULL_PAGE: NULL_PAGE, **numbers}
        return Contents(
            [run._replace(columns=mapped(run.columns, new)) for run in self.runs],
            [source._replace(tables=mapped(source.tables, new)) for source in self.sources],
        )


def mapped(pages: Iterable[Iterable[int]], new: Mapping[int, int]) -> list[list[int]]:
    return [[new[page] for page in part] for part in pages]


def contents_of(memory: Memory) -> Contents:
    """All that the caches hold, also what requests are using now."""
    now = memory.pool.clock
    return Contents(
        memory.prefix.export(),
        [
            SavedSource(
                source.key,
                source.num_tokens,
                [list(table) for table in source.pages],
                now if source.uses else source.last_use,
            )
            for source in memory.sources.sources.values()
            if source.is_written
        ],
    )


def fitting(contents: Contents, room: int) -> Contents:
    """As much as `room` pages hold, used last before used first. A run may lose its end; a source
    comes as a whole or not at all."""
    taken: set[int] = set()
    kept = Contents([], [])
    for one in reversed(contents.by_age):
        if isinstance(one, Exported):
            run = shortened(one, taken, room)
            if run.columns:
                kept.runs.append(run)
        elif take(one.tables, taken, room):
            kept.sources.append(one)
    return kept


def shortened(run: Exported, taken: set[int], room: int) -> Exported:
    """The leading blocks of a run whose pages still fit."""
    page_size, columns = len(run.tokens) // len(run.columns), list[Column]()
    for column in run.columns:
        if not take([column], taken, room):
            break
        columns.append(column)
    return run._replace(tokens=run.tokens[: len(columns) * page_size], columns=columns)


def take(tables: Iterable[Iterable[int]], taken: set[int], room: int) -> bool:
    """Take pages if all of them fit, together with those that were taken before."""
    new = {page for table in tables for page in table if page not in taken} - {NULL_PAGE}
    if len(taken) + len(new) > room:
        return False
    taken |= new
    return True


def restore(memory: Memory, contents: Contents) -> dict[int, int]:
    """Hold contents again in a memory that holds nothing, as far as free pages reach:
    {page in the contents: page now}."""
    assert not any(memory.pool.is_cached), "restored into a cache that holds something already"
    assert not (contents.runs and isinstance(memory.prefix, NoPrefixCache)), "nobody holds runs"
    moved = {NULL_PAGE: NULL_PAGE}
    for one in fitting(contents, memory.pool.num_free).by_age:
        if isinstance(one, Exported):
            restore_run(memory, one, moved)
        else:
            restore_source(memory, one, moved)
    del moved[NULL_PAGE]
    return moved


def restore_run(memory: Memory, run: Exported, moved: dict[int, int]) -> None:
    """One run enters through the same door as a sequence's own pages."""
    tables, page_size = Tables(memory.pool, memory.windows, OWNER), memory.pool.page_size
    for column in run.columns:
        place(memory, column, moved, page_size)
        for table, page in zip(tables.pages, column, strict=True):
            table.append(moved[page])
    match = memory.prefix.match([], run.namespace)
    memory.prefix.extend(match, run.tokens, tables, tables.num_blocks)
    memory.prefix.release(match, tables.release())


def place(memory: Memory, pages: Iterable[int], moved: dict[int, int], num_rows: int) -> None:
    """Hold each page once more: a new one, or where it was moved to already."""
    for page in pages:
        if page in moved:
            memory.pool.share([moved[page]], OWNER)
            continue
        fresh = memory.pool.allocate(1, OWNER)
        assert fresh is not None, "what fits was counted before"
        moved[page] = fresh[0]
        memory.pool.tell("write", fresh, OWNER, num_rows)


def restore_source(memory: Memory, saved: SavedSource, moved: dict[int, int]) -> None:
    pages = [page for table in saved.tables for page in table]
    fresh = memory.pool.allocate(len(pages), OWNER)
    assert fresh is not None, "what fits was counted before"
    moved.update(zip(pages, fresh, strict=True))
    source = memory.sources.add(saved.key, saved.num_tokens, fresh, OWNER)
    memory.sources.written(source)
    memory.sources.release(source, OWNER)
