"""Where a token of a request looked, found again from the pages: the weights of the whole uncached
pass, for every kind of heads, mask and position, and nothing in the cache changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from weft.cache.events import EventLog
from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch
from weft.engine.attention_rows import recorded
from weft.engine.beam_search import BeamConfig
from weft.engine.client import EngineClient
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.request import GenerationRequest
from weft.models.transformer import EncoderDecoder
from weft.sampling.params import SamplingParams

from .tiny import tiny

LATENT = {"kv_rank": 12, "rope_size": 4}
WINDOW = {"kind": "window", "window": 7}
ROTARY = {"position": {"kind": "rotary"}}


def heads(kind: str = "mha", **settings: Any) -> dict[str, Any]:
    return {"attention": {"kind": kind, "num_heads": 4, **settings}}


MODELS: dict[str, dict[str, Any]] = {
    "mha": {"kind": "decoder", **ROTARY, **heads()},
    "gqa": {"kind": "decoder", **ROTARY, **heads("gqa", num_kv_heads=2, qk_norm=True)},
    "mqa, learned": {"kind": "decoder", "position": {"kind": "learned"}, **heads("mqa")},
    "mla": {"kind": "decoder", **ROTARY, **heads("mla", latent={**LATENT, "form": "absorbed"})},
    "mla expanded": {
        "kind": "decoder",
        **ROTARY,
        **heads("mla", latent={**LATENT, "query_rank": 6, "form": "expanded"}),
    },
    "window": {"kind": "decoder", **ROTARY, **heads(pattern=WINDOW)},
    "some windows": {"kind": "decoder", **ROTARY, **heads(pattern={**WINDOW, "full_every": 2})},
    "mla window": {"kind": "decoder", **ROTARY, **heads("mla", pattern=WINDOW, latent=LATENT)},
    "alibi": {"kind": "decoder", "position": {"kind": "alibi"}, **heads(softcap=20.0)},
    "shaw, global": {
        "kind": "decoder",
        "position": {"kind": "shaw"},
        **heads(pattern={"kind": "global", "window": 3, "global_tokens": 2}),
    },
    "t5": {"kind": "encoder-decoder", "position": {"kind": "bucketed", "max_distance": 20}},
    "source": {"kind": "encoder-decoder", **ROTARY, **heads("gqa", num_kv_heads=2)},
    "source, mla": {"kind": "encoder-decoder", **ROTARY, **heads("mla", latent=LATENT)},
}
PROMPT, SOURCE = (5, 9, 30, 7, 8, 6, 40, 41, 9), (7, 8, 9, 30, 31, 12, 13)
SMALL = {"page_size": 4, "cache_gib": 1e-3}


def make(name: str, **config: Any) -> Engine:
    checkpoint = tiny(**MODELS[name])
    return Engine(checkpoint.model, checkpoint.tokenizer, EngineConfig(**{**SMALL, **config}))


def ask(engine: Engine, max_tokens: int = 13, **asked: Any) -> str:
    source = SOURCE if isinstance(engine.model, EncoderDecoder) else None
    return engine.submit(GenerationRequest(PROMPT, max_tokens, source, **asked))


def finish(engine: Engine) -> None:
    while not engine.is_idle:
        engine.step()


@torch.no_grad()
def whole_pass(engine: Engine, tokens: list[int]) -> tuple[Tensor, Tensor | None]:
    """weights_LHTS of self-attention and of cross-attention, of one pass without a cache."""
    ids_1T, layers = torch.tensor([tokens]), engine.runner.stack.layers
    crosses = [block.cross.weights for block in layers if block.cross is not None]
    with recorded([block.attention.weights for block in layers]) as own, recorded(crosses) as cross:
        if isinstance(engine.model, EncoderDecoder):
            engine.model(ForwardBatch(ids_1T), ForwardBatch(torch.tensor([SOURCE])))
        else:
            engine.model(ForwardBatch(ids_1T))
    return torch.cat(own), torch.cat(cross) if cross else None


def check_all(engine: Engine, name: str, tokens: list[int], sample: int = 0) -> None:
    """Every position, layer and head of one sequence."""
    own_LHTS, cross_LHTS = whole_pass(engine, tokens)
    for query in range(len(tokens)):
        result = engine.attention_rows(name, query, sample)
        assert result.tokens == tokens[: query + 1]
        expected = own_LHTS[:, :, query, : query + 1]
        torch.testing.assert_close(result.weights_LHS, expected, rtol=1e-5, atol=1e-5)
        assert (result.weights_LHS.sum(-1) - 1).abs().max() < 1e-5
        assert (result.source_weights_LHS is None) == (cross_LHTS is None)
        if cross_LHTS is not None and result.source_weights_LHS is not None:
            expected = cross_LHTS[:, :, query]
            torch.testing.assert_close(result.source_weights_LHS, expected, rtol=1e-5, atol=1e-5)


def state_of(engine: Engine) -> tuple[Any, ...]:
    """Everything that a look could disturb."""
    store, pool = engine.runner.need_store(), engine.kv_cache.pool
    rows = [rows.clone() for part in store.rows for rows in part.values()]
    tables = [
        (job.request.id, s.index, s.num_computed, [list(t) for t in s.tables.by_group])
        for job in engine.scheduler.state.groups.values()
        for s in job.sequences
        if s.tables is not None
    ]
    ages = (
        engine.kv_cache.prefix_cache.version,
        pool.clock,
        list(pool.free_pages),
        pool.num_evictable,
    )
    return rows, tables, ages, pool.reference_counts(), engine.kv_cache.prefix_cache.export()


@pytest.mark.parametrize(
    ("name", "prefix"), [*((name, "radix") for name in MODELS), ("mha", "hash"), ("window", "hash")]
)
def test_rows_are_those_of_the_uncached_pass_while_it_runs_and_afterwards(
    name: str, prefix: str
) -> None:
    engine = make(name, prefix_cache=prefix)
    asked = ask(engine)
    ask(engine, 4, sampling=SamplingParams(temperature=1.0, seed=5))
    for _ in range(11):
        engine.step()
    log = EventLog()
    engine.listen(log)
    before = state_of(engine)
    tokens = list(engine.scheduler.state.groups[asked].first.tokens)
    assert len(tokens) == len(PROMPT) + 11
    check_all(engine, asked, tokens)
    after = state_of(engine)
    assert all(map(torch.equal, before[0], after[0])) and before[1:] == after[1:]
    assert log.num_seen == 0 and not any(m._forward_hooks for m in engine.model.modules())
    finish(engine)
    check_all(engine, asked, [*tokens, *engine.finished[asked].samples[0][len(tokens) :]])
    assert len(engine.finished[asked].samples[0]) == len(PROMPT) + 13


def test_a_window_that_has_passed_is_computed_again_without_a_prefix_cache() -> None:
    engine = make("window", prefix_cache="none")
    asked = ask(engine)
    for _ in range(12):
        engine.step()
    job = engine.scheduler.state.groups[asked]
    assert job.first.tables is not None and job.first.tables.by_group[0][0] == 0
    check_all(engine, asked, list(job.first.tokens))


def test_one_head_of_one_layer_can_be_asked_for() -> None:
    engine = make("source")
    client = EngineClient(engine)
    asked = client.submit(GenerationRequest(PROMPT, 6, SOURCE))
    for _ in client.stream(asked):
        pass
    rows = engine.attention_rows(asked, 10)
    one = client.attention(asked, layer=1, head=2, query=10)
    assert one.tokens == rows.tokens and torch.equal(one.weights_S, rows.weights_LHS[1, 2])
    assert rows.source_weights_LHS is not None and one.source_weights_S is not None
    assert torch.equal(one.source_weights_S, rows.source_weights_LHS[1, 2])
    assert one.source_weights_S.shape == (len(SOURCE),)


def test_each_sample_and_each_result_of_a_search_has_rows_of_its_own() -> None:
    engine = make("gqa")
    asked = ask(engine, 9, n=3, sampling=SamplingParams(temperature=1.5, seed=1))
    for _ in range(5):
        engine.step()
    for sequence in engine.scheduler.state.groups[asked].sequences:
        check_all(engine, asked, list(sequence.tokens), sequence.index)
    finish(engine)
    lines = engine.finished[asked].samples
    assert len({tuple(tokens) for tokens in lines.values()}) == 3
    for sample, tokens in lines.items():
        check_all(engine, asked, tokens, sample)
    engine = make("t5")
    asked = ask(engine, 20, beam=BeamConfig(4, num_best=2), ends=frozenset([2]))
    for _ in range(2):  # a prompt, and several passes
        engine.step()
    for sequence in engine.scheduler.state.groups[asked].sequences:
        check_all(engine, asked, list(sequence.tokens), sequence.index)
    (update,) = [update for _ in range(20) for update in engine.step()]
    for place, result in enumerate(update.hypotheses):
        check_all(engine, asked, [*PROMPT, *result.ids], place)


@pytest.mark.parametrize("name", ["gqa", "window", "t5"])
def test_results_that_ended_in_the_middle_of_a_plan_have_rows(name: str) -> None:
    """Beams that went on after them have taken over their pages, and none of the last is kept."""
    engine = make(name)
    asked = ask(engine, 30, beam=BeamConfig(5, num_best=5))
    finish(engine)
    written = engine.finished[asked].samples[0][len(PROMPT) :]
    for end in written[6], written[15]:
        asked = ask(engine, 30, beam=BeamConfig(5, 0.0, 5), ends=frozenset([end]), salt=str(end))
        finish(engine)
        lines = engine.finished[asked].samples
        assert len(lines) == 5 and len(set(map(len, lines.values()))) > 1
        for place, tokens in lines.items():
            check_all(engine, asked, tokens, place)


def test_preempted_and_cancelled_requests_are_found_in_the_cache() -> None:
    engine = make("gqa")
    asked, other = ask(engine), ask(engine, 5, salt="x")
    for _ in range(3):
        engine.step()
    job = engine.scheduler.state.groups[asked]
    engine.scheduler.state.requeue(job)
    assert job.first.tables is None
    check_all(engine, asked, list(job.first.tokens))
    engine.abort(other)
    check_all(engine, other, engine.finished[other].samples[0])


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"layer": 2}, "layer is 2, but the model has 2: use 0 to 1"),
        ({"head": 4}, "head is 4, but a layer has 4: use 0 to 3"),
        ({"query": 20}, "position is 20, but request r0 has 12: use 0 to 11"),
        ({"query": -1}, "position is -1, but"),
        ({"sample": 3}, r"request r0 has no sample 3: it has \[0\]"),
        ({"request_id": "r9"}, "there is no generation request r9.*more than 256 others"),
    ],
)
def test_a_place_that_is_not_there_is_refused_with_both_numbers(
    place: dict[str, Any], message: str
) -> None:
    engine = make("gqa")
    ask(engine)
    for _ in range(3):
        engine.step()
    with pytest.raises(UsageError, match=message):
        engine.attention(**{"request_id": "r0", "layer": 0, "head": 0, "query": 3, **place})


@pytest.mark.parametrize("prefix", ["none", "radix"])
def test_rows_that_are_gone_are_said_to_be_with_both_numbers(prefix: str) -> None:
    engine = make("gqa", prefix_cache=prefix)
    asked = ask(engine)
    with pytest.raises(UsageError, match="has 0 tokens in the KV cache, but position 8 needs 8"):
        engine.attention(asked, 0, 0, 8)
    finish(engine)
    if prefix == "radix":
        assert engine.kv_cache.prefix_cache.evict_oldest(3) == 3
    message = f"has {0 if prefix == 'none' else 8} tokens in .* but position 17 needs 16"
    with pytest.raises(UsageError, match=message):
        engine.attention(asked, 0, 0, 17)


def test_a_source_that_is_gone_is_said_to_be_with_both_numbers() -> None:
    engine = make("t5")
    asked = ask(engine)
    finish(engine)
    engine.kv_cache.encoder_cache.evict_oldest(1)
    with pytest.raises(UsageError, match="source of request .* has 0 of its 7 tokens"):
        engine.attention(asked, 0, 0, 3)


def test_texts_that_are_only_read_have_no_rows() -> None:
    engine = make("gqa")
    with pytest.raises(UsageError, match="no generation request r0"):
        engine.attention(engine.submit_embedding([5, 6, 7]), 0, 0, 1)
    checkpoint = tiny("encoder")
    with pytest.raises(UsageError, match="kind encoder and has no KV cache"):
        Engine(checkpoint.model, checkpoint.tokenizer).attention("r0", 0, 0, 0)


def test_only_the_last_requests_are_remembered() -> None:
    engine = make("gqa")
    engine.finished.limit = 2
    names = [ask(engine, 1) for _ in range(3)]
    finish(engine)
    assert [name in engine.finished for name in names] == [False, True, True]
    assert not engine.requests and not engine.samples
