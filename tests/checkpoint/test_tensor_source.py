"""A model filled from named tensors: what is tied stays tied, nothing of the file is kept, and what
does not fit is named before anything is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from weft.checkpoint.tensor_source import (
    FLOAT8,
    InMemorySource,
    RenamedSource,
    build_from_source,
    split_state,
    tied_names,
)
from weft.checkpoint.weight_rules import WeightRule, same, stacked, transposed
from weft.core.errors import DataError
from weft.models.build import AnyModel, SkipInit, build_model
from weft.models.config import ModelConfig

PLACE = Path("tiny/model.safetensors")
PAIR = {
    "vocab_size": 61,
    "width": 24,
    "num_layers": 1,
    "max_len": 16,
    "attention": {"num_heads": 3},
    "feedforward": {"kind": "relu", "width": 40},
    "embedding": {"tied": "all"},
}
EXPERTS = {
    **PAIR,
    "kind": "decoder",
    "embedding": {"tied": "none"},
    "feedforward": {
        "kind": "experts",
        "num_experts": 5,
        "experts_per_token": 2,
        "width": 16,
        "correction": True,
    },
}


class Watched(InMemorySource):
    """Counts what is read of it."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        super().__init__(tensors, PLACE)
        self.names: list[str] = []

    def read(self, name: str) -> Tensor:
        self.names.append(name)
        return super().read(name)


def material(values: dict[str, Any]) -> tuple[AnyModel, list[WeightRule], dict[str, Tensor]]:
    """A model, rules that keep its names, and its weights by these."""
    model = build_model(ModelConfig.from_dict(values))
    names = [names[0] for names in tied_names(model).values()]
    state = model.state_dict()
    return model, [same(name, name) for name in names], {name: state[name] for name in names}


@pytest.mark.parametrize("values", [PAIR, EXPERTS], ids=["pair", "experts"])
def test_a_filled_model_has_every_weight_and_reads_each_once(values: dict[str, Any]) -> None:
    original, rules, tensors = material(values)
    source = Watched(tensors)
    model = build_from_source(original.config, rules, source)
    assert not model.training
    assert sorted(source.names) == sorted(tensors)
    state = original.state_dict()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name]), name
    assert not any(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])


def test_tied_tables_are_one_parameter_that_learns() -> None:
    original, rules, tensors = material(PAIR)
    model = build_from_source(original.config, rules, InMemorySource(tensors, PLACE))
    words = model.get_submodule("encoder.embedding.words").weight
    assert words is model.get_submodule("decoder.embedding.words").weight
    assert isinstance(words, nn.Parameter) and words.requires_grad
    assert len(tied_names(model)) == len(rules)
    counts = (sum(p.numel() for p in one.parameters()) for one in (original, model))
    assert len(set(counts)) == 1


def test_a_buffer_stays_a_buffer() -> None:
    original, rules, tensors = material(EXPERTS)
    name = "decoder.blocks.0.feedforward.router.correction_E"
    tensors[name] = torch.arange(5.0)
    model = build_from_source(original.config, rules, InMemorySource(tensors, PLACE))
    assert torch.equal(dict(model.named_buffers())[name], torch.arange(5.0))
    assert name not in dict(model.named_parameters())


def test_nothing_of_a_mapped_file_is_kept_and_a_fresh_tensor_is_not_copied() -> None:
    original, rules, tensors = material(PAIR)
    mapped, fresh = InMemorySource(tensors, PLACE), InMemorySource(tensors, PLACE)
    fresh.is_mapped = False
    theirs = {tensor.data_ptr() for tensor in tensors.values()}
    kept, taken = (
        {
            weight.data_ptr()
            for weight in build_from_source(original.config, rules, source).parameters()
        }
        for source in (mapped, fresh)
    )
    assert not kept & theirs
    assert taken == theirs


def test_numbers_take_the_dtype_that_is_asked_for() -> None:
    original, rules, tensors = material(PAIR)
    source = InMemorySource(tensors, PLACE)
    model = build_from_source(original.config, rules, source, dtype=torch.bfloat16)
    assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("dtype", sorted(FLOAT8, key=str), ids=str)
@pytest.mark.parametrize("values", [PAIR, EXPERTS], ids=["pair", "experts"])
def test_float8_weights_are_read_as_float32(values: dict[str, Any], dtype: torch.dtype) -> None:
    original, rules, tensors = material(values)
    name = "decoder.blocks.0.attention.qkv.weight"
    rules = [rule for rule in rules if rule.target_name != name]
    rules.append(stacked(name, ("q", "k", "v"), (24, 24, 24)))
    tensors |= dict(zip("qkv", tensors.pop(name).split(24), strict=True))
    narrow = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    model = build_from_source(original.config, rules, InMemorySource(narrow, PLACE))
    expected = build_from_source(
        original.config, rules, InMemorySource({n: t.float() for n, t in narrow.items()}, PLACE)
    )
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, expected.state_dict()[name])


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.int64, torch.bool, torch.complex64, torch.float8_e8m0fnu], ids=str
)
def test_weights_that_are_not_floating_point_numbers_are_refused(dtype: torch.dtype) -> None:
    original, rules, tensors = material(PAIR)
    for name in ("encoder.norm.weight", "decoder.blocks.0.attention.qkv.weight"):
        changed = {**tensors, name: torch.ones(tensors[name].shape).to(dtype)}
        with pytest.raises(
            DataError, match=f"'{name}' is stored as {str(dtype)[6:]}: weights must"
        ):
            build_from_source(original.config, rules, InMemorySource(changed, PLACE))


def test_joined_and_turned_tensors_come_back_as_they_were() -> None:
    original, rules, tensors = material(PAIR)
    qkv, up = "encoder.blocks.0.attention.qkv.weight", "encoder.blocks.0.feedforward.up.weight"
    parts = dict(zip("qkv", tensors.pop(qkv).split(24), strict=True))
    tensors |= {**parts, "up": tensors.pop(up).T.contiguous()}
    rules = [rule for rule in rules if rule.target_name not in (qkv, up)]
    rules += [stacked(qkv, "qkv", (24, 24, 24)), transposed(up, "up")]
    model = build_from_source(original.config, rules, InMemorySource(tensors, PLACE))
    assert torch.equal(model.state_dict()[qkv], original.state_dict()[qkv])
    back = split_state(model, rules)
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoder.norm.weight": None}, "decoder.norm.weight is missing"),
        ({"more": torch.ones(1)}, "more is not part of this model"),
        ({"decoder.norm.weight": torch.ones(7)}, r"norm.weight \(7,\) where .* implies \(24,\)"),
        ({f"more.{i}": torch.ones(1) for i in range(5)}, "more.2 is not part .* and 2 more"),
    ],
    ids=["missing", "surplus", "shape", "many"],
)
def test_what_does_not_fit_is_named_before_anything_is_read(
    change: dict[str, Tensor | None], message: str
) -> None:
    original, rules, tensors = material(PAIR)
    given = {**tensors, **change}
    source = Watched({name: tensor for name, tensor in given.items() if tensor is not None})
    with pytest.raises(DataError, match=message) as caught:
        build_from_source(original.config, rules, source)
    assert str(PLACE) in str(caught.value) and source.names == []


def test_tensors_that_hold_nothing_learned_are_passed_over() -> None:
    original, rules, tensors = material(PAIR)
    source = Watched({**tensors, "encoder.version": torch.ones(1)})
    build_from_source(original.config, rules, source, ignored=(r"encoder\.version",))
    assert "encoder.version" not in source.names


def test_another_layout_is_a_matter_of_names() -> None:
    original, rules, tensors = material(PAIR)
    source = InMemorySource({f"model.{name}": tensor for name, tensor in tensors.items()}, PLACE)
    renamed = RenamedSource(source, {name.removeprefix("model."): name for name in source.shapes})
    model = build_from_source(original.config, rules, renamed)
    name = "encoder.norm.weight"
    assert torch.equal(model.state_dict()[name], tensors[name])


def test_layers_without_first_values_are_as_large_as_others() -> None:
    with torch.device("meta"), SkipInit():
        layer = nn.Linear(3, 5)
        nn.init.normal_(tensor=layer.weight)
    assert layer.weight.shape == (5, 3) and layer.weight.is_meta
    assert nn.Linear(3, 5).weight.abs().sum() > 0, "outside, layers draw theirs"
