"""Several passes by one plan give searches what one pass at a time gives them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.engine import test_engine
from tests.engine.test_engine import MODELS, SMALL
from weft.core.errors import DataError, UsageError
from weft.engine.beam_search import BeamConfig, Hypothesis
from weft.engine.client import EngineClient, check_output
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.request import GenerationRequest
from weft.engine.scheduling.audit import audit
from weft.engine.scheduling.plan import Plan
from weft.models.transformer import EncoderDecoder

from .tiny import tiny


def searches(
    engine: Engine, number: int = 20, width: int = 1, **rules: Any
) -> list[GenerationRequest]:
    """Prompts and limits of many lengths; most end by themselves, by a token that they write."""
    rng, vocab = random.Random(3), engine.model.config.vocab_size
    has_source = isinstance(engine.model, EncoderDecoder)
    made = []
    for _ in range(number):
        prompt = tuple(rng.choices(range(5, vocab), k=rng.choice([1, 1, 2, 6])))
        source = tuple(rng.choices(range(5, vocab), k=rng.randrange(1, 12)))
        beam, limit = BeamConfig(width, **rules), rng.randrange(1, 24)
        made.append(GenerationRequest(prompt, limit, source if has_source else None, beam=beam))
    endless = search(make(engine, num_steps=1), made)
    written = [one[0].ids for one in endless]
    return [
        replace(generation_request, ends=frozenset([ids[len(ids) // 2]]))
        if place % 4
        else generation_request
        for place, (generation_request, ids) in enumerate(zip(made, written, strict=True))
    ]


def make(like: str | Engine, **config: Any) -> Engine:
    """An engine of a kind of model, or with the model of another one."""
    if isinstance(like, Engine):
        return Engine(like.model, config=EngineConfig(**{**SMALL, **config}))
    return test_engine.make(like, **config)


def search(engine: Engine, requests: list[GenerationRequest]) -> list[list[Hypothesis]]:
    found = EngineClient(engine).search(requests)
    result = {index: check_output(output).hypotheses for index, output in found}
    audit(engine.scheduler.state)
    return [result[place] for place in range(len(requests))]


@pytest.mark.parametrize("rules", [{}, {"first": 9}, {"banned": (5, 6, 8)}], ids=str)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("width", [1, 4])
def test_found_are_the_same_bits(width, name, rules):
    one, many = make(name, num_steps=1), make(name, num_steps=8)
    requests = searches(one, width=width, **rules)
    result = search(many, requests)
    assert result == search(one, requests)
    pairs = zip(result, requests, strict=True)
    assert (
        sum(len(best.ids) < generation_request.max_tokens for (best,), generation_request in pairs)
        > 8
    )
    ours, theirs = many.statistics(), one.statistics()
    assert ours.steps < theirs.steps
    assert ours.computed_tokens == theirs.computed_tokens


@pytest.mark.parametrize("config", [{"preempt_every": 3}, {"cache_gib": 6e-5}, {"max_running": 3}])
@pytest.mark.parametrize("name", ["bias", "window"])
@pytest.mark.parametrize("width", [1, 3])
def test_they_are_when_some_are_preempted_or_wait(width, name, config, monkeypatch):
    one, many = make(name, num_steps=1), make(name, num_steps=8, **config)
    requests, plans, plan = searches(one, width=width), [], many.scheduler.schedule

    def watched(drafts: Any) -> Plan:
        plans.append(plan(drafts))
        return plans[-1]

    monkeypatch.setattr(many.scheduler, "schedule", watched)
    assert search(many, requests) == search(one, requests)
    # where pages are scarce most plans have one pass
    assert any(plan.num_steps > 1 for plan in plans)
    assert "preempt_every" not in config or many.statistics().preemptions > 0


@pytest.mark.parametrize("width", [1, 3])
def test_who_has_other_rules_keeps_them_in_company(width):
    one, many = make("bias", num_steps=1), make("bias", num_steps=8)
    requests = searches(one, width=width)
    rules = [BeamConfig(width, num_best=width), BeamConfig(width, 0.3, banned=(5, 6))]
    rules.append(BeamConfig(width, 0.0, first=9))
    requests = [
        replace(generation_request, beam=rules[place % 3], ends=generation_request.ends - {5, 6})
        for place, generation_request in enumerate(requests)
    ]
    assert search(many, requests) == search(one, requests)


@pytest.mark.parametrize("page_size", [1, 2, 4])
@pytest.mark.parametrize("prefix", ["none", "hash", "radix"])
def test_beams_fork_across_borders_of_pages(page_size, prefix):
    """A sequence that is replaced in the middle of a multi-step plan may have filled pages."""
    one = make("bias", num_steps=1)
    many = make("bias", num_steps=16, page_size=page_size, prefix_cache=prefix)
    requests = searches(one, width=5)
    assert search(many, requests) == search(one, requests)


@pytest.mark.parametrize("end", [(), (0,), (1,)])
@pytest.mark.parametrize(("vocab", "width"), [(4, 8), (6, 6), (6, 5)])
def test_searches_wider_than_the_vocabulary_have_fewer_beams_at_first(vocab, width, end):
    model = tiny(**{**MODELS["grouped"], "vocab_size": vocab}).model
    one, many = (Engine(model, config=EngineConfig(**SMALL, num_steps=n)) for n in (1, 8))
    beam, ends = BeamConfig(width, num_best=width), frozenset(end)
    requests = [GenerationRequest((first,), 9, beam=beam, ends=ends) for first in range(vocab)]
    assert search(many, requests) == search(one, requests)
    assert many.statistics().steps < one.statistics().steps


def test_streamed_requests_do_not_wait_for_a_multi_step_plan():
    """A sampled request beside beam searches gets its tokens one by one."""
    engine = make("grouped", num_steps=8)
    for generation_request in searches(engine, 3):
        engine.submit(replace(generation_request, max_tokens=20, ends=frozenset()))
    name = engine.submit(GenerationRequest((5, 6, 7), 12))
    result = [
        update.tokens for _ in range(14) for update in engine.step() if update.request_id == name
    ]
    assert [len(tokens) for tokens in result] == [1] * 12


def test_a_model_without_finite_weights_says_so_and_keeps_no_page():
    checkpoint = tiny(**MODELS["bias"])
    with torch.no_grad():
        for weight in checkpoint.model.parameters():
            weight.fill_(torch.nan)
    engine = Engine(checkpoint.model, config=EngineConfig(**SMALL))
    with pytest.raises(DataError, match="NaN or infinity"):
        search(engine, searches(engine, 4))
    audit(engine.scheduler.state)


@pytest.mark.parametrize("num_steps", [1, 8])
@pytest.mark.parametrize("method", ["forward", "logits"])
@pytest.mark.parametrize("width", [1, 3])
def test_a_pass_that_fails_in_the_middle_loses_no_token(width, method, num_steps, monkeypatch):
    one, many = make("bias", num_steps=1), make("bias", num_steps=num_steps)
    requests = searches(one, width=width)
    names, real, calls = [many.submit(one) for one in requests], getattr(many.runner, method), []

    def failing(inputs: Any) -> Any:
        calls.append(1)
        if len(calls) == 5:
            raise RuntimeError("no memory")
        return real(inputs)

    monkeypatch.setattr(many.runner, method, failing)
    assert run(many, names) == search(one, requests)


@pytest.mark.parametrize("num_steps", [1, 8])
def test_a_head_that_fails_costs_nobody_a_token(num_steps, monkeypatch):
    """Logits are made when they are asked for, but before anybody takes a token."""
    one, many = make("bias", num_steps=1), make("bias", num_steps=num_steps)
    requests, calls = searches(one), []
    names = [many.submit(generation_request) for generation_request in requests]
    pre_projection = many.model.head.pre_projection

    def failing(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 5:
            raise MemoryError
        return pre_projection(x)

    monkeypatch.setattr(many.model.head, "pre_projection", failing)
    assert run(many, names) == search(make("bias", num_steps=1), requests)


def run(engine: Engine, names: list[str]) -> list[list[Hypothesis]]:
    result: dict[str, list[Hypothesis]] = {}
    while not engine.is_idle:
        try:
            result |= {update.request_id: update.hypotheses for update in engine.step()}
        except (RuntimeError, MemoryError):
            audit(engine.scheduler.state)
    return [result[name] for name in names]


@pytest.mark.parametrize("num_steps", [1, 8])
@pytest.mark.parametrize("width", [1, 3])
def test_who_is_cancelled_during_a_pass_takes_nobody_along(width, num_steps, monkeypatch):
    one, many = make("bias", num_steps=1), make("bias", num_steps=num_steps)
    requests, calls = searches(one, width=width), []
    names, lanes = (
        [many.submit(generation_request) for generation_request in requests],
        many.runner.forward,
    )

    def cancelling(inputs: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 3:
            many.abort(names[0])
        return lanes(inputs)

    monkeypatch.setattr(many.runner, "forward", cancelling)
    assert run(many, names[1:]) == search(one, requests)[1:]
    audit(many.scheduler.state)


@pytest.mark.parametrize("rules", [{"banned": (10_000,)}, {"banned": (-1,)}, {"first": 10_000}])
def test_a_search_with_ids_that_are_not_there_is_refused(rules):
    engine = make("bias")
    with pytest.raises(UsageError, match="ids range from 0 to"):
        engine.submit(GenerationRequest((5,), 4, (6, 7), beam=BeamConfig(1, **rules)))
    assert engine.is_idle


def test_somebody_who_looks_at_the_head_sees_every_pass():
    engine, seen = make("bias", num_steps=8), []
    requests = searches(engine)
    engine.model.head.register_forward_hook(lambda _, inputs, logits: seen.append(len(logits[0])))
    search(engine, requests)
    assert sum(seen) == engine.statistics().computed_tokens - sum(
        len(generation_request.prompt) - 1 for generation_request in requests
    )
