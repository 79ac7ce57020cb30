"""What can be asked of an engine: beams, samples, grammars, stops; leaving early; bad requests."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch

from weft.core.errors import UsageError
from weft.engine.beam_search import BeamConfig
from weft.engine.client import EngineClient
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.grammar import make_grammar
from weft.engine.request import GenerationRequest, RequestOutput
from weft.sampling.params import SamplingParams

from . import plain
from .tiny import tiny

SMALL: dict[str, Any] = {"page_size": 4, "cache_gib": 1e-3}


def engine_of(
    kind: str = "decoder", config: dict[str, Any] | None = None, **changes: Any
) -> Engine:
    checkpoint = tiny(kind, **changes)
    return Engine(
        checkpoint.model, checkpoint.tokenizer, EngineConfig(**{**SMALL, **(config or {})})
    )


def is_empty(engine: Engine) -> bool:
    """Whether every page is free, or idle in a cache."""
    pool = engine.kv_cache.pool
    return pool.num_free + pool.num_evictable == pool.num_usable


def finish(engine: Engine) -> list[RequestOutput]:
    updates = []
    while not engine.is_idle:
        updates += engine.step()
    assert is_empty(engine)
    return updates


@pytest.mark.parametrize("config", [{"preempt_every": 3}, {"token_budget": 7, "max_running": 7}])
@pytest.mark.parametrize("beam", [1, 2, 5])
def test_beams_are_the_same_bits_preempted_and_crowded(beam: int, config: dict[str, Any]) -> None:
    sources = [(7, 30, 9, 12), (40,), (9, 9, 30, 31, 32, 7, 7), (40,)]
    search = BeamConfig(beam, num_best=min(2, beam))
    results = []
    for settings in ({}, config):
        engine = engine_of("encoder-decoder", settings)
        for source, limit in zip(sources, (6, 3, 12, 9), strict=True):
            engine.submit(
                GenerationRequest((1, 5), limit, source, ends=frozenset([2]), beam=search)
            )
        results.append({update.request_id: update.hypotheses for update in finish(engine)})
    assert results[0] == results[1] and len(results[0]) == 4


def test_equal_sources_are_encoded_once() -> None:
    engine = engine_of("encoder-decoder")
    for _ in range(5):
        engine.submit(
            GenerationRequest((1,), 3, (7, 8, 9, 10), ends=frozenset([2]), beam=BeamConfig(3))
        )
    finish(engine)
    assert engine.scheduler.statistics.encoded_tokens == 4


def test_samples_share_their_prompt_and_draw_by_their_own_seeds() -> None:
    prompt, sampling = (5, 9, 30, 7, 8, 6, 40, 41, 9), SamplingParams(temperature=1.3, seed=4)
    engine = engine_of()
    engine.submit(GenerationRequest(prompt, 9, sampling=sampling, n=3))
    lines: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for update in finish(engine):
        lines[update.index] += update.tokens
    assert engine.scheduler.statistics.computed_tokens <= len(prompt) + 3 * 9
    for index, tokens in lines.items():
        alone = engine_of()
        seeded = sampling.model_copy(update={"seed": 4 + index})
        alone.submit(GenerationRequest(prompt, 9, sampling=seeded))
        assert [t for update in finish(alone) for t in update.tokens] == tokens
    assert len({tuple(tokens) for tokens in lines.values()}) == 3


def test_a_grammar_is_kept_to_also_through_preemption() -> None:
    grammar = make_grammar("regex", r"[a-c]{2,4}-\d+x")
    texts = []
    for config in ({}, {"preempt_every": 2}, {"speculate": True}):
        engine = engine_of(config=config)
        ends = frozenset([engine.tokenizer.end_id or 0]) if engine.tokenizer else frozenset()
        sampling = SamplingParams(temperature=0.8, seed=3)
        engine.submit(GenerationRequest((5, 6), 30, sampling=sampling, ends=ends, grammar=grammar))
        texts.append("".join(update.text for update in finish(engine)))
    assert len(set(texts)) == 1
    assert re.fullmatch(r"[a-c]{0,4}(-\d*x?)?", texts[0])


def test_json_that_is_asked_for_is_json() -> None:
    engine = engine_of(max_len=200)
    assert engine.tokenizer is not None
    schema = {
        "type": "object",
        "properties": {"n": {"enum": [1, 2, 3]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    grammar = make_grammar("json_schema", schema)
    ends = frozenset([engine.tokenizer.end_id or 0])
    sampling = SamplingParams(temperature=0.7, seed=1)
    engine.submit(GenerationRequest((5,), 190, sampling=sampling, ends=ends, grammar=grammar))
    text = "".join(update.text for update in finish(engine))
    assert json.loads(text)["n"] in (1, 2, 3)


def test_a_stop_ends_the_text_before_it() -> None:
    engine = engine_of()
    writing = GenerationRequest((5, 9), 30, sampling=SamplingParams(temperature=1.0, seed=2))
    engine.submit(writing)
    whole = "".join(update.text for update in finish(engine))
    stop = whole[4:6]
    engine.submit(GenerationRequest((5, 9), 30, sampling=writing.sampling, stops=(stop,)))
    updates = finish(engine)
    assert "".join(update.text for update in updates) == whole[: whole.index(stop)]
    assert updates[-1].finish is not None and updates[-1].finish.stop == stop


def test_special_tokens_are_in_the_text_if_they_are_visible() -> None:
    sampling, texts = SamplingParams(temperature=0.0, logit_bias={4: 100.0}), []
    for visible in (frozenset[int](), frozenset([4])):
        engine = engine_of()
        assert engine.tokenizer is not None
        name = engine.tokenizer.pieces([4])[0]
        engine.submit(GenerationRequest((5, 9), 3, sampling=sampling, visible_ids=visible))
        texts.append("".join(update.text for update in finish(engine)))
    assert texts == ["", name * 3]


def test_who_leaves_gives_everything_back() -> None:
    engine = engine_of("encoder-decoder")
    client = EngineClient(engine, is_threaded=False)
    names = client.submit_all(
        [GenerationRequest((1,), 30, (7, 8, number)) for number in range(9, 14)]
    )
    stream = client.stream(names[0])
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    for name in names[1:]:
        client.abort(name)
    assert engine.is_idle and is_empty(engine)


def test_two_callers_share_the_steps_and_each_gets_its_own() -> None:
    engine = engine_of()
    client = EngineClient(engine, is_threaded=False)
    first, second = (client.stream(client.submit(GenerationRequest((5, n), 8))) for n in (9, 30))
    found: tuple[list[int], list[int]] = ([], [])
    for one, other in zip(first, second, strict=True):
        found[0].extend(one.tokens)
        found[1].extend(other.tokens)
    expected = [plain.greedy(engine.model, [5, n], 8) for n in (9, 30)]
    assert list(found) == expected


def test_a_failed_pass_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of()
    engine.submit(GenerationRequest((5, 9, 30), 6))
    engine.step()
    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    tokens = [token for update in finish(engine) for token in update.tokens]
    expected = plain.greedy(engine.model, [5, 9, 30], 6)
    assert tokens == expected[1:]


def interrupted(*given: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["encoder", "encoder-decoder", "decoder"])
def test_texts_are_encoded_without_padding_and_alone_in_bits(kind: str) -> None:
    engine = engine_of(kind)
    texts = [[7, 8, 9], [30], [9, 9, 12, 13, 14, 15, 16, 17]]
    names = [engine.submit_embedding(text) for text in texts]
    vectors = {update.request_id: update.vectors_TD for update in finish(engine)}
    for name, text in zip(names, texts, strict=True):
        engine.submit_embedding(text)
        (alone,) = finish(engine)
        together = vectors[name]
        assert together is not None and alone.vectors_TD is not None
        assert together.shape == (len(text), 32) and torch.equal(together, alone.vectors_TD)


@pytest.mark.parametrize(
    "writing, message",
    [
        (GenerationRequest((), 3), "the prompt has 0 tokens"),
        (GenerationRequest((5,), 0), "max_tokens is 0"),
        (GenerationRequest((5,) * 40, 1), "40 tokens but max_len is 40.*Shorten it to 39"),
        (GenerationRequest((5,) * 38, 9), "38 tokens and max_tokens is 9.*max_len is 40"),
        (GenerationRequest((5,), 3, (7, 8)), "source"),
        (
            GenerationRequest((5,), 3, sampling=SamplingParams(banned=(5000,))),
            "banned contains id 5000",
        ),
        (GenerationRequest((5,), 3, stops=("",)), "a stop is ''"),
        (GenerationRequest((5,), 3, grammar=make_grammar("regex", "[")), "grammar"),
        (GenerationRequest((5,), 3, n=0), "n is 0"),
    ],
)
def test_bad_requests_are_refused_and_take_nothing(
    writing: GenerationRequest, message: str
) -> None:
    engine = engine_of()
    with pytest.raises(UsageError, match=message):
        engine.submit(writing)
    assert engine.is_idle and engine.kv_cache.pool.num_free == engine.kv_cache.pool.num_usable
    assert not engine.samples and not engine.beams


def test_one_sequence_of_any_length_fits_however_small_the_cache() -> None:
    engine = engine_of(config={"cache_gib": 1e-9})
    engine.submit(GenerationRequest((5,) * 20, 20))
    assert sum(len(update.tokens) for update in finish(engine)) == 20


@pytest.mark.parametrize("method", ["allowed_along", "advance"])
def test_a_grammar_that_fails_in_use_ends_its_own_request_alone(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise UsageError("the grammar cannot be followed: too large. Use a simpler one.")

    engine = engine_of()
    bad = engine.submit(GenerationRequest((5, 6), 9, grammar=make_grammar("regex", "[a-c]{9,}")))
    good = engine.submit(GenerationRequest((5, 9), 6))
    monkeypatch.setattr(engine.samples[bad][0].matcher, method, fail)
    updates = finish(engine)
    assert [u.error is not None for u in updates if u.request_id == bad][-1]
    tokens = [token for u in updates if u.request_id == good for token in u.tokens]
    assert tokens == plain.greedy(engine.model, [5, 9], 6)


def test_drafts_that_are_never_right_are_no_longer_made(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(config={"speculate": True})
    name = engine.submit(GenerationRequest((5, 9, 30), 20))
    drafter = engine.samples[name][0].drafter
    assert drafter is not None
    never = engine.model.config.vocab_size - 1
    monkeypatch.setattr(drafter.lookup, "propose", lambda count: [never] * count)
    tokens = [token for update in finish(engine) for token in update.tokens]
    assert tokens == plain.greedy(engine.model, [5, 9, 30], 20) and never not in tokens
    assert drafter.count == 0
