"""The contract of prefix caches, for every entry of the table."""

from __future__ import annotations

import random

import pytest

from tests.cache.rig import Rig
from weft.cache import PREFIX_CACHES
from weft.cache.page_tables import first_readable_block
from weft.cache.prefix_cache import PrefixQuery, num_readable_blocks
from weft.cache.replay import replay
from weft.core.errors import ConfigError
from weft.core.registry import pick

ABCDEF = [1, 2, 3, 4, 5, 6]


@pytest.fixture(params=[kind for kind in PREFIX_CACHES if kind != "none"])
def kind(request) -> str:
    return request.param


def test_an_unknown_kind_lists_the_choices():
    with pytest.raises(ConfigError, match="Did you mean 'radix'.*none, hash, radix"):
        pick(PREFIX_CACHES, "radixx", "prefix cache")


def test_none_keeps_nothing():
    rig = Rig("none")
    rig.store(ABCDEF)
    assert rig.cached(ABCDEF + [7]) == 0 and rig.num_held == 0
    assert rig.cache.oldest_use() is None and rig.cache.export() == []


def test_a_full_hit_leaves_the_last_token_to_be_run(kind):
    rig = Rig(kind)
    rig.store(ABCDEF)
    assert rig.cached(ABCDEF) == 4, "a match ends before the last token, at a page border"
    assert rig.cached([*ABCDEF, 7]) == 6, "a hit that ends exactly on a page border is whole"
    assert rig.cached(ABCDEF[:5]) == 4
    assert rig.cached([1]) == rig.cached([]) == 0


def test_a_match_ends_where_the_tokens_differ(kind):
    rig = Rig(kind)
    rig.store(ABCDEF)
    assert rig.cached([1, 2, 3, 4, 9, 9, 9]) == 4
    assert rig.cached([1, 2, 3, 9, 5, 6, 7]) == 2
    assert rig.cached([9, 2, 3, 4]) == 0


def test_a_match_has_the_pages_of_the_sequence_that_stored_them(kind):
    rig = Rig(kind)
    match, tables = rig.begin(ABCDEF)
    rig.compute(match, tables, ABCDEF)
    again, other = rig.begin([*ABCDEF, 7])
    assert again.length == 6
    assert other.by_group[0][:3] == tables.by_group[0][:3]
    rig.end(match, tables)
    rig.end(again, other)
    assert rig.pool.num_evictable == 3


def test_namespaces_share_nothing(kind):
    rig = Rig(kind)
    rig.store(ABCDEF, "one")
    assert rig.cached(ABCDEF, "two") == 0 and rig.cached(ABCDEF, "one") == 4
    rig.store(ABCDEF, "two")
    assert rig.num_held == 6


def test_an_inserted_duplicate_is_freed_and_the_table_changed(kind):
    rig = Rig(kind)
    first, second = rig.begin(ABCDEF), rig.begin(ABCDEF)
    assert rig.num_held == 6, "both compute, because neither found the other"
    rig.compute(*first, ABCDEF)
    rig.compute(*second, ABCDEF)
    assert first[1].by_group == second[1].by_group
    assert rig.num_held == 3 and second[0].length == 6
    rig.end(*first)
    rig.end(*second)
    assert (
        rig.pool.num_evictable == 3 and replay(rig.log.events).counts == rig.pool.reference_counts()
    )


def test_locked_pages_are_never_evicted(kind):
    rig = Rig(kind)
    rig.store(ABCDEF)
    match, tables = rig.begin([1, 2, 3, 4, 9])
    while rig.cache.oldest_use() is not None:
        rig.cache.evict_oldest(100)
    assert rig.cached([*ABCDEF, 7]) == 4
    rig.end(match, tables)
    while rig.cache.oldest_use() is not None:
        rig.cache.evict_oldest(100)
    assert rig.cached(ABCDEF) == 0 and rig.num_held == 0


def test_the_least_recently_used_goes_first_and_from_its_end(kind):
    rig = Rig(kind)
    rig.store([1, 2, 3, 4])
    rig.store([5, 6, 7, 8])
    rig.store([1, 2, 3, 4, 9])  # used again
    assert rig.cache.evict_oldest(1) == 1
    assert rig.cached([5, 6, 7, 8, 0]) == 2 and rig.cached([1, 2, 3, 4, 0]) == 4
    assert rig.cache.evict_oldest(1) == 1
    assert rig.cached([5, 6, 7, 8, 0]) == 0
    assert rig.cache.evict_oldest(1) == 1
    assert rig.cached([1, 2, 3, 4, 0]) == 2


def test_a_forked_match_is_a_lock_of_its_own(kind):
    rig = Rig(kind)
    match, tables = rig.begin(ABCDEF)
    rig.compute(match, tables, ABCDEF)
    other = rig.cache.fork(match)
    rig.cache.release(match, [])
    assert rig.cache.oldest_use() is None
    rig.cache.release(other, tables.release())
    assert rig.cache.oldest_use() is not None
    with pytest.raises(AssertionError, match="is released"):
        rig.cache.release(other, [])


def test_a_query_is_looked_up_again_only_when_the_cache_has_changed(kind):
    rig = Rig(kind)
    query = PrefixQuery([*ABCDEF, 7], "")
    assert rig.cache.peek(query) == 0
    rig.store(ABCDEF[:4])
    assert rig.cache.peek(query) == 4
    before = query.version
    rig.end(*rig.begin([1, 2, 9]))
    assert rig.cache.peek(query) == 4 and query.version == before
    rig.cache.evict_oldest(1)
    assert rig.cache.peek(query) == 2


def test_windows_back_off_to_where_their_pages_are(kind):
    rig = Rig(kind, windows=(None, 3))  # a query reads two slots before it: one block
    match, tables = rig.begin(ABCDEF)
    rig.compute(match, tables, ABCDEF)
    passed = [page_ids[1] for page_ids in rig.cache.block_pages()][:2]
    assert list(tables.by_group[1]) == [0, 0, tables.by_group[1][2]] and all(passed)
    assert rig.pool.num_evictable == 2, "the cache holds what the window has passed"
    assert rig.cached([1, 2, 3, 4, 9]) == 4
    assert rig.cache.evict_oldest(1) == rig.cache.evict_oldest(1) == 1
    assert rig.pool.num_evictable == 0 and rig.cache.oldest_use() is None
    assert rig.cached([1, 2, 3, 4, 9]) == 0, "the last block before the query is gone"
    assert rig.cached([*ABCDEF, 7]) == 6, "the first ones are not read any more"
    rig.end(match, tables)


def test_a_lost_window_page_is_filled_by_the_next_who_computes_it(kind):
    rig = Rig(kind, windows=(None, 3))
    match, tables = rig.begin(ABCDEF)
    rig.compute(match, tables, ABCDEF)
    rig.cache.evict_oldest(1)
    rig.cache.evict_oldest(1)
    rig.store([1, 2, 3, 4])
    assert rig.cached([1, 2, 3, 4, 9]) == 4
    rig.end(match, tables)
    assert rig.pool.num_evictable == rig.num_held == 6


def test_a_lookup_finds_every_cached_block_and_changes_nothing(kind):
    rig = Rig(kind, windows=(None, 3))
    rig.store(ABCDEF)
    rig.store([1, 2, 9, 9])
    ages, events, version = rig.pool.clock, rig.log.num_seen, rig.cache.version
    block_pages = rig.cache.lookup(ABCDEF, "")
    assert len(block_pages) == 3, "the last block too: no token is computed after it"
    assert block_pages == [c for c in rig.cache.block_pages() if c in block_pages]
    assert len(rig.cache.lookup([*ABCDEF[:5]], "")) == 2 and not rig.cache.lookup(ABCDEF, "other")
    assert (ages, events, version) == (rig.pool.clock, rig.log.num_seen, rig.cache.version)


def test_random_use_finds_what_a_list_of_prefixes_finds(kind):
    rng, rig, stored = random.Random(5), Rig(kind, num_pages=2000), set()
    for _ in range(200):
        tokens = rng.choices([1, 2], k=rng.randint(1, 12))
        best = max((n for n in range(0, len(tokens), 2) if tuple(tokens[:n]) in stored), default=0)
        assert rig.cached(tokens) == best
        rig.store(tokens)
        stored |= {tuple(tokens[:n]) for n in range(0, len(tokens) + 1, 2)}
        assert rig.num_held == rig.pool.num_evictable == len(stored) - 1


def by_hand(block_pages: list[list[int]], windows: list[int | None], page_size: int) -> int:
    """Try every length, longest first."""
    for n in range(len(block_pages), 0, -1):
        needed = [
            block_pages[block][group]
            for group, window in enumerate(windows)
            for block in range(first_readable_block(n * page_size, window, page_size), n)
        ]
        if all(needed):
            return n
    return 0


def test_trimming_finds_the_longest_readable_prefix():
    rng = random.Random(0)
    for _ in range(500):
        windows = [None, rng.randint(1, 12), rng.randint(1, 12)]
        block_pages = [
            [1, rng.choice([0, 1, 1, 1]), rng.choice([0, 1, 1, 1])]
            for _ in range(rng.randint(0, 12))
        ]
        assert num_readable_blocks(block_pages, windows, 3) == by_hand(block_pages, windows, 3)
