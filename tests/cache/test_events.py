from __future__ import annotations

from collections import Counter

import pytest

from weft.cache.events import CacheEvent, EventLog, EventQueue, replay
from weft.cache.page_pool import PagePool


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
    assert log.events[0] == CacheEvent("alloc", 7, pages[0], "a")


def test_replay_goes_on_from_an_earlier_state():
    first = replay([CacheEvent("alloc", 1, 3, "a")])
    second = replay([CacheEvent("write", 1, 3, "a", 4), CacheEvent("evict", 2, 3, "a")], onto=first)
    assert second.counts == {}


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([CacheEvent("free", 1, 3, "a")], "free of page 3, which is free"),
        ([CacheEvent("alloc", 1, 3, "a")] * 2, "page 3 is allocated while"),
        ([CacheEvent("alloc", 1, 3, "a"), CacheEvent("free", 1, 3, "b")], "b frees page 3 held by"),
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
    events = [CacheEvent("alloc", 1, 3, "a"), CacheEvent("reset", 2, 0, "")]
    state = replay([*events, CacheEvent("alloc", 2, 4, "prefix")])
    assert state.counts == {4: 1} and state.rows == {4: 0}


def test_a_queue_delivers_each_event_once_and_removes_a_listener_that_raises(caplog):
    queue, heard = EventQueue(), []

    def listener(event):
        heard.append(event.page)
        if event.page == 2:
            raise ValueError("no second page")

    queue.listener = listener
    queue.events.extend(CacheEvent("alloc", 1, page, "a") for page in (1, 2, 3))
    queue.deliver()
    assert heard == [1, 2] and not queue.events and queue.listener is None
    assert "no second page" in caplog.text and "listener=removed" in caplog.text


def test_an_interrupt_in_a_listener_leaves_the_other_events():
    queue, heard = EventQueue(), []

    def listener(event):
        heard.append(event.page)
        if event.page == 1:
            raise KeyboardInterrupt

    queue.listener = listener
    queue.events.extend(CacheEvent("alloc", 1, page, "a") for page in (1, 2))
    with pytest.raises(KeyboardInterrupt):
        queue.deliver()
    queue.deliver()
    assert heard == [1, 2]
