"""A layer in one compiled call gives the bits of its modules, wherever it steps in for them."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook

from tests.engine.asking import SMALL, generate
from tests.engine.tiny import tiny
from weft.engine.beam_search import BeamConfig
from weft.engine.engine import Engine
from weft.engine.model_runner import ModelRunner
from weft.engine.request import GenerationRequest
from weft.models.build import AnyModel
from weft.native import compiled_stack
from weft.native.compiled_stack import CompiledStack
from weft.native.library import native
from weft.nn.block import Block
from weft.nn.packed_modules import pack_model, unpack_model

pytestmark = pytest.mark.skipif(native() is None, reason="needs a compiler")

GQA = {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2}
RMS = {"kind": "rmsnorm"}
KNOWN: dict[str, dict[str, Any]] = {
    "plain": {},
    "llama": {
        "attention": GQA,
        "norm": RMS,
        "position": {"kind": "rotary"},
        "feedforward": {"kind": "swiglu"},
    },
    "neighbours turn, a part of the head stays": {
        "position": {"kind": "rotary", "layout": "interleaved", "fraction": 0.5},
        "attention": {"kind": "mqa", "num_heads": 2, "bias": True},
    },
    "gemma": {
        "attention": {**GQA, "qk_norm": True, "softcap": 5.0},
        "norm": {**RMS, "placement": "both", "unit_offset": True},
        "position": {"kind": "rotary"},
        "feedforward": {"kind": "geglu_tanh", "bias": True},
    },
    "window": {
        "attention": {**GQA, "pattern": {"kind": "window", "window": 3}},
        "position": {"kind": "rotary"},
    },
    "norm after": {"norm": {"placement": "after"}, "feedforward": {"kind": "gelu"}},
    "sizes that fill no vector": {
        "width": 30,
        "attention": {"kind": "mha", "num_heads": 3, "bias": True, "out_bias": False},
        "position": {"kind": "none"},
        "feedforward": {"kind": "silu", "width": 37},
        "norm": {"bias": False},
    },
}
WIDE = {"kind": "relu", "width": 600}
NARROW = {"dense_layers": 1, "dense_feedforward": {"kind": "relu", "width": 8}, "feedforward": WIDE}
UNEQUAL: dict[str, dict[str, Any]] = {
    "a wide layer behind a narrow one": {"num_layers": 3, **NARROW},
    "layers that are run one by one": {
        "num_layers": 4,
        "dense_layers": 2,
        "dense_feedforward": {"kind": "relu", "width": 8},
        "feedforward": WIDE,
        "attention": {
            **{"kind": "mha", "num_heads": 2},
            "pattern": {"kind": "dilated", "window": 3, "full_every": 2},
        },
    },
}
UNKNOWN: dict[str, dict[str, Any]] = {
    "latent rows": {"attention": {"kind": "mla", "num_heads": 2}, "position": {"kind": "rotary"}},
    "a bias on scores": {"position": {"kind": "alibi"}},
    "buckets": {"position": {"kind": "bucketed"}},
    "experts": {
        "feedforward": {"kind": "experts", "num_experts": 4, "experts_per_token": 2, "width": 16}
    },
    "a mask of another kind": {
        "attention": {"kind": "mha", "num_heads": 2, "pattern": {"kind": "dilated", "window": 3}}
    },
}
PROMPTS = [[5], [7, 8, 9, 10, 11, 12, 13, 14, 15], [7, 8, 9, 10, 30]]


def blocks(model: AnyModel) -> list[Block]:
    return [part for part in model.modules() if isinstance(part, Block)]


@contextmanager
def recorded(name: str, seen: list[Tensor]) -> Iterator[None]:
    """The vectors that a method of the runner returns."""
    known = getattr(ModelRunner, name)

    def watched(self: ModelRunner, *arguments: Any) -> Any:
        result = known(self, *arguments)
        seen.append((result[0] if isinstance(result, tuple) else result).clone())
        return result

    setattr(ModelRunner, name, watched)
    try:
        yield
    finally:
        setattr(ModelRunner, name, known)


def vectors(model: AnyModel, *, by_modules: bool) -> list[Tensor]:
    """What the heads and the layers behind an encoder read in a few steps of the engine."""
    seen: list[Tensor] = []
    hooks = []
    if by_modules:
        hooks = [b.feedforward.register_forward_hook(lambda *call: None) for b in blocks(model)]
    sources = PROMPTS if model.config.kind == "encoder-decoder" else None
    with recorded("forward", seen), recorded("forward_texts", seen):
        generate(model, PROMPTS, 6, sources=sources)
    for hook in hooks:
        hook.remove()
    assert len(seen) > 5
    return seen


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[CompiledStack]:
    """The compiled stacks whose forward is called."""
    called: list[CompiledStack] = []
    known = CompiledStack.forward

    def forward(self: CompiledStack, *arguments: Any) -> Tensor:
        called.append(self)
        return known(self, *arguments)

    monkeypatch.setattr(CompiledStack, "forward", forward)
    return called


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) and all(x.equal(y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("name", KNOWN)
def test_one_call_has_the_bits_of_the_modules(
    name: str, kind: str, forwards: list[CompiledStack]
) -> None:
    model = tiny(kind, **KNOWN[name]).model
    together = vectors(model, by_modules=False)
    # a window without a causal mask, as this encoder has it, is the modules' work
    is_encoded = kind == "encoder-decoder" and name != "window"
    assert len(set(forwards)) == 1 + is_encoded
    assert len(forwards) == len(together) or name == "window"
    forwards.clear()
    assert same(together, vectors(model, by_modules=True))
    assert not forwards


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_the_library_does_not_know_goes_through_the_modules(
    name: str, forwards: list[CompiledStack]
) -> None:
    model = tiny("decoder", **UNKNOWN[name]).model
    actual = vectors(model, by_modules=False)
    assert not forwards
    assert same(actual, vectors(model, by_modules=True))


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_whole_texts_have_the_bits_of_the_modules(kind: str, forwards: list[CompiledStack]) -> None:
    model = tiny(kind, **KNOWN["llama"]).model
    together = [read(engine_of(model), prompt) for prompt in PROMPTS]
    assert len(forwards) == len(PROMPTS)
    hook = blocks(model)[0].register_forward_hook(lambda *call: None)
    assert same(together, [read(engine_of(model), prompt) for prompt in PROMPTS])
    assert len(forwards) == len(PROMPTS)
    hook.remove()


@pytest.mark.parametrize("name", UNEQUAL)
def test_memory_between_the_parts_is_enough_for_each_layer(name: str) -> None:
    model = tiny("decoder", **UNEQUAL[name]).model
    actual = vectors(model, by_modules=False)
    assert same(actual, vectors(model, by_modules=True))


def test_a_hook_on_a_living_engine_sees_the_next_steps_and_not_those_after_it_is_gone(
    forwards: list[CompiledStack],
) -> None:
    model, seen = tiny("decoder").model, list[int]()
    engine = engine_of(model)
    expected = run(engine, PROMPTS[1])
    num_steps = len(forwards)
    hook = blocks(model)[1].attention.out.register_forward_hook(lambda *call: seen.append(1))
    assert run(engine, PROMPTS[1]) == expected
    assert seen and len(forwards) == num_steps
    hook.remove()
    seen.clear()
    assert run(engine, PROMPTS[1]) == expected
    assert not seen and len(forwards) > num_steps


def test_a_part_with_another_forward_is_asked() -> None:
    model = tiny("decoder").model
    before = vectors(model, by_modules=False)
    part = blocks(model)[0].feedforward
    part.forward = lambda x: torch.zeros_like(x)
    assert not same(before, vectors(model, by_modules=False))
    del part.forward
    assert same(before, vectors(model, by_modules=False))


def test_a_hook_on_all_modules_sees_every_part() -> None:
    model, seen = tiny("decoder").model, set[str]()
    vectors(model, by_modules=False)
    hook = register_module_forward_hook(lambda part, *_: seen.add(type(part).__name__))
    try:
        vectors(model, by_modules=False)
    finally:
        hook.remove()
    assert {"Block", "PackedLinear", "LayerNorm", "GroupedQueryAttention"} <= seen


def test_packed_matrices_go_when_the_model_is_unpacked_and_its_engine_is_gone() -> None:
    model = tiny("decoder").model
    engine = engine_of(model)
    run(engine, PROMPTS[0])
    packed = weakref.ref(blocks(model)[0].attention.out.matrices["weight"])
    unpack_model(model)
    assert packed() is not None, "the engine can go on"
    del engine
    gc.collect()
    assert packed() is None


def test_a_model_that_is_not_needed_goes_at_once() -> None:
    model = tiny("decoder").model
    hook = blocks(model)[1].feedforward.register_forward_hook(lambda *call: None)
    vectors(model, by_modules=False)
    hook.remove()
    block = weakref.ref(blocks(model)[0])
    gc.collect()
    gc.disable()
    try:
        del model
        assert block() is None
    finally:
        gc.enable()


def test_threads_change_nothing() -> None:
    model, threads = (
        tiny("decoder", **{**KNOWN["llama"], "width": 256}).model,
        torch.get_num_threads(),
    )
    try:
        actual = []
        for num in (1, 2):
            torch.set_num_threads(num)
            actual.append(vectors(model, by_modules=False))
    finally:
        torch.set_num_threads(threads)
    assert same(*actual)


def change_norm(model: AnyModel) -> None:
    blocks(model)[0].attention_path.norm.weight.data = torch.full((32,), 0.5)


def change_weight(model: AnyModel) -> None:
    unpack_model(model)
    blocks(model)[1].attention.out.weight.data *= 2
    pack_model(model)


def change_part(model: AnyModel) -> None:
    blocks(model)[0].feedforward = copy.deepcopy(blocks(model)[1].feedforward)


@pytest.mark.parametrize("change", [change_norm, change_weight, change_part])
def test_a_change_of_the_layer_is_followed(change: Any) -> None:
    model = tiny("decoder").model
    before = vectors(model, by_modules=False)
    with torch.no_grad():
        change(model)
    after = vectors(model, by_modules=False)
    assert not same(before, after)
    assert same(after, vectors(model, by_modules=True))


def test_a_copy_has_a_call_of_its_own() -> None:
    model = tiny("decoder").model
    before = vectors(model, by_modules=False)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert same(before, vectors(other, by_modules=False))
        with torch.no_grad():
            change_norm(other)
        assert same(before, vectors(model, by_modules=False))


def engine_of(model: AnyModel) -> Engine:
    return Engine(model, config=SMALL)


def run(engine: Engine, prompt: list[int]) -> list[int]:
    """Greedy tokens behind a prompt."""
    name, tokens = engine.submit(GenerationRequest(tuple(prompt), 6)), list[int]()
    while not engine.is_idle:
        tokens += [token for one in engine.step() if one.request_id == name for token in one.tokens]
    return tokens


def read(engine: Engine, text: list[int]) -> Tensor:
    engine.submit_embedding(text)
    (update,) = engine.step()
    assert update.vectors_TD is not None
    return update.vectors_TD


def test_the_pages_of_an_engine_that_is_gone_are_neither_kept_nor_written() -> None:
    model = tiny("decoder", **KNOWN["llama"]).model
    first, second = engine_of(model), engine_of(model)
    expected = read(second, PROMPTS[1])
    written, store = run(first, PROMPTS[1]), weakref.ref(first.runner.store)
    del first
    gc.collect()
    assert store() is None
    assert read(second, PROMPTS[1]).equal(expected)
    assert run(second, PROMPTS[1]) == written


@pytest.mark.parametrize("name", ["window and all", "llama"])
def test_engines_that_take_turns_have_their_own_pages(name: str) -> None:
    pattern = {"kind": "window", "window": 3, "full_every": 2}
    mixed = {"attention": {**GQA, "pattern": pattern}, "position": {"kind": "rotary"}}
    changes = KNOWN["llama"] if name == "llama" else {"num_layers": 4, **mixed}
    model = tiny("decoder", **changes).model
    expected = [run(engine_of(model), prompt) for prompt in PROMPTS]
    engines = [engine_of(model) for _ in PROMPTS]
    for engine, prompt in zip(engines, PROMPTS, strict=True):
        engine.submit(GenerationRequest(tuple(prompt), 6))
    outputs = [list[int]() for _ in engines]
    while any(not engine.is_idle for engine in engines):
        for engine, output in zip(engines, outputs, strict=True):
            output += [token for one in engine.step() for token in one.tokens]
    assert outputs == expected


def test_positions_beyond_the_first_table_are_turned_as_the_modules_turn_them() -> None:
    model = tiny("decoder", max_len=400, **KNOWN["llama"]).model
    prompt = [5 + i % 30 for i in range(300)]
    together = read(engine_of(model), prompt)
    hooks = [b.feedforward.register_forward_hook(lambda *call: None) for b in blocks(model)]
    by_modules = read(engine_of(model), prompt)
    for hook in hooks:
        hook.remove()
    assert together.equal(by_modules)


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_memory_of_a_large_step_is_freed_after_it(kind: str, monkeypatch) -> None:
    """Kept is what a small step needs; nothing waits for Python's garbage collection."""
    monkeypatch.setattr(compiled_stack, "KEPT_SCRATCH_BYTES", 20_000)
    made: list[weakref.ref[Tensor]] = []
    known = CompiledStack.scratch_for

    def watched(self: CompiledStack, num_tokens: int) -> Tensor:
        scratch = known(self, num_tokens)
        if scratch is not self.scratch:
            made.append(weakref.ref(scratch))
        return scratch

    monkeypatch.setattr(CompiledStack, "scratch_for", watched)
    engine = Engine(tiny(kind).model, config=SMALL)
    source = (7, 8, 9) if kind == "encoder-decoder" else None
    gc.collect()
    gc.disable()
    try:
        for beam in (None, BeamConfig(1), BeamConfig(2)):
            engine.submit(GenerationRequest(tuple(range(5, 30)), 9, source, beam=beam))
            while not engine.is_idle:
                engine.step()
        assert made and not [one for one in made if one() is not None]
    finally:
        gc.enable()
