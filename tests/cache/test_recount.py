"""Recounting: after an exception the caches alone say which pages are held, and a cache that is
inconsistent is found rather than used."""

from __future__ import annotations

import random

import pytest

from tests.cache.rig import Rig
from weft.cache.encoder_cache import EncoderCache
from weft.cache.page_pool import PagePool
from weft.cache.replay import replay

WINDOWS = [(None,), (None, 3), (4,)]


def filled(kind: str, windows: tuple[int | None, ...]) -> Rig:
    """A cache with branches of different ages; two sequences run."""
    rig, rng = Rig(kind, windows, 90), random.Random(5)
    texts = [[rng.randrange(3) for _ in range(rng.choice([4, 6, 9]))] for _ in range(9)]
    for text in texts:
        rig.store(text)
    for text in texts[:2]:
        rig.begin([*text, 7, 8, 9])
    return rig


@pytest.mark.parametrize("windows", WINDOWS)
@pytest.mark.parametrize("kind", ["radix", "hash"])
def test_a_recount_frees_what_only_sequences_held(kind, windows):
    rig = filled(kind, windows)
    before = sorted(run[:3] for run in rig.cache.export())
    num_cached = sum(1 for ids in rig.cache.block_pages() for page in ids if page)
    rig.kv_cache.recount()
    rig.cache.check([])
    assert sorted(run[:3] for run in rig.cache.export()) == before
    assert rig.pool.num_evictable == num_cached == rig.num_held
    assert replay(rig.log.events).counts == rig.pool.reference_counts()
    pages = rig.kv_cache.allocate(rig.pool.num_usable, "all")
    assert pages is not None and sorted(pages) == list(range(1, rig.pool.num_pages))
    assert not any(any(page_ids) for page_ids in rig.cache.block_pages())


@pytest.mark.parametrize("kind", ["radix", "hash"])
def test_what_was_used_last_is_evicted_last_after_a_recount(kind):
    rig = Rig(kind)
    for tokens in ([1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 4, 5, 6]):
        rig.store(tokens)
    rig.kv_cache.recount()
    while rig.cached([5, 6, 7, 8, 0]):
        assert rig.kv_cache.evict(1) == 1
        assert rig.cached([1, 2, 3, 4, 5, 6, 0]) == 6
    assert rig.num_held == 3


def test_a_reset_frees_everything():
    rig = filled("radix", (None,))
    rig.kv_cache.reset()
    assert rig.pool.num_free == rig.pool.num_usable and not rig.cache.export()
    assert replay(rig.log.events).counts == {}
    rig.store([1, 2, 3, 4])
    assert rig.cached([1, 2, 3, 4, 5]) == 4


def leaf(rig: Rig):
    (child, *_) = rig.cache.roots[""].children.values()
    return child


def other_page(rig: Rig) -> int:
    (_, other, *_) = rig.cache.roots[""].children.values()
    return other.block_pages[0][0]


DAMAGE = {
    "tokens without a page": lambda rig: leaf(rig).tokens.extend([1, 1]),
    "a page without tokens": lambda rig: leaf(rig).block_pages.append([1]),
    "an end that is too far": lambda rig: setattr(leaf(rig), "end", 99),
    "another parent": lambda rig: setattr(leaf(rig), "parent", leaf(rig)),
    "another key": lambda rig: rig.cache.roots[""].children.update({(9, 9): leaf(rig)}),
    "a page twice": lambda rig: leaf(rig).block_pages[0].__setitem__(0, other_page(rig)),
    "no page": lambda rig: leaf(rig).block_pages[0].__setitem__(0, 0),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_tree_is_found(damage):
    rig = filled("radix", (None,))
    DAMAGE[damage](rig)
    with pytest.raises(AssertionError):
        rig.kv_cache.recount()


def test_damaged_blocks_of_the_hash_cache_are_found():
    rig = filled("hash", (None,))
    key, block = next((key, one) for key, one in rig.cache.blocks.items() if one.num_children)
    del rig.cache.blocks[key]
    with pytest.raises(AssertionError, match="continues an evicted one"):
        rig.kv_cache.recount()
    rig.cache.blocks[key] = block
    block.tokens.pop()
    with pytest.raises(AssertionError, match="a damaged block"):
        rig.kv_cache.recount()


def test_a_wrong_lock_is_found():
    for kind in ("radix", "hash"):
        rig = Rig(kind)
        rig.store([1, 2, 3, 4])
        match = rig.cache.match([1, 2, 3, 4, 5], "")
        rig.cache.check([match])
        with pytest.raises(AssertionError, match="of 0 matches"):
            rig.cache.check([])


def test_sources_that_were_not_written_are_forgotten():
    pool = PagePool(20, 4)
    cache = EncoderCache(pool, 1)
    for key, is_written in (("old", True), ("new", False)):
        cache.add(key, 5, pool.allocate(2, "a") or [], "a").is_written = is_written
    cache.recount()
    cache.check({})
    assert list(cache.sources) == list(cache.unused) == ["old"]
    cache.sources["old"].num_tokens = 50
    with pytest.raises(AssertionError, match="has 2 pages, not 13"):
        cache.recount()


def test_a_page_that_is_cached_twice_changes_nothing():
    pool = PagePool(9, 4)
    pool.allocate(3, "a")
    with pytest.raises(AssertionError, match="page 2 is cached twice"):
        pool.recount([2, 3, 2])
    assert pool.num_free == 5
    pool.recount([2, 3])
    assert pool.num_free == 6 and pool.num_evictable == 2
    assert pool.reference_counts() == {2: 1, 3: 1}
