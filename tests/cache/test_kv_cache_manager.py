from __future__ import annotations

from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.kv_groups import KVCacheGroup, KVCacheLayout
from weft.cache.page_pool import PagePool
from weft.cache.page_tables import PageTables
from weft.cache.prefix_cache import PrefixQuery
from weft.cache.radix_cache import RadixCache

LAYOUT = KVCacheLayout((KVCacheGroup((0,)), KVCacheGroup((1,), is_cross=True)))


def store(kv_cache: KVCacheManager, tokens: list[int]) -> None:
    tables = PageTables(kv_cache.pool, kv_cache.windows, "a")
    tables.add_pages(0, len(tokens), kv_cache.allocate(len(tokens) // 2, "a") or [])
    match = kv_cache.prefix_cache.match([], "")
    kv_cache.prefix_cache.extend(match, tokens, tables, len(tokens) // 2)
    kv_cache.prefix_cache.release(match, tables.release())


def use_source(kv_cache: KVCacheManager, key: str) -> None:
    source = kv_cache.encoder_cache.find(key)
    if source is None:
        source = kv_cache.encoder_cache.add(key, 3, kv_cache.allocate(2, "a") or [], "a")
        source.is_written = True
    else:
        kv_cache.encoder_cache.acquire(source, "a")
    kv_cache.encoder_cache.release(source, "a")


def test_the_victim_is_the_prefix_or_source_used_longest_ago():
    kv_cache = KVCacheManager(LAYOUT, PagePool(9, 2), RadixCache)
    store(kv_cache, [1, 2, 3, 4])
    use_source(kv_cache, "one")
    store(kv_cache, [5, 6, 7, 8])
    use_source(kv_cache, "two")
    use_source(kv_cache, "one")
    assert kv_cache.num_available == 8 and kv_cache.pool.num_free == 0
    result = []
    for _ in range(4):
        assert kv_cache.allocate(2, "b") is not None
        cached = [
            kv_cache.prefix_cache.peek(PrefixQuery([t, t + 1, t + 2, t + 3, 9], "")) for t in (1, 5)
        ]
        result.append(
            (*cached, *(kv_cache.encoder_cache.find(key) is not None for key in ("one", "two")))
        )
    assert result == [
        (0, 4, True, True),
        (0, 0, True, True),
        (0, 0, True, False),
        (0, 0, False, False),
    ]
    assert kv_cache.num_available == 0 and kv_cache.allocate(1, "b") is None


def test_what_does_not_fit_evicts_nothing():
    kv_cache = KVCacheManager(LAYOUT, PagePool(6, 2), RadixCache)
    store(kv_cache, [1, 2, 3, 4])
    assert kv_cache.allocate(6, "b") is None
    assert kv_cache.pool.num_evictable == 2
