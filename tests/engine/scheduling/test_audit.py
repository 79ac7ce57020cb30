"""The audit itself: each thing that must hold is broken by hand, and it is noticed. An audit that
cannot fail would make the fuzz tests worthless."""

from __future__ import annotations

import pytest

from tests.engine.scheduling.world import CROSS, WINDOWS, World
from weft.cache.events import CacheEvent
from weft.engine.scheduling.sequence import Request, Sequence


def sequence_of(world: World, name: str) -> Sequence:
    return world.state.groups[name].first


@pytest.fixture
def world() -> World:
    """Two requests that share two full pages and have a third each, of which one row is filled."""
    world = World()
    for name, last in (("a", 40), ("b", 41)):
        world.add(Request(name, (*range(8), last), 9))
        world.step()
    world.check()
    return world


def test_a_page_that_was_never_freed_is_noticed(world):
    world.pool.allocate(1, "ghost")
    with pytest.raises(AssertionError, match="reference counts differ"):
        world.check()


def test_a_page_that_was_freed_twice_is_noticed(world):
    world.pool.free([sequence_of(world, "a").tables.by_group[0][0]], "a/0")
    with pytest.raises(AssertionError, match="reference counts differ"):
        world.check()


def test_an_unfinished_page_of_two_requests_is_noticed(world):
    one, other = (sequence_of(world, name).tables for name in "ab")
    page = one.by_group[0][2]
    world.pool.share([page], other.owner)
    world.pool.free([other.by_group[0][2]], other.owner)
    other.by_group[0][2] = page
    with pytest.raises(AssertionError, match=f"page {page} of two requests is not full"):
        world.check()


def test_a_full_page_of_other_tokens_is_noticed(world):
    sequence_of(world, "b").tokens[1] = 77
    with pytest.raises(AssertionError, match="is shared by different tokens"):
        world.check()


def test_a_page_in_two_places_is_noticed():
    world = World(layout=WINDOWS)
    world.add(Request("a", (1, 2, 3), 9))
    world.step()
    first, second, _ = sequence_of(world, "a").tables.by_group
    world.pool.share([first[0]], "a/0")
    world.pool.free([second[0]], "a/0")
    second[0] = first[0]
    with pytest.raises(AssertionError, match="is in two places"):
        world.check()


def test_a_wrong_count_of_evictable_pages_is_noticed(world):
    world.pool.num_evictable += 1
    with pytest.raises(AssertionError, match="0 pages are evictable, the pool counts 1"):
        world.check()


def test_a_page_that_is_lost_from_the_free_ones_is_noticed(world):
    world.pool.free_pages.pop()
    with pytest.raises(AssertionError, match="!= 63"):
        world.check()


def test_a_page_that_a_cache_forgot_is_noticed(world):
    page = sequence_of(world, "a").tables.by_group[0][0]
    world.pool.is_cached[page] = 0
    with pytest.raises(AssertionError, match="disagree about what is cached"):
        world.check()


@pytest.mark.parametrize(
    "kind", ["alloc", "share", "free", "write", "copy", "node_added", "node_grown", "unlocked"]
)
def test_an_event_that_is_not_reported_is_noticed(kind):
    """Whatever kind of event is left out once, the replay is not the pool's own state."""
    world = World(layout=CROSS)
    reported, left_out = world.pool.listener, []

    def forgetful(event: CacheEvent) -> None:
        if event.kind == kind and not left_out:
            left_out.append(event)
        else:
            reported(event)

    world.pool.listener = forgetful
    world.add(Request("a", (1, 2, 3, 4, 5), 9, source=(7, 8, 9), n=2))
    with pytest.raises(AssertionError):
        world.run_all()
    assert left_out


def test_the_events_of_a_source_say_how_full_its_pages_are():
    world = World(layout=CROSS)
    world.add(Request("a", (1,), 3, source=(7, 8, 9, 10, 11, 12)))
    world.step()
    source = world.state.groups["a"].source
    world.check()
    assert [world.replayed.rows[page] for page in source.all_pages] == [4, 2]


def test_an_evicted_page_that_is_not_reported_is_noticed(world):
    world.run_all()
    world.pool.listener = None
    world.kv_cache.evict(1)
    with pytest.raises(AssertionError, match="replay differs"):
        world.check()


def test_a_cancelled_request_that_keeps_a_page_is_noticed(world):
    group = world.state.groups["a"]
    del world.state.groups["a"], world.state.running["a"]  # gone, but its pages were not freed
    assert group.first.tables is not None
    with pytest.raises(AssertionError, match="reference counts differ"):
        world.check()


def test_a_lock_without_a_sequence_is_noticed(world):
    world.kv_cache.prefix_cache.match([*range(8), 9], "")
    with pytest.raises(AssertionError, match="locks of"):
        world.check()


def test_a_source_with_a_wrong_number_of_users_is_noticed():
    world = World(layout=CROSS)
    world.add(Request("a", (1,), 3, source=(7, 8, 9)))
    world.step()
    world.state.groups["a"].source.uses += 1
    with pytest.raises(AssertionError, match="has 2 users, not 1"):
        world.check()


def test_a_request_in_no_queue_or_in_two_is_noticed(world):
    group = world.state.groups["a"]
    world.state.waiting.queue_of(group).add(group)
    with pytest.raises(AssertionError, match="wait or run"):
        world.check()
    world.state.waiting.remove(group)
    world.check()
    world.add(Request("c", (1, 2), 3))
    world.state.waiting.queues[""].arrived.clear()
    with pytest.raises(AssertionError, match="wait or run"):
        world.check()
