"""Passes by one call of the library have the bits of passes through the modules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.engine.test_engine import MODELS, SMALL
from tests.engine.test_multi_step import search, searches
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.native import compiled_stack
from weft.native.compiled_stack import CompiledStack
from weft.native.library import native

from .tiny import tiny

pytestmark = pytest.mark.skipif(native() is None, reason="there is no library")

KINDS: dict[str, dict[str, Any]] = {
    "grouped": MODELS["grouped"],
    "window": MODELS["window"],
    "marian": {
        "position": {"kind": "sinusoidal", "layout": "halves"},
        "norm": {"kind": "layernorm", "placement": "after"},
        "embedding": {"tied": "all", "scale": True},
        "head": {"bias": True},
    },
    "bart": {
        "position": {"kind": "learned", "offset": 2},
        "embedding": {"tied": "output", "norm": True},
        "head": {"scale": 0.5},
    },
    "bare": {"position": {"kind": "none"}, "norm": {"kind": "rmsnorm", "placement": "both"}},
}
OTHERS: dict[str, dict[str, Any]] = {
    "latent": MODELS["latent"],
    "bias": MODELS["bias"],
    "softcap": {**MODELS["grouped"], "head": {"softcap": 30.0}},
}


def engine(settings: dict[str, Any], **config: Any) -> Engine:
    return Engine(tiny(**settings).model, config=EngineConfig(**{**SMALL, **config}))


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    """The names of the calls of the library."""
    made: list[str] = []
    for name in ("top_k", "greedy"):

        def watched(self: CompiledStack, *inputs: Any, name: str = name, known: Any = None) -> Any:
            made.append(name)
            return known(self, *inputs)

        known = getattr(CompiledStack, name)
        monkeypatch.setattr(
            CompiledStack, name, lambda self, *inputs, w=watched, k=known: w(self, *inputs, known=k)
        )
    return made


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "name"), [(1, "greedy"), (3, "top_k")])
def test_bits_are_those_of_single_passes(width, name, kind, threads, calls, monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(compiled_stack, "CACHED_KV_BYTES", 5000)  # some lanes a group
    torch.set_num_threads(threads)
    try:
        one, many = engine(KINDS[kind], num_steps=1), engine(KINDS[kind], num_steps=8)
        requests = searches(one, width=width, banned=(7, 8))
        wanted = search(one, requests)
        assert not calls
        assert search(many, requests) == wanted
    finally:
        torch.set_num_threads(before)
    assert set(calls) == {name}


@pytest.mark.parametrize("kind", OTHERS)
def test_models_that_it_does_not_know_go_through_their_modules(kind, calls):
    one, many = engine(OTHERS[kind], num_steps=1), engine(OTHERS[kind], num_steps=8)
    requests = searches(one)
    assert search(many, requests) == search(one, requests)
    assert not calls


def test_an_end_that_is_forced_takes_one_pass_and_the_others_go_on(calls):
    """Behind its last token a search must end; the searches beside it are in the middle."""
    one, many = engine(KINDS["marian"], num_steps=1), engine(KINDS["marian"], num_steps=8)
    requests = [replace(request, ends=frozenset([3])) for request in searches(one)]
    assert search(many, requests) == search(one, requests)
    assert set(calls) == {"top_k", "greedy"}


@pytest.mark.parametrize("part", ["decoder", "decoder.embedding", "decoder.norm", "head"])
def test_who_looks_inside_sees_every_pass(part, calls):
    many = engine(KINDS["grouped"], num_steps=8)
    requests, seen = searches(many), []
    wanted = search(many, requests)
    assert calls
    calls.clear()
    again = engine(KINDS["grouped"], num_steps=8)
    again.model.get_submodule(part).register_forward_hook(lambda *_: seen.append(1))
    assert search(again, requests) == wanted
    assert seen and not calls


def test_sequences_run_in_groups_that_fit_the_cache(monkeypatch):
    made: list[tuple[int, int]] = []
    known = CompiledStack.greedy_batch

    def greedy_batch(self: CompiledStack, num: int, layouts: Any) -> int:
        made.append((num, known(self, num, layouts)))
        return made[-1][1]

    monkeypatch.setattr(CompiledStack, "greedy_batch", greedy_batch)
    monkeypatch.setattr(compiled_stack, "CACHED_KV_BYTES", 20_000)
    many = engine(KINDS["marian"], num_steps=8)
    search(many, searches(many))
    assert any(1 < each < lanes for lanes, each in made)


def test_passes_of_a_heavy_model_are_a_call_each(calls, monkeypatch):
    many = engine(KINDS["marian"], num_steps=8)
    requests = searches(many)
    wanted = search(many, requests)
    assert set(calls) == {"greedy"}
    calls.clear()
    monkeypatch.setattr(compiled_stack, "LIGHT_MODEL_BYTES", 0)
    assert search(engine(KINDS["marian"], num_steps=8), requests) == wanted
    assert set(calls) == {"top_k"}
