from __future__ import annotations

import pytest

from weft.cache.encoder_cache import EncodedSource, EncoderCache, source_key
from weft.cache.page_pool import PagePool


def added(cache: EncoderCache, key: str, num_tokens: int, owner: str) -> EncodedSource:
    pages = cache.pool.allocate(cache.num_pages(num_tokens), owner)
    assert pages is not None
    source = cache.add(key, num_tokens, pages, owner)
    source.is_written = True
    return source


def test_keys_tell_whole_sources_and_salts_apart():
    keys = {source_key(ids, salt) for ids in ([1, 2], [1, 2, 3], [2, 1]) for salt in ("", "x")}
    assert len(keys) == 6 and source_key((1, 2)) == source_key([1, 2])


def test_a_source_has_a_table_for_each_group():
    cache = EncoderCache(PagePool(20, 4), 2)
    source = added(cache, "k", 9, "a")
    assert cache.num_pages(9) == 6 and [len(table) for table in source.page_tables] == [3, 3]
    assert cache.find("k") is source and cache.find("other") is None


def test_a_used_source_stays_and_an_unused_one_waits_to_be_evicted():
    pool = PagePool(20, 4)
    cache = EncoderCache(pool, 1)
    source = added(cache, "k", 8, "a")
    cache.acquire(source, "b")
    cache.release(source, "a")
    assert cache.oldest_use() is None and pool.num_evictable == 0
    cache.release(source, "b")
    assert cache.oldest_use() is not None and pool.num_evictable == 2
    assert cache.evict_oldest(1) == 2, "a source goes as a whole"
    assert cache.find("k") is None and pool.num_free == pool.num_usable


def test_the_source_used_longest_ago_goes_first():
    cache = EncoderCache(PagePool(20, 4), 1)
    one, two = added(cache, "one", 4, "a"), added(cache, "two", 4, "a")
    cache.release(one, "a")
    cache.release(two, "a")
    cache.acquire(one, "b")
    cache.release(one, "b")
    cache.evict_oldest(1)
    assert cache.find("two") is None and cache.find("one") is one


def test_a_source_that_was_never_written_goes_with_its_last_user():
    pool = PagePool(20, 4)
    cache = EncoderCache(pool, 1)
    source = added(cache, "k", 4, "a")
    source.is_written = False
    cache.release(source, "a")
    assert cache.find("k") is None and pool.num_free == pool.num_usable


def test_a_second_source_of_the_same_key_is_our_bug():
    cache = EncoderCache(PagePool(20, 4), 1)
    added(cache, "k", 4, "a")
    with pytest.raises(AssertionError, match="is there already"):
        added(cache, "k", 4, "b")
