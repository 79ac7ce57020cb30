from __future__ import annotations

from weft.cache.layout import Layout, Stripe
from weft.cache.memory import Memory
from weft.cache.pages import PagePool
from weft.cache.prefix import Probe
from weft.cache.radix import RadixCache
from weft.cache.tables import Tables

LAYOUT = Layout((Stripe((0,)), Stripe((1,), is_cross=True)))


def store(memory: Memory, tokens: list[int]) -> None:
    tables = Tables(memory.pool, memory.windows, "a")
    tables.grow(0, len(tokens), memory.allocate(len(tokens) // 2, "a") or [])
    match = memory.prefix.match([], "")
    memory.prefix.extend(match, tokens, tables, len(tokens) // 2)
    memory.prefix.release(match, tables.release())


def use_source(memory: Memory, key: str) -> None:
    source = memory.sources.find(key)
    if source is None:
        source = memory.sources.add(key, 3, memory.allocate(2, "a") or [], "a")
        source.is_written = True
    else:
        memory.sources.acquire(source, "a")
    memory.sources.release(source, "a")


def test_the_victim_is_the_prefix_or_source_used_longest_ago():
    memory = Memory(LAYOUT, PagePool(9, 2), RadixCache)
    store(memory, [1, 2, 3, 4])
    use_source(memory, "one")
    store(memory, [5, 6, 7, 8])
    use_source(memory, "two")
    use_source(memory, "one")
    assert memory.room == 8 and memory.pool.num_free == 0
    found = []
    for _ in range(4):
        assert memory.allocate(2, "b") is not None
        cached = [memory.prefix.peek(Probe([t, t + 1, t + 2, t + 3, 9], "")) for t in (1, 5)]
        found.append((*cached, *(memory.sources.find(key) is not None for key in ("one", "two"))))
    assert found == [
        (0, 4, True, True),
        (0, 0, True, True),
        (0, 0, True, False),
        (0, 0, False, False),
    ]
    assert memory.room == 0 and memory.allocate(1, "b") is None


def test_what_does_not_fit_evicts_nothing():
    memory = Memory(LAYOUT, PagePool(6, 2), RadixCache)
    store(memory, [1, 2, 3, 4])
    assert memory.allocate(6, "b") is None
    assert memory.pool.num_idle == 2
