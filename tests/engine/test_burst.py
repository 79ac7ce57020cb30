"""Several passes by one plan give searches of one beam what one pass at a time gives them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.engine.test_engine import MODELS, SMALL, make
from weft.core.errors import DataError
from weft.engine.beam import BeamConfig, Hypothesis
from weft.engine.chances import Chances
from weft.engine.desk import Desk
from weft.engine.engine import Engine
from weft.engine.schedule.audit import audit
from weft.engine.settings import EngineConfig
from weft.engine.writing import Writing
from weft.models.encoder_decoder import EncoderDecoder

from .tiny import tiny

END = 7


def searches(engine: Engine, number: int = 20, **rules: Any) -> list[Writing]:
    """Prompts and limits of many lengths, of which some end by themselves."""
    rng, vocab = random.Random(3), engine.model.config.vocab_size
    has_source = isinstance(engine.model, EncoderDecoder)
    made = []
    for i in range(number):
        prompt = tuple(rng.choices(range(5, vocab), k=rng.choice([1, 1, 2, 6])))
        source = tuple(rng.choices(range(5, vocab), k=rng.randrange(1, 12)))
        ends = frozenset([END]) if i % 4 else frozenset()
        beam = BeamConfig(1, **rules)
        limit = rng.randrange(1, 24)
        made.append(Writing(prompt, limit, source if has_source else None, ends=ends, beam=beam))
    return made


def search(engine: Engine, writings: list[Writing]) -> list[list[Hypothesis]]:
    found = dict(Desk(engine).search(writings))
    audit(engine.scheduler.state)
    return [found[place] for place in range(len(writings))]


@pytest.mark.parametrize("rules", [{}, {"first": 9}, {"banned": (5, 6, 8)}], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_found_are_the_same_bits(name, rules):
    one, many = make(name, passes=1), make(name, passes=8)
    writings = searches(one, **rules)
    assert search(many, writings) == search(one, writings)
    ours, theirs = many.statistics(), one.statistics()
    assert ours.steps < theirs.steps / 2
    assert ours.computed_tokens == theirs.computed_tokens


@pytest.mark.parametrize("config", [{"preempt_every": 3}, {"cache_gib": 3e-5}, {"max_running": 3}])
def test_they_are_when_some_are_preempted_or_wait(config):
    one, many = make("bias", passes=1), make("bias", passes=8, **config)
    writings = searches(one)
    assert search(many, writings) == search(one, writings)


def test_who_has_other_rules_keeps_them_in_company():
    one, many = make("bias", passes=1), make("bias", passes=8)
    writings = searches(one)
    rules = [BeamConfig(1), BeamConfig(1, banned=(5, 6)), BeamConfig(1, first=9)]
    writings = [replace(w, beam=rules[i % 3]) for i, w in enumerate(writings)]
    assert search(many, writings) == search(one, writings)


def test_nobody_who_is_followed_waits_for_a_burst():
    """A text that is written beside searches comes token by token."""
    engine = make("grouped", passes=8)
    for writing in searches(engine, 3):
        engine.submit(replace(writing, max_tokens=20))
    name = engine.submit(Writing((5, 6, 7), 12))
    found = [
        update.tokens for _ in range(14) for update in engine.step() if update.request_id == name
    ]
    assert [len(tokens) for tokens in found] == [1] * 12


def test_a_model_without_finite_weights_says_so_and_keeps_no_page():
    checkpoint = tiny(**MODELS["bias"])
    with torch.no_grad():
        for weight in checkpoint.model.parameters():
            weight.fill_(torch.nan)
    engine = Engine(checkpoint.model, config=EngineConfig(**SMALL))
    with pytest.raises(DataError, match="NaN or infinity"):
        search(engine, searches(engine, 4))
    audit(engine.scheduler.state)


def test_a_pass_that_fails_in_the_middle_costs_nobody_a_token(monkeypatch):
    one, many = make("bias", passes=1), make("bias", passes=8)
    writings = searches(one)
    names = [many.submit(writing) for writing in writings]
    chances, calls = many.runner.chances, []

    def failing(x_1ND: torch.Tensor) -> Chances:
        calls.append(1)
        if len(calls) == 5:
            raise RuntimeError("no memory")
        return chances(x_1ND)

    monkeypatch.setattr(many.runner, "chances", failing)
    found: dict[str, list[Hypothesis]] = {}
    while not many.is_idle:
        try:
            found |= {update.request_id: update.hypotheses for update in many.step()}
        except RuntimeError:
            audit(many.scheduler.state)
    assert [found[name] for name in names] == search(one, writings)
