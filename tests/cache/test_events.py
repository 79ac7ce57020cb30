from __future__ import annotations

from collections import Counter

import pytest

from weft.cache.events import EventLog, EventQueue, PageEvent, TreeEvent
from weft.cache.page_pool import PagePool
from weft.cache.replay import replay


def test_replay_names_the_holders():
    log = EventLog()
    pool = PagePool(6, 4, log)
    pool.step = 7
    pages = pool.allocate(2, "a") or []
    pool.add_to_cache(pages, "prefix")
    pool.free(pages[:1], "a")
    state = replay(log.events)
    assert state.holders == {pages[0]: Counter(prefix=1), pages[1]: Counter(a=1, prefix=1)}
    assert state.counts == pool.reference_counts()
    assert log.events[0] == PageEvent("alloc", 7, pages[0], "a")


def test_replay_goes_on_from_an_earlier_state():
    first = replay([PageEvent("alloc", 1, 3, "a")])
    second = replay([PageEvent("write", 1, 3, "a", 4), PageEvent("evict", 2, 3, "a")], onto=first)
    assert second.counts == {}


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([PageEvent("free", 1, 3, "a")], "free of page 3, which is free"),
        ([PageEvent("alloc", 1, 3, "a")] * 2, "page 3 is allocated while"),
        ([PageEvent("alloc", 1, 3, "a"), PageEvent("free", 1, 3, "b")], "b frees page 3 held by"),
    ],
)
def test_a_stream_that_contradicts_itself_is_refused(events, problem):
    with pytest.raises(AssertionError, match=problem):
        replay(events)


def test_a_full_log_drops_the_oldest_and_says_how_many():
    log = EventLog(limit=2)
    pool = PagePool(6, 4, log)
    pool.allocate(5, "a")
    assert len(log.events) == 2 and log.num_dropped == 3


def test_without_a_listener_there_are_no_events():
    pool = PagePool(6)
    pool.allocate(5, "a")
    assert pool.listener is None


def test_a_reset_forgets_all_pages():
    events = [PageEvent("alloc", 1, 3, "a"), PageEvent("reset", 2, 0, "")]
    state = replay([*events, PageEvent("alloc", 2, 4, "prefix")])
    assert state.counts == {4: 1} and state.rows == {4: 0}


def pages_to(heard, failing=None, error=ValueError):
    """A listener that notes pages, and raises at one of them."""

    def listener(event):
        heard.append(event.page)
        if event.page == failing:
            raise error("no such page")

    return listener


def put(queue, *pages):
    for page in pages:
        queue.collector(PageEvent("alloc", 1, page, "a"))


def test_a_listener_that_raises_is_removed_and_the_others_hear_everything(caplog):
    queue, first, second = EventQueue(), [], []
    queue.add(pages_to(first, failing=2))
    queue.add(pages_to(second))
    put(queue, 1, 2, 3)
    queue.deliver()
    assert first == [1, 2] and second == [1, 2, 3] and len(queue.inboxes) == 1
    assert "no such page" in caplog.text and "listener=removed" in caplog.text
    put(queue, 4)
    queue.deliver()
    assert first == [1, 2] and second == [1, 2, 3, 4]


def test_an_interrupt_in_a_listener_loses_no_event_of_any():
    queue, first, second = EventQueue(), [], []
    queue.add(pages_to(first, failing=1, error=KeyboardInterrupt))
    queue.add(pages_to(second))
    put(queue, 1, 2)
    with pytest.raises(KeyboardInterrupt):
        queue.deliver()
    queue.deliver()
    assert first == second == [1, 2]


def test_a_listener_hears_nothing_from_before_and_after():
    queue, heard = EventQueue(), []
    listener = pages_to(heard)
    assert queue.collector is None
    queue.add(pages_to([]))
    put(queue, 1)
    queue.add(listener)
    put(queue, 2, 3)
    queue.deliver()
    put(queue, 4)
    queue.remove(listener)
    queue.deliver()
    assert heard == [2, 3] and queue.has_listeners


BLOCKS = [[4, 9], [5, 0]]


@pytest.mark.parametrize(
    ("event", "entry"),
    [
        (PageEvent("alloc", 7, 3, "r1/0"), {"op": "alloc", "page": 3, "owner": "r1/0"}),
        (PageEvent("write", 7, 3, "a", 2), {"op": "write", "page": 3, "owner": "a", "rows": 2}),
        (PageEvent("copy", 7, 3, "a", 2), {"op": "copy", "page": 3, "owner": "a", "from": 2}),
        (PageEvent("reset", 7, 0, ""), {"op": "reset"}),
        (
            TreeEvent("node_added", 7, 2, 1, "salt", [6, 7], BLOCKS, last_use=5),
            {
                "op": "node_added",
                "node": 2,
                "parent": 1,
                "namespace": "salt",
                "tokens": [6, 7],
                "num_tokens": 2,
                "blocks": BLOCKS,
                "last_use": 5,
            },
        ),
        (
            TreeEvent("node_grown", 7, 2, tokens=[6, 7], blocks=BLOCKS),
            {"op": "node_grown", "node": 2, "tokens": [6, 7], "num_tokens": 2, "blocks": BLOCKS},
        ),
        (
            TreeEvent("node_split", 7, 2, 8, number=1),
            {"op": "node_split", "node": 2, "parent": 8, "num_blocks": 1},
        ),
        (
            TreeEvent("node_shortened", 7, 2, number=1),
            {"op": "node_shortened", "node": 2, "num_blocks": 1},
        ),
        (
            TreeEvent("node_filled", 7, 2, blocks=[[4, 9]], number=3),
            {"op": "node_filled", "node": 2, "block": 3, "pages": [4, 9]},
        ),
        (TreeEvent("node_removed", 7, 2), {"op": "node_removed", "node": 2}),
        (
            TreeEvent("locked", 7, 2, number=3, last_use=11),
            {"op": "locked", "node": 2, "locks": 3, "last_use": 11},
        ),
    ],
)
def test_the_json_of_an_event_has_its_documented_fields(event, entry):
    assert event.to_json() == {**entry, "step": 7}
