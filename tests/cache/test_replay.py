"""The tree that events lead to is the tree of the cache, after every operation of random use."""

from __future__ import annotations

import random

import pytest

from tests.cache.rig import Rig
from weft.cache.events import PageEvent, TreeEvent
from weft.cache.replay import ReplayedState, replay

WINDOWS = [(None,), (None, 3), (4,)]
ROOT, CHILD = (
    TreeEvent("node_added", 1, 1),
    TreeEvent("node_added", 1, 2, 1, "", [6, 7, 8, 9], [[4], [5]]),
)


class Users:
    """Sequences that come, go and are evicted at random, and what their events lead to."""

    def __init__(self, windows: tuple[int | None, ...], seed: int) -> None:
        self.rig, self.rng = Rig("radix", windows, 24), random.Random(seed)
        self.running = [self.begin()]
        self.state = ReplayedState()
        self.kinds: set[str] = set()

    def begin(self):
        rng, rig = self.rng, self.rig
        text = [rng.randrange(2) for _ in range(rng.choice([3, 6, 8, 11]))]
        if rig.kv_cache.num_available < len(text) * len(rig.windows):
            return None
        while rig.pool.num_free < len(text) * len(rig.windows):
            rig.kv_cache.evict(2)
        match, tables = rig.begin(text, rng.choice(["", "salt"]))
        return match, tables, text

    def act(self) -> None:
        rng, rig = self.rng, self.rig
        action = rng.choice(["begin", "compute", "compute", "end", "evict", "recount"])
        if action == "begin" and (one := self.begin()) is not None:
            self.running.append(one)
        elif action == "evict" and rig.pool.num_evictable:
            rig.kv_cache.evict(rng.randrange(1, 4))
        elif action == "recount" and rng.random() < 0.2:
            self.running.clear()
            rng.choice([rig.kv_cache.recount, rig.kv_cache.reset])()
        elif self.running and action == "compute":
            match, tables, text = rng.choice(self.running)
            if match.length < len(text) // 2 * 2:
                rig.compute(match, tables, text)
        elif self.running and action == "end":
            match, tables, _ = self.running.pop(rng.randrange(len(self.running)))
            rig.end(match, tables)

    def check(self) -> None:
        events = self.rig.log.events
        self.kinds.update(event.kind for event in events)
        replay(events, self.state)
        events.clear()
        assert self.state.nodes == self.rig.cache.tree()
        assert self.state.counts == self.rig.pool.reference_counts()


@pytest.mark.parametrize("windows", WINDOWS)
def test_the_replayed_tree_equals_the_cache_after_every_operation(windows):
    kinds: set[str] = set()
    for seed in range(8):
        users = Users(windows, seed)
        for _ in range(150):
            users.act()
            users.check()
        kinds |= users.kinds
    expected = {"node_added", "node_split", "node_removed", "locked", "unlocked", "reset"}
    expected |= {"node_filled"} if windows == (None, 3) else set()
    expected |= {"node_shortened"} if windows == (None,) else set()
    assert expected <= kinds, f"not tested: {expected - kinds}"


def test_a_node_that_grows_and_is_shortened_keeps_tokens_and_blocks_together():
    pages = [PageEvent("alloc", 1, page, "prefix") for page in (4, 5, 6)]
    grown = TreeEvent("node_grown", 1, 2, tokens=[1, 0], blocks=[[6]])
    evicted = PageEvent("evict", 2, 6, "prefix")
    state = replay([*pages, ROOT, CHILD, grown, evicted])
    assert state.nodes[2].blocks == [[4], [5], [0]]
    replay([TreeEvent("node_shortened", 2, 2, number=2)], state)
    assert state.nodes[2].tokens == [6, 7, 8, 9] and state.nodes[2].blocks == [[4], [5]]


def test_a_split_node_gives_its_locks_to_the_new_parent():
    locked = TreeEvent("locked", 1, 2, number=3, last_use=9)
    state = replay([ROOT, CHILD, locked, TreeEvent("node_split", 1, 2, 3, number=1)])
    assert state.to_json()["nodes"][1:] == [
        {**NODE, "node": 2, "parent": 3, "tokens": [8, 9], "blocks": [[5]]},
        {**NODE, "node": 3, "parent": 1, "tokens": [6, 7], "blocks": [[4]]},
    ]


NODE = {"namespace": "", "num_tokens": 2, "locks": 3, "last_use": 9}


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        ([TreeEvent("locked", 1, 7, number=1)], "locked of node 7, which does not exist"),
        ([CHILD], "node 2 is added below 1, which does not exist"),
        ([ROOT, ROOT], "node 1 is added twice"),
        ([ROOT, CHILD, TreeEvent("node_split", 1, 2, 1, number=1)], "by node 1, which exists"),
        ([ROOT, CHILD, TreeEvent("node_split", 1, 2, 3, number=2)], "2 blocks is split after 2"),
        ([ROOT, CHILD, TreeEvent("node_removed", 1, 1)], "node 1 is removed with 0 locks"),
        ([ROOT, CHILD, TreeEvent("node_removed", 1, 2)], r"pages \[4, 5\] .* are not evicted"),
    ],
)
def test_events_that_contradict_the_tree_are_refused(events, problem):
    with pytest.raises(AssertionError, match=problem):
        replay(events)
