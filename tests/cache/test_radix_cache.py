from __future__ import annotations

import random

from tests.cache.rig import Rig
from weft.cache.prefix_cache import PrefixQuery
from weft.cache.radix_cache import RadixCache, RadixNode, num_matching_blocks


def runs(cache: RadixCache) -> dict[tuple[int, ...], int]:
    """All tokens up to the end of each node, with its locks."""
    return {tuple(tokens): node.locks for _, tokens, _, node in cache.nodes()}


def radix(**settings) -> tuple[Rig, RadixCache]:
    rig = Rig("radix", **settings)
    assert isinstance(rig.cache, RadixCache)
    return rig, rig.cache


def test_a_locked_node_is_split_and_stays_locked_on_both_sides():
    rig, cache = radix()
    first = rig.begin([1, 2, 3, 4, 5, 6])
    rig.compute(*first, [1, 2, 3, 4, 5, 6])
    second = rig.begin([1, 2, 3, 4, 9, 9, 9])
    assert runs(cache) == {(): 2, (1, 2, 3, 4): 2, (1, 2, 3, 4, 5, 6): 1}
    rig.compute(*second, [1, 2, 3, 4, 9, 9, 9])
    rig.end(*first)
    assert runs(cache) == {
        (): 1,
        (1, 2, 3, 4): 1,
        (1, 2, 3, 4, 5, 6): 0,
        (1, 2, 3, 4, 9, 9): 1,
    }
    assert cache.evict_oldest(100) == 1 and cache.oldest_use() is None
    rig.end(*second)
    assert cache.evict_oldest(100) == 1 and cache.evict_oldest(100) == 2
    assert cache.roots == {} and rig.num_held == 0


def test_a_leaf_grows_in_place_while_only_its_own_sequence_uses_it():
    rig, cache = radix()
    tokens = [1, 2]
    match, tables = rig.begin(tokens)
    for token in range(3, 20):
        rig.compute(match, tables, tokens)
        fresh = rig.pool.allocate(
            tables.num_pages_needed(len(tokens), len(tokens) + 1), tables.owner
        )
        tables.add_pages(len(tokens), len(tokens) + 1, fresh or [])
        tokens.append(token)
    assert len(runs(cache)) == 2, "the root and one leaf"
    other = rig.begin(tokens)
    rig.compute(match, tables, [*tokens, 20])
    assert len(runs(cache)) == 3, "another match ends there: the new part is a node of its own"
    rig.end(match, tables)
    rig.end(*other)


def test_eviction_takes_leaves_before_their_parents():
    rig, cache = radix()
    rig.store([1, 2, 3, 4])
    rig.store([1, 2, 5, 6])
    rig.store([1, 2, 7, 8])
    order = []
    while cache.oldest_use() is not None:
        before = set(runs(cache))
        cache.evict_oldest(100)
        order.append(sorted(before - set(runs(cache)))[-1])
    assert order == [(1, 2, 3, 4), (1, 2, 5, 6), (1, 2, 7, 8), (1, 2)]


def test_the_queue_of_leaves_stays_as_small_as_the_tree():
    rig, cache = radix(num_pages=300)
    for _ in range(200):
        for start in range(4):
            rig.store([start, start, start])
    assert len(cache.leaves.heap) == 4


def test_locks_are_the_matches_below():
    rng, (rig, cache) = random.Random(1), radix(num_pages=3000)
    alive = []
    for _ in range(300):
        if rng.random() < 0.6:
            tokens = rng.choices([1, 2, 3], k=rng.randint(1, 9))
            match, tables = rig.begin(tokens)
            rig.compute(match, tables, tokens)
            alive.append((match, tables))
        elif alive:
            rig.end(*alive.pop(rng.randrange(len(alive))))
        expected: dict[RadixNode, int] = {}
        for match, _ in alive:
            node = match.handle
            while node is not None:
                expected[node] = expected.get(node, 0) + 1
                node = node.parent
        for _, _, _, node in cache.nodes():
            assert node.locks == expected.get(node, 0)


def test_agreeing_blocks_of_every_length():
    stored = list(range(20))
    for differs_at in range(20):
        tokens = stored[:differs_at] + [99] + stored[differs_at + 1 :]
        assert num_matching_blocks(stored, tokens, 4) == differs_at // 4
    assert num_matching_blocks(stored, stored[:11], 4) == 2


def test_a_query_that_is_looked_up_again_finds_what_a_new_one_finds():
    """It goes on from where it was, through splits, growth, eviction and other tails."""
    rng, (rig, cache) = random.Random(4), radix(num_pages=60)
    queries = [PrefixQuery(rng.choices([1, 2], k=rng.randint(3, 14)), "") for _ in range(20)]
    for _ in range(400):
        rig.store(rng.choices([1, 2], k=rng.randint(1, 14)))
        if rng.random() < 0.5:
            cache.evict_oldest(rng.randint(1, 4))
        while rig.pool.num_free < 10:
            cache.evict_oldest(1)
        for query in queries:
            assert cache.peek(query) == cache.peek(PrefixQuery(query.tokens, ""))
