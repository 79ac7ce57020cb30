"""The state shown by --watch: equal to the pool, to the replayed events and to the tree."""

from collections import Counter

import pytest

from tests.engine.tiny import tiny
from weft.cache.replay import ReplayedState
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.request import GenerationRequest, RequestOutput
from weft.look.watch_state import NestedNode, WatchLog, read_cache, run_label, token_label
from weft.sampling.params import SamplingParams

SAMPLED = SamplingParams(temperature=1.0, seed=5, logprobs=4)


def engine_of(kind: str = "decoder", **settings) -> Engine:
    one = tiny(kind, max_len=64)
    values = {"page_size": 4, "cache_gib": 0.0001, **settings}
    return Engine(one.model, one.tokenizer, EngineConfig(**values))


def submit(engine: Engine, text: str, n: int = 1) -> str:
    ids = engine.tokenizer.encode(text, add_special=False)
    return engine.submit(GenerationRequest(tuple(ids), 12, sampling=SAMPLED, n=n))


def nodes_of(roots) -> list[NestedNode]:
    nodes = list(roots)
    for node in nodes:
        nodes.extend(node.children)
    return nodes


@pytest.mark.parametrize("prefix_cache", ["radix", "hash", "none"])
def test_after_each_step_the_pages_are_those_of_the_replayed_events(prefix_cache):
    engine, replayed, events = engine_of(prefix_cache=prefix_cache), ReplayedState(), []
    engine.listen(events.append)
    submit(engine, "the cat sat on the mat", n=3)
    submit(engine, "the cat sat on a dog")
    submit(engine, "two apples")
    num_seen = 0
    while not engine.is_idle:
        engine.step()
        for event in events[num_seen:]:
            replayed.apply(event)
        num_seen = len(events)
        state = read_cache(engine)
        assert {one.page: one.num_rows for one in state.pages} == replayed.rows
        caches = {page: owners["prefix"] for page, owners in replayed.holders.items()}
        assert {one.page: one.is_cached for one in state.pages} == {
            page: bool(count) for page, count in caches.items()
        }
        for one in state.pages:
            assert one.num_tables + one.is_cached == engine.kv_cache.pool.counts[one.page]
    assert num_seen and state.num_usable == engine.kv_cache.pool.num_pages - 1


def test_the_tree_is_that_of_the_cache():
    engine = engine_of()
    submit(engine, "the cat sat on the mat")
    submit(engine, "the cat sat on a dog")
    while not engine.is_idle:
        engine.step()
        state = read_cache(engine)
        expected = Counter(
            (tuple(node.tokens), len(node.block_pages), node.locks)
            for _, _, _, node in engine.kv_cache.prefix_cache.nodes()
        )
        nodes = nodes_of(state.roots)
        assert Counter((one.tokens, one.num_pages, one.num_locks) for one in nodes) == expected
    (root,) = state.roots
    assert root.tokens == () and any(len(one.children) == 2 for one in nodes)
    assert sum(one.num_pages for one in nodes) == sum(one.is_cached for one in state.pages)
    assert submit(engine, "the cat sat on the mat") and engine.step()
    assert read_cache(engine).hit_tokens == engine.statistics().hit_tokens > 0


def test_another_cache_has_no_tree_and_sources_have_pages():
    assert read_cache(engine_of(prefix_cache="hash")).roots is None
    engine = engine_of("encoder-decoder")
    source = tuple(engine.tokenizer.encode("the cat sat"))
    engine.submit(GenerationRequest((1,), 8, source=source))
    engine.step()
    rows = Counter(one.num_rows for one in read_cache(engine).pages if one.is_cached)
    assert sum(number * rows[number] for number in rows) % len(source) == 0 < rows.total()


def test_reading_changes_nothing():
    first, second = engine_of(), engine_of()
    outputs: list[list[RequestOutput]] = [[], []]
    for engine, result in zip((first, second), outputs, strict=True):
        submit(engine, "the cat sat on the mat", n=2)
        while not engine.is_idle:
            result += engine.step()
            if engine is second:
                before = engine.kv_cache.pool.clock
                read_cache(engine)
                assert engine.kv_cache.pool.clock == before
    assert outputs[0] == outputs[1]
    assert read_cache(first) == read_cache(second)


def test_the_log_has_each_token_with_the_probabilities_of_the_engine():
    engine = engine_of()
    name = submit(engine, "the cat", n=2)
    log = WatchLog(engine.tokenizer)
    log.add_request(name, "the cat", 2)
    collected = {0: [], 1: []}
    while not engine.is_idle:
        for output in engine.step():
            added = log.add(7, output)
            assert len(added) == len(output.logprobs)
            collected[output.index] += output.logprobs
            for shown, one in zip(added, output.logprobs, strict=True):
                assert shown.probability == pytest.approx(2.718281828459045**one.logprob)
                others = [index for index, _ in one.top if index != one.id][:3]
                assert [label for label, _ in shown.others] == [
                    token_label(engine.tokenizer, index) for index in others
                ]
    for index in (0, 1):
        shown = [one.label for one in log.tokens if one.sample == index]
        assert shown == [token_label(engine.tokenizer, one.id) for one in collected[index]]
        assert log.samples[index].reason in ("length", "end")


def test_bytes_of_an_incomplete_character_are_hexadecimal():
    tokenizer = tiny("decoder").tokenizer
    ids = tokenizer.encode("\u864e", add_special=False)
    assert [token_label(tokenizer, index) for index in ids] == ["<E8>", "<99>", "<8E>"]
    assert run_label(tokenizer, ids) == "\u864e"
    assert run_label(tokenizer, [*ids, *ids[:2]]) == "\u864e\\xe8\\x99"
    assert token_label(tokenizer, 10**6) == "<id 1000000>"
    assert run_label(tokenizer, [*ids, 10**6]) == "\u864e"
