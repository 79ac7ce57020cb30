from __future__ import annotations

import random

import pytest

from weft.cache.events import EventLog
from weft.cache.page_pool import PagePool
from weft.cache.replay import replay
from weft.core.errors import UsageError


def test_the_null_page_is_never_allocated():
    pool = PagePool(5)
    assert sorted(pool.allocate(4, "a") or []) == [1, 2, 3, 4]
    assert pool.allocate(1, "a") is None


def test_an_allocation_that_does_not_fit_changes_nothing():
    pool = PagePool(5)
    assert pool.allocate(5, "a") is None
    assert pool.num_free == 4 and pool.reference_counts() == {}


def test_a_page_is_free_again_when_its_last_holder_lets_go():
    pool = PagePool(4)
    (page,) = pool.allocate(1, "a") or []
    pool.share([page], "b")
    pool.free([page], "a")
    assert pool.reference_counts() == {page: 1} and pool.num_free == 2
    pool.free([page, 0], "b")
    assert pool.num_free == 3


def test_a_page_that_only_a_cache_holds_is_idle():
    pool = PagePool(4)
    pages = pool.allocate(2, "a") or []
    pool.add_to_cache(pages, "prefix")
    assert pool.num_evictable == 0
    pool.free(pages, "a")
    assert pool.num_evictable == 2
    pool.share(pages[:1], "b")
    assert pool.num_evictable == 1
    assert pool.evict(pages, "prefix") == 1
    assert pool.num_evictable == 0 and pool.reference_counts() == {pages[0]: 1}


@pytest.mark.parametrize(("num_pages", "page_size"), [(1, 16), (8, 0)])
def test_a_pool_without_pages_is_refused(num_pages, page_size):
    with pytest.raises(UsageError, match=f"{num_pages} pages of {page_size} rows"):
        PagePool(num_pages, page_size)


def test_freeing_and_sharing_what_is_free_are_our_bugs():
    pool = PagePool(4)
    with pytest.raises(AssertionError, match="page 2 is shared by a but its count is 0"):
        pool.share([2], "a")
    with pytest.raises(AssertionError, match="page 2 is freed by a: its count is -1"):
        pool.free([2], "a")


def test_random_use_keeps_pages_disjoint_and_replays():
    rng, log = random.Random(3), EventLog(None)
    pool = PagePool(20, 4, log)
    held: list[tuple[str, list[int]]] = []
    for number in range(300):
        owner = f"o{number}"
        if rng.random() < 0.5:
            pages = pool.allocate(rng.randint(1, 5), owner)
            if pages is not None:
                held.append((owner, pages))
        elif held and rng.random() < 0.5:
            pages = rng.choice(held)[1]
            pool.share(pages, owner)
            held.append((owner, pages))
        elif held:
            owner, pages = held.pop(rng.randrange(len(held)))
            pool.free(pages, owner)
        in_use = {page for _, pages in held for page in pages}
        assert in_use.isdisjoint(pool.free_pages)
        assert len(in_use) + pool.num_free == pool.num_usable
        assert replay(log.events).counts == pool.reference_counts()
