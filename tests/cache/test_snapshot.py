"""What a memory holds, restored into another one: pages, sharing, ages, and what fits."""

from __future__ import annotations

import pytest

from tests.cache.rig import Rig
from weft.cache import PREFIX_CACHES
from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.kv_groups import KVCacheGroup, KVCacheLayout
from weft.cache.page_pool import PagePool
from weft.cache.prefix_cache import PrefixQuery
from weft.cache.replay import replay
from weft.cache.snapshot import restore, take_snapshot, what_fits

ABCDEF = [1, 2, 3, 4, 5, 6]


@pytest.fixture(params=[kind for kind in PREFIX_CACHES if kind != "none"])
def kind(request) -> str:
    return request.param


def test_a_saved_cache_is_restored_with_new_pages(kind):
    rig, other = Rig(kind, windows=(None, 3)), Rig(kind, windows=(None, 3))
    rig.store(ABCDEF)
    rig.store([1, 2, 3, 4, 8, 8])
    rig.store([7, 7], "salt")
    other.pool.allocate(3, "another")
    moved = restore(other.kv_cache, take_snapshot(rig.kv_cache))
    assert len(moved) == rig.num_held == 10 and sorted(moved.values()) == list(range(4, 14))
    assert other.cached([*ABCDEF, 7]) == 6 and other.cached([7, 7, 7], "salt") == 2
    assert other.pool.num_evictable == 10
    old = {tuple(moved.get(page, 0) for page in page_ids) for page_ids in rig.cache.block_pages()}
    assert old == {tuple(page_ids) for page_ids in other.cache.block_pages()}
    result = replay(other.log.events)
    assert result.counts == other.pool.reference_counts() and set(result.rows.values()) == {0, 2}


def test_a_window_page_that_was_gone_stays_gone(kind):
    rig, other = Rig(kind, windows=(None, 3)), Rig(kind, windows=(None, 3))
    match, tables = rig.begin(ABCDEF)
    rig.compute(match, tables, ABCDEF)
    rig.cache.evict_oldest(1)
    rig.end(match, tables)
    restore(other.kv_cache, take_snapshot(rig.kv_cache))
    assert other.num_held == rig.num_held == 5
    for length in range(1, 8):
        prompt = [*ABCDEF, 7][:length]
        assert other.cached(prompt) == rig.cached(prompt)


def test_a_smaller_pool_gets_what_was_used_last(kind):
    rig, other = Rig(kind), Rig(kind, num_pages=6)
    for first in (1, 2, 3):
        rig.store([first] * 4)
    rig.store([1] * 5)  # used again: now the latest
    assert len(restore(other.kv_cache, take_snapshot(rig.kv_cache))) == 5
    assert [other.cached([first] * 5) for first in (1, 2, 3)] == [4, 2, 4]


def test_the_next_victim_is_the_one_it_would_have_been(kind):
    rig, other = Rig(kind), Rig(kind)
    for first in (1, 2, 3):
        rig.store([first] * 4)
    rig.store([1] * 5)
    restore(other.kv_cache, take_snapshot(rig.kv_cache))
    assert victims(other) == victims(rig) == [2, 3, 1]


def victims(rig: Rig) -> list[int]:
    """Whose tokens leave the cache first."""
    gone: list[int] = []
    while rig.cache.oldest_use() is not None:
        rig.cache.evict_oldest(1)
        gone += [one for one in (1, 2, 3) if one not in gone and not rig.cached([one] * 5)]
    return gone


def test_what_requests_use_now_is_saved_too(kind):
    rig, other = Rig(kind), Rig(kind, num_pages=4)
    match, tables = rig.begin(ABCDEF)
    rig.compute(match, tables, ABCDEF)
    rig.store([7, 7, 7, 7])
    contents = take_snapshot(rig.kv_cache)
    assert len(contents.pages) == 5
    restore(other.kv_cache, contents)
    assert other.cached([*ABCDEF, 7]) + other.cached([7] * 5) == 6
    rig.end(match, tables)


def sources_cache(num_pages: int) -> KVCacheManager:
    layout = KVCacheLayout((KVCacheGroup((0,)), KVCacheGroup((1,), is_cross=True)))
    return KVCacheManager(layout, PagePool(num_pages, 2), PREFIX_CACHES["radix"])


def use_source(kv_cache: KVCacheManager, key: str, is_written: bool = True) -> None:
    source = kv_cache.encoder_cache.add(key, 3, kv_cache.allocate(2, "a") or [], "a")
    if is_written:
        kv_cache.encoder_cache.mark_written(source)
        kv_cache.encoder_cache.release(source, "a")


def test_sources_come_as_a_whole_and_unwritten_ones_not_at_all():
    kv_cache, other = sources_cache(20), sources_cache(6)
    for key in ("one", "two", "three"):
        use_source(kv_cache, key)
    use_source(kv_cache, "planned", is_written=False)
    contents = take_snapshot(kv_cache)
    assert [source.key for source in contents.sources] == ["one", "two", "three"]
    assert len(what_fits(contents, 5).pages) == 4
    moved = restore(other, contents)
    assert len(moved) == 4 and set(other.encoder_cache.sources) == {"two", "three"}
    assert other.pool.num_evictable == 4 and other.pool.num_free == 1
    other.encoder_cache.evict_oldest(1)
    assert set(other.encoder_cache.sources) == {"three"}, "the older one is the first to go"
    actual = other.encoder_cache.find("three")
    assert actual is not None and actual.is_written and actual.num_tokens == 3


def test_nothing_is_restored_over_what_is_there():
    rig = Rig("radix")
    rig.store(ABCDEF)
    with pytest.raises(AssertionError, match="a cache that is not empty"):
        restore(rig.kv_cache, take_snapshot(rig.kv_cache))


def test_a_query_made_before_finds_what_was_restored(kind):
    rig, other = Rig(kind), Rig(kind)
    query = PrefixQuery([*ABCDEF, 7], "")
    assert other.cache.peek(query) == 0
    rig.store(ABCDEF)
    restore(other.kv_cache, take_snapshot(rig.kv_cache))
    assert other.cache.peek(query) == 6
