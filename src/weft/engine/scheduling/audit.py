"""Invariants that hold after every step, counted from scratch; an AssertionError if one does not.

conservation   free + evictable + locked + held == all pages
holders        a page's count is the number of tables, cache entries and sources that hold it
sharing        a page in two tables is full, or its sequences were forked from one another
locks          a cached prefix is locked by the sequences that use it, a source has its users
queues         a request either waits or runs, and is counted for its API key
layers         a chunk of which some layers are computed continues a running sequence
"""

from __future__ import annotations

from collections import Counter

from weft.cache.encoder_cache import OWNER as SOURCES
from weft.cache.prefix_cache import OWNER as PREFIX
from weft.cache.replay import ReplayedState
from weft.engine.scheduling.scheduler_state import SchedulerState
from weft.engine.scheduling.sequence import Sequence, SequenceGroup

Holders = dict[int, Counter[str]]


def audit(state: SchedulerState) -> None:
    """Raise an AssertionError with both numbers if an invariant does not hold."""
    check_pages(state)
    check_queues(state)
    check_layers(state)


def check_pages(state: SchedulerState) -> None:
    """The invariants of pages and caches."""
    owners = holders(state)
    counts = {page: names.total() for page, names in owners.items()}
    assert counts == state.kv_cache.pool.reference_counts(), (
        "reference counts differ from the holders of the pages"
    )
    check_conservation(state, owners)
    check_sharing(state)
    matches = [one.match for _, one, _ in state.sequences_with_pages() if one.match is not None]
    state.kv_cache.prefix_cache.check(matches)
    sources = (group.source for group in state.groups.values())
    state.kv_cache.encoder_cache.check(Counter(one.key for one in sources if one is not None))


def check_queues(state: SchedulerState) -> None:
    """Every group waits or runs, once."""
    queued = sorted([*(group.request.id for group in state.waiting), *state.running])
    assert queued == sorted(state.groups), f"{queued} wait or run, of {sorted(state.groups)}"
    keys = Counter(group.request.key for group in state.groups.values())
    assert keys == state.waiting.num_groups, f"{keys} by key, not {state.waiting.num_groups}"
    streamed = sum(group.request.is_streamed for group in state.groups.values())
    assert streamed == state.num_streamed, f"{streamed} are streamed, not {state.num_streamed}"
    number = sum(group.request.num_sequences for group in state.running.values())
    assert number == state.num_running, (
        f"{number} sequences run, the state counts {state.num_running}"
    )


def check_layers(state: SchedulerState) -> None:
    """Chunks whose layers are being computed."""
    if state.layered is None:
        return
    num_tokens = sum(len(chunk.tokens) for chunk in state.layered.all_chunks)
    limit = num_tokens * state.layered.num_layers
    assert 0 <= state.layered.position <= limit, f"{state.layered.position} of {limit} computed"
    for name, chunks in state.layered.chunks.items():
        assert chunks and name in state.running, f"{name} has layers but does not run"
        sequences = {one.index: one for one in state.running[name].sequences}
        for chunk in chunks:
            sequence = sequences[chunk.index]
            is_next = sequence.num_computed == chunk.start
            has_pages = (
                sequence.tables is not None and sequence.tables.by_group is chunk.page_tables
            )
            assert is_next and has_pages, f"{chunk.sequence_id} does not continue its sequence"


def holders(state: SchedulerState) -> Holders:
    """The holders of each page, from the tables, the sources and the prefix cache themselves."""
    owners: Holders = {}

    def hold(pages: list[int], owner: str) -> None:
        for page in pages:
            if page:
                owners.setdefault(page, Counter())[owner] += 1

    for _, _, tables in state.sequences_with_pages():
        for table in tables.by_group:
            hold(list(table), tables.owner)
    for page_ids in state.kv_cache.prefix_cache.block_pages():
        hold(page_ids, PREFIX)
    for source in state.kv_cache.encoder_cache.sources.values():
        hold(source.all_pages, SOURCES)
    for group in state.groups.values():
        if group.source is not None:
            hold(group.source.all_pages, group.request.id)
    return owners


def cache_state(state: SchedulerState) -> ReplayedState:
    """The holders and filled rows of all pages, and the tree, from the structures themselves: what
    the events since any earlier state lead to."""
    return ReplayedState(holders(state), state.filled_rows(), state.kv_cache.prefix_cache.tree())


def check_conservation(state: SchedulerState, owners: Holders) -> None:
    """Every page is in exactly one of four states."""
    pool = state.kv_cache.pool
    cached = {page for page, names in owners.items() if names[PREFIX] or names[SOURCES]}
    assert cached == {page for page in range(pool.num_pages) if pool.is_cached[page]}, (
        "the pool and the caches disagree about what is cached"
    )
    evictable = sum(pool.counts[page] == 1 for page in cached)
    assert evictable == pool.num_evictable, (
        f"{evictable} pages are evictable, the pool counts {pool.num_evictable}"
    )
    free, locked, held = pool.num_free, len(cached) - evictable, len(owners) - len(cached)
    assert free + evictable + locked + held == pool.num_usable, (
        f"{free} free + {evictable} evictable + {locked} locked + {held} held != {pool.num_usable}"
    )
    assert set(pool.free_pages).isdisjoint(owners) and 0 not in pool.free_pages, (
        "a free page is held"
    )


def check_sharing(state: SchedulerState) -> None:
    """Sequences that hold the same page have the same tokens up to its end, or up to the end of the
    shorter one."""
    R = state.kv_cache.pool.page_size
    seen: dict[int, tuple[int, int, SequenceGroup, Sequence]] = {}
    for group, sequence, tables in state.sequences_with_pages():
        for kv_group, table in enumerate(tables.by_group):
            for block, page in enumerate(table):
                if page == 0:
                    continue
                other = seen.setdefault(page, (kv_group, block, group, sequence))
                assert other[:2] == (kv_group, block), f"page {page} is in two places: {other[:2]}"
                end = min(sequence.num_computed, other[3].num_computed, (block + 1) * R)
                is_full = end == (block + 1) * R
                assert is_full or other[2] is group, f"page {page} of two requests is not full"
                is_same = sequence.tokens[:end] == other[3].tokens[:end]
                assert is_same, f"page {page} is shared by different tokens"
