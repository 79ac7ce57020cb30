"""A second engine on shared weights: the scripted scenario, and what viewers are told of it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from tests.engine import plain
from tests.engine.test_attention_rows import MODELS
from tests.engine.tiny import tiny
from weft.cache.replay import ReplayedState
from weft.core.errors import ConfigError, UsageError
from weft.engine.beam_search import BeamConfig
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.request import GenerationRequest
from weft.look.scratch_engine import ScratchConfig, ScratchEngine, letters

IDS = [5, 9, 30, 7, 8, 6, 40, 41, 12, 13, 31, 32, 33, 34, 35, 36, 10, 11]
SOURCE = [7, 8, 9, 30, 31]


def scripted(name: str) -> ScratchEngine:
    checkpoint = tiny(**MODELS[name])
    source = SOURCE if checkpoint.model.config.kind == "encoder-decoder" else None
    return ScratchEngine.with_scenario(checkpoint.model, checkpoint.tokenizer, IDS, source)


@pytest.mark.parametrize("name", ["gqa", "mla", "some windows", "t5"])
def test_the_scenario_shares_evicts_and_preempts_and_its_events_are_complete(name: str) -> None:
    scratch, state = scripted(name), ReplayedState()
    before = state.to_json()
    kinds, preempted, shared = Counter[str](), list[str](), dict[str, int]()
    while not scratch.is_idle:
        step = scratch.step()
        for event in step.events:
            state.apply(event)
            kinds[event.kind] += 1
        assert state == scratch.state, f"after step {step.number}"
        snapshot = scratch.snapshot()
        assert snapshot["pages"] == state.to_json()["pages"]
        assert snapshot["nodes"] == state.to_json()["nodes"]
        json.dumps(snapshot)
        preempted += step.preempted
        for one in snapshot["requests"]:
            if one["num_cached"] is not None:
                shared.setdefault(one["name"], one["num_cached"])
    assert scratch.num_evicted >= 5 and snapshot["preemptions"] == len(preempted)
    assert preempted or name == "some windows"
    assert shared["c"] == 12, "three pages of 4 tokens are shared"
    assert kinds["node_split"] and kinds["copy"] and kinds["evict"] >= 5
    assert before != state.to_json()
    ends = {one["name"]: one["finish"] for one in scratch.snapshot()["requests"]}
    assert ends == {**dict.fromkeys("abcde", "length"), "d": "end"}, "d is a beam search"


def test_the_pool_of_the_scenario_has_24_pages() -> None:
    snapshot = scripted("gqa").snapshot()
    assert (snapshot["num_pages"], snapshot["page_size"]) == (24, 4)
    assert snapshot["pages"] == snapshot["nodes"] == [] and not snapshot["is_idle"]


def test_weights_are_shared_and_the_other_engine_is_untouched() -> None:
    checkpoint = tiny("decoder")
    engine = Engine(checkpoint.model, checkpoint.tokenizer, EngineConfig(page_size=4))
    weights = {id(one) for one in engine.model.parameters()}
    scratch = ScratchEngine.with_scenario(checkpoint.model, checkpoint.tokenizer, IDS)
    scratch.run()
    assert {id(one) for one in scratch.engine.model.parameters()} == weights
    assert engine.cache_state() == ReplayedState() and engine.kv_cache.pool.step == 0
    engine.submit(GenerationRequest((5, 9, 30), 4))
    tokens = [token for _ in range(9) for output in engine.step() for token in output.tokens]
    assert tokens == plain.greedy(engine.model, [5, 9, 30], 4)


def decoder(**config: Any) -> ScratchEngine:
    checkpoint = tiny("decoder")
    settings = {"num_pages": 12, "page_size": 4, **config}
    return ScratchEngine(checkpoint.model, checkpoint.tokenizer, ScratchConfig(**settings))


def test_tokens_are_those_of_the_model_and_forks_are_seen_while_they_run() -> None:
    scratch = decoder()
    scratch.submit(GenerationRequest(tuple(IDS[:5]), 6))
    scratch.submit(GenerationRequest(tuple(IDS[:4]), 5, beam=BeamConfig(3, num_best=3)))
    scratch.step()
    a, b = scratch.snapshot()["requests"]
    assert a["state"] == b["state"] == "running" and len(b["sequences"]) == 3
    assert all(len(one["tokens"]) == 1 and one["tables"][0] for one in b["sequences"])
    scratch.run()
    a, b = scratch.snapshot()["requests"]
    assert a["outputs"] == [plain.greedy(scratch.engine.model, IDS[:5], 6)]
    assert len(b["outputs"]) == 3 and b["state"] == "finished"


def test_steps_are_replayed_from_any_that_was_seen() -> None:
    scratch = decoder()
    scratch.submit(GenerationRequest(tuple(IDS[:5]), 3))
    name = scratch.submit_later(GenerationRequest(tuple(IDS[:9]), 3), 3)
    steps = scratch.run()
    assert [step.number for step in steps] == [1, 2, 3, 4, 5]
    assert [step.arrived for step in steps] == [["a"], [], [name], [], []]
    assert scratch.steps_since(3) == steps[3:] and scratch.steps_since(5) == []
    with pytest.raises(UsageError, match="nothing is left to do"):
        scratch.step()


def test_an_aborted_request_gives_its_pages_back() -> None:
    scratch = decoder(prefix_cache="none")
    scratch.submit(GenerationRequest(tuple(IDS[:5]), 9))
    scratch.step()
    scratch.abort("a")
    scratch.abort(scratch.submit(GenerationRequest(tuple(IDS[:5]), 9)))
    assert scratch.is_idle and scratch.state == ReplayedState()
    assert [one["finish"] for one in scratch.snapshot()["requests"]] == ["aborted", "aborted"]


def test_what_does_not_fit_is_refused_in_one_sentence() -> None:
    scratch = decoder(num_pages=4)
    with pytest.raises(UsageError, match=r"max_len is 16 \(num_pages: the KV cache has 4 pages"):
        scratch.submit(GenerationRequest(tuple(IDS), 5))
    with pytest.raises(ConfigError, match="num_pages"):
        ScratchConfig(num_pages=1)
    checkpoint = tiny("decoder")
    with pytest.raises(UsageError, match="has 8 tokens, but the scenario needs 16"):
        ScratchEngine.with_scenario(checkpoint.model, checkpoint.tokenizer, IDS[:8])


def test_names_of_requests_are_letters() -> None:
    assert [letters(number) for number in (0, 25, 26, 27, 701, 702)] == [
        *("a", "z", "aa", "ab", "zz", "aaa")
    ]
