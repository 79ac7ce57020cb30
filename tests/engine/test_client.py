"""Answers and translations: many prompts at once, several answers to one, in order and complete."""

from __future__ import annotations

import json
import re

import pytest
import torch

from tests.engine.tiny import tiny, tiny_folder
from weft.core.errors import ConfigError, DataError, UsageError
from weft.core.forward_batch import ForwardBatch
from weft.engine.config import EngineConfig
from weft.engine.loaded_model import LoadedModel, check_model, load
from weft.engine.request_builder import sampling_options

PROMPTS = ["the cat", "a dog ate", "the cat", "它", "two apples on the mat"]
DRAWN = {"temperature": 0.9, "top_p": 0.95, "seed": 4}


@pytest.fixture(scope="module")
def writer():
    return LoadedModel(tiny("decoder"))


@pytest.fixture(scope="module")
def translator():
    return LoadedModel(tiny())


def is_empty(model):
    """Whether every page is free, or idle in a cache."""
    engine = model.client.engine
    pool = engine.kv_cache.pool
    return engine.is_idle and pool.num_free + pool.num_evictable == pool.num_usable


def test_many_prompts_are_answered_in_order_as_each_is_alone(writer):
    counts = []
    result = list(writer.completions(PROMPTS, 9, progress=counts.append, **DRAWN))
    assert [one.text for (one,) in result] == [writer.generate(p, 9, **DRAWN) for p in PROMPTS]
    assert [one.num_prompt for (one,) in result] == [len(writer.prompt_ids(p)) for p in PROMPTS]
    assert all(len(one.tokens) <= 9 and one.finish is not None for (one,) in result)
    assert counts == [1] * 5 and is_empty(writer)
    assert list(writer.completions([])) == []


def test_several_answers_draw_with_seeds_that_follow(writer):
    ((*result,),) = writer.completions(["the cat"], 9, n=3, **DRAWN)
    texts = [writer.generate("the cat", 9, **{**DRAWN, "seed": 4 + i}) for i in range(3)]
    assert [one.text for one in result] == texts and len(set(texts)) == 3
    assert [one.index for one in result] == [0, 1, 2] and is_empty(writer)


def test_log_probabilities_come_with_every_token(writer):
    ((one,),) = writer.completions(["the cat"], 6, temperature=0.0, logprobs=2)
    assert [entry.id for entry in one.logprobs][: len(one.tokens)] == one.tokens
    assert all(entry.top[0] == (entry.id, entry.logprob) for entry in one.logprobs)
    assert all(len(entry.top) == 2 and entry.logprob < 0 for entry in one.logprobs)


def test_a_caller_who_leaves_early_and_one_who_is_refused_leave_nothing(writer):
    stream = writer.completions(PROMPTS, 9)
    next(stream)
    stream.close()
    assert is_empty(writer)
    with pytest.raises(UsageError, match="max_len is 40"):
        writer.completions(["the cat", "the cat sat on the mat " * 20])
    with pytest.raises(UsageError, match="prompts is a str: pass a list"):
        writer.completions("the cat")
    with pytest.raises(UsageError, match="n is 0"):
        writer.completions(["the cat"], n=0)
    assert is_empty(writer)


def test_what_is_asked_of_a_text_reaches_the_engine(writer):
    plain = writer.generate("the cat", 12, temperature=0.0)
    forced = writer.tokenizer.encode("dog", add_special=False)[0]
    ((one,),) = writer.completions(["the cat"], 3, temperature=0.0, logit_bias={forced: 1e4})
    assert one.tokens == [forced] * 3
    ((one,),) = writer.completions(["the cat"], 3, temperature=0.0, banned=one.tokens)
    assert forced not in one.tokens
    first = writer.prompt_ids("the cat")
    ((one,),) = writer.completions(["the cat"], 12, temperature=0.0, repetition_penalty=1e6)
    assert len({*one.tokens, *first}) == len(one.tokens) + len(set(first)), "nothing comes twice"
    ((one,),) = writer.completions(["the cat"], 8, temperature=0.0, presence_penalty=2.0)
    assert one.finish is not None
    stop = plain[3:5]
    result = writer.generate("the cat", 12, temperature=0.0, stop=["@@", stop])
    assert result == plain[: plain.index(stop)]
    text = writer.generate("the cat", 20, regex="[ab]{3}-[0-9]", **DRAWN)
    assert re.fullmatch("[ab]{3}-[0-9]", text)
    schema = {"enum": [True, 17, "cat"]}
    assert json.loads(writer.generate("the", 35, json_schema=schema, **DRAWN)) in schema["enum"]
    with pytest.raises(UsageError, match="logit_bias contains id 99999"):
        writer.generate("the cat", logit_bias={99999: 1.0})


@pytest.mark.parametrize(
    "settings", [{"speculate": True}, {"prefix_cache": "none"}, {"prefix_cache": "hash"}]
)
def test_the_settings_of_the_engine_change_no_answer(writer, settings):
    other = LoadedModel(tiny("decoder"), EngineConfig(cache_gib=0.01, **settings))
    expected = [one.text for (one,) in writer.completions(PROMPTS, 12, **DRAWN)]
    assert [one.text for (one,) in other.completions(PROMPTS, 12, **DRAWN)] == expected


def test_the_best_translations_come_best_first(translator):
    texts = ["the cat", " ", "a dog ate"]
    result = translator.translate_best(texts, 3, beam=4)
    assert [best[0] for best in result] == translator.translate_scored(texts, beam=4)
    assert [one.score for one in result[1]] == [None] and len(result[0]) == 3
    for best in (result[0], result[2]):
        scores = [one.score for one in best]
        assert scores == sorted(scores, reverse=True) and len({one.text for one in best}) > 1
    with pytest.raises(UsageError, match="beam is 2 and num_best 3.*Use a wider beam"):
        translator.translate_best(texts, 3, beam=2)


def test_translations_are_drawn_where_sampling_is_asked_for(translator):
    texts = ["the cat", "", "a dog ate"]
    one, again, other = (translator.translate(texts, temperature=1.5, seed=s) for s in (1, 1, 2))
    assert one == again != other and one[1] == ""
    assert translator.translate(texts, temperature=0.0) == translator.translate(texts)
    (several,) = translator.translate_best(texts[:1], 5, temperature=1.5)
    scores = [one.score for one in several]
    assert len(several) == 5 and scores == sorted(scores, reverse=True)
    with pytest.raises(UsageError, match="beam is 3, but temperature requests sampling"):
        translator.translate(texts, beam=3, temperature=1.0)


@pytest.mark.parametrize("options", [{}, {"beam": 3}, {"temperature": 1.0, "seed": 1}])
def test_a_text_that_fails_does_not_lose_the_others(options):
    translator = LoadedModel(tiny())
    texts = ["the cat", "two apples", "a dog ate"]
    expected = translator.translate_scored(texts, **options)
    bad = tuple(translator.tokenizer.encode(texts[1]))
    run = translator.client.engine.runner.run

    def run_plan(plan, chooser):
        if any(chunk.request.source == bad for chunk in plan.chunks):
            raise RuntimeError("a bad source")
        return run(plan, chooser)

    translator.client.engine.runner.run = run_plan
    first, failed, last = translator.translate_scored(texts, **options)
    assert [first, last] == [expected[0], expected[2]]
    assert "a bad source" in failed.error and failed.text == "" and failed.score is None
    with pytest.raises(DataError, match="1 of 3 texts failed, the first is text 1: .*bad source"):
        translator.translate(texts, **options)
    with pytest.raises(DataError, match="the request failed in an engine step.*bad source"):
        translator.translate_scored(texts[1:2], **options)


def test_a_source_that_is_rejected_does_not_lose_the_others(monkeypatch):
    translator = LoadedModel(tiny())
    texts = ["the cat", "two apples"]
    build = translator.request_builder.beam_search

    def beam_search(source, max_tokens, beam):
        if list(source) == translator.tokenizer.encode(texts[1]):
            raise UsageError("id 999 is beyond the model.")
        return build(source, max_tokens, beam)

    monkeypatch.setattr(translator.request_builder, "beam_search", beam_search)
    first, failed = translator.translate_scored(texts)
    assert first.text == translator.translate(texts[:1])[0]
    assert failed.error == "id 999 is beyond the model."
    with pytest.raises(UsageError, match="id 999"):
        translator.translate(texts[1:])


@torch.no_grad()
def test_a_draw_is_scored_by_the_log_probabilities_of_an_uncached_pass(translator):
    source, options = translator.tokenizer.encode("a dog"), sampling_options(1, 1, 6, {"seed": 3})
    ((one,),) = translator.complete_all([translator.request_builder.sample(source, options)])
    read = ForwardBatch(torch.tensor([[translator.tokenizer.begin_id, *one.tokens]]))
    logits_TV = translator.model(read, ForwardBatch(torch.tensor([source])))[0]
    written = [*one.tokens, translator.tokenizer.end_id][: len(one.logprobs)]
    logp_T = logits_TV.log_softmax(-1)[range(len(written)), written]
    (result,) = translator.translate_scored(["a dog"], 1, 0.5, 6, seed=3)
    assert result.score == pytest.approx(float(logp_T.sum()) / len(written) ** 0.5, rel=1e-4)
    assert result.text == translator.tokenizer.decode(one.tokens)


def test_headers_tell_what_a_model_cannot_do(tmp_path):
    folders = {kind: tiny_folder(tmp_path / kind, kind) for kind in ("encoder", "decoder")}
    for folder in folders.values():
        (folder / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="chat needs a model of kind decoder. Use `embed`"):
        check_model(folders["encoder"], "chat")
    with pytest.raises(UsageError, match="kind decoder: translate needs a model of kind enc"):
        check_model(folders["decoder"], "translate")
    with pytest.raises(UsageError, match="max_tokens is 40 but .* max_len is 40.*at most 39"):
        check_model(folders["decoder"], "generate", 40)
    check_model(folders["decoder"], "generate", 39)
    check_model(folders["encoder"], "embed")


def test_lengths_are_refused_before_the_engine_is_made(monkeypatch):
    def fail(*_):
        raise AssertionError("the engine was made")

    monkeypatch.setattr("weft.engine.loaded_model.Engine", fail)
    writer, translator = LoadedModel(tiny("decoder")), LoadedModel(tiny())
    with pytest.raises(UsageError, match="max_len is 40"):
        writer.generate("the cat sat on the mat " * 20)
    with pytest.raises(UsageError, match="runs 300 sequences at once but max_running is 256"):
        writer.completions(["the cat"], n=300)
    with pytest.raises(UsageError, match="1 tokens and max_tokens is 40"):
        translator.translate(["a dog"], max_tokens=40)


def test_a_cache_that_does_not_fit_the_machine_is_said(monkeypatch):
    def fail(*_):
        raise MemoryError("unable to allocate")

    monkeypatch.setattr("weft.engine.loaded_model.Engine", fail)
    with pytest.raises(UsageError, match="cache_gib is 9000: this machine cannot allocate"):
        LoadedModel(tiny("decoder"), EngineConfig(cache_gib=9000)).generate("the cat")


def test_settings_of_the_engine_may_be_given_by_name(tmp_path):
    folder = tiny_folder(tmp_path / "m", "decoder")
    loaded = load(folder, engine={"cache_gib": 0.01, "prefix_cache": "hash"})
    assert loaded.engine_config == EngineConfig(cache_gib=0.01, prefix_cache="hash")
    with pytest.raises(ConfigError, match="cache_gb is not a setting. Did you mean 'cache_gib'"):
        load(folder, engine={"cache_gb": 1})
