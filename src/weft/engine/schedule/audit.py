"""What must hold after every step, counted from scratch: state -> nothing, or an AssertionError.

    conservation   free + idle + locked + held == all pages
    holders        a page's count is the number of tables, nodes and sources that hold it
    sharing        a page in two tables is full, or its sequences were forked from one another

Also how many rows of each held page are those of real tokens (`filled_rows`, `row_share`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from weft.cache.encoder_cache import OWNER as SOURCES
from weft.cache.page_tables import PageTables
from weft.cache.prefix_cache import OWNER as PREFIX
from weft.engine.schedule.request import Job, Sequence
from weft.engine.schedule.state import State

Holders = dict[int, Counter[str]]


def audit(state: State) -> None:
    """Raise an AssertionError with both numbers if anything is not as it must be."""
    found = holders(state)
    counts = {page: owners.total() for page, owners in found.items()}
    assert counts == state.kv_cache.pool.reference_counts(), (
        "reference counts differ from who holds pages"
    )
    check_conservation(state, found)
    check_sharing(state)
    runs = sum(job.request.num_sequences for job in state.running.values())
    assert runs == state.num_running, f"{runs} sequences run, the state counts {state.num_running}"


def running(state: State) -> Iterator[tuple[Job, Sequence, PageTables]]:
    """All sequences that have page tables."""
    for job in state.jobs.values():
        for sequence in [*job.sequences, *job.spares]:
            if sequence.tables is not None:
                yield job, sequence, sequence.tables


def holders(state: State) -> Holders:
    """Who holds each page, from the tables, the sources and the prefix cache themselves."""
    found: Holders = {}

    def hold(pages: list[int], owner: str) -> None:
        for page in pages:
            if page:
                found.setdefault(page, Counter())[owner] += 1

    for _, _, tables in running(state):
        for table in tables.by_group:
            hold(list(table), tables.owner)
    for page_ids in state.kv_cache.prefix_cache.block_pages():
        hold(page_ids, PREFIX)
    for source in state.kv_cache.encoder_cache.sources.values():
        hold(source.all_pages, SOURCES)
    for job in state.jobs.values():
        if job.source is not None:
            hold(job.source.all_pages, job.request.id)
    return found


def check_conservation(state: State, found: Holders) -> None:
    """Every page is in exactly one of four places."""
    pool = state.kv_cache.pool
    cached = {page for page, owners in found.items() if owners[PREFIX] or owners[SOURCES]}
    assert cached == {page for page in range(pool.num_pages) if pool.is_cached[page]}, (
        "the pool and the caches disagree about what is cached"
    )
    idle = sum(pool.counts[page] == 1 for page in cached)
    assert idle == pool.num_evictable, (
        f"{idle} pages are idle, the pool counts {pool.num_evictable}"
    )
    locked, held = len(cached) - idle, len(found) - len(cached)
    total = pool.num_free + idle + locked + held
    assert total == pool.num_usable, (
        f"{pool.num_free} free + {idle} idle + {locked} locked + {held} held != {pool.num_usable}"
    )
    assert set(pool.free_pages).isdisjoint(found) and 0 not in pool.free_pages, (
        "a free page is held"
    )


def check_sharing(state: State) -> None:
    """Sequences that hold the same page have the same tokens up to its end, or up to where the
    rows of the shorter one end."""
    R = state.kv_cache.pool.page_size
    seen: dict[int, tuple[int, int, Job, Sequence]] = {}
    for job, sequence, tables in running(state):
        for group, table in enumerate(tables.by_group):
            for block, page in enumerate(table):
                if page == 0:
                    continue
                before = seen.setdefault(page, (group, block, job, sequence))
                assert before[:2] == (group, block), f"page {page} is in two places: {before[:2]}"
                end = min(sequence.num_computed, before[3].num_computed, (block + 1) * R)
                is_full = end == (block + 1) * R
                assert is_full or before[2] is job, f"page {page} of two requests is not full"
                same = sequence.tokens[:end] == before[3].tokens[:end]
                assert same, f"page {page} is shared by different tokens"


def row_share(state: State) -> float:
    """Share of the rows in held pages that have a real token. 1.0 when nothing is held."""
    R, filled = state.kv_cache.pool.page_size, filled_rows(state)
    return sum(filled.values()) / (len(filled) * R) if filled else 1.0


def filled_rows(state: State) -> dict[int, int]:
    """How many rows of each held page have a real token."""
    R, filled = state.kv_cache.pool.page_size, dict[int, int]()
    for _, sequence, tables in running(state):
        for table in tables.by_group:
            for block, page in enumerate(table):
                rows = max(0, min(R, sequence.num_computed - block * R))
                filled[page] = max(rows, filled.get(page, 0))
    for source in state.kv_cache.encoder_cache.sources.values():
        for table in source.page_tables:
            for block, page in enumerate(table):
                filled[page] = min(R, source.num_tokens - block * R)
    filled |= {
        page: R for page_ids in state.kv_cache.prefix_cache.block_pages() for page in page_ids
    }
    filled.pop(0, None)
    return filled
