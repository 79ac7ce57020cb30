"""What `weft info` says a model costs is what the model costs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from tests.contiguous_cache import ContiguousCache
from weft.core.device import DTYPES
from weft.core.errors import ConfigError
from weft.core.forward_batch import ForwardBatch
from weft.models.build import build_model, empty_model
from weft.models.config import ModelConfig
from weft.models.cost import DTYPE_BYTES, compare_heads, cost_of
from weft.models.transformer import EncoderDecoder
from weft.models.weight_shapes import weight_shapes

from ..contracts.settings import configs


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder", "encoder"])
@settings(max_examples=20)
@given(data=st.data())
def test_parameters_and_cache_bytes_are_those_of_the_built_model(
    kind: str, data: st.DataObject
) -> None:
    config = data.draw(configs(kind))
    model, cost = build_model(config), cost_of(config)
    shapes = {name: tuple(weight.shape) for name, weight in model.named_parameters()}
    assert weight_shapes(config) == shapes
    assert cost.parameters == sum(weight.numel() for weight in model.parameters())
    cache = ContiguousCache(model.kv_specs(), batch_size=1, max_len=1)
    assert cost.kv_bytes_per_token == sum(t.nbytes for rows in cache.rows for t in rows.values())


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "encoder", "pooler": True, "embedding": {"segments": 2, "norm": True}},
        {"kind": "encoder", "head": {"transform": True, "bias": True}, "final_norm": True},
        {"kind": "encoder-decoder", "source_vocab_size": 31, "embedding": {"tied": "none"}},
        {"kind": "encoder-decoder", "encoder_layers": 1, "embedding": {"tied": "input"}},
        {
            "kind": "decoder",
            "dense_layers": 1,
            "dense_feedforward": {"kind": "geglu"},
            "feedforward": {"kind": "experts", "shared_experts": 0, "correction": True},
        },
        {
            "kind": "decoder",
            "position": {"kind": "learned", "max_len": 9, "offset": 2},
            "attention": {"num_heads": 4, "bias": True, "out_bias": False},
        },
        {
            "kind": "decoder",
            "position": {"kind": "rotary"},
            "local_position": {"kind": "rotary", "base": 100.0},
            "attention": {"num_heads": 4, "pattern": {"kind": "window", "window": 8}},
        },
    ],
)
def test_shapes_are_those_of_the_built_model(values: dict) -> None:
    sizes = {"vocab_size": 29, "width": 24, "num_layers": 2, "max_len": 64}
    config = ModelConfig(**sizes, **{"attention": {"num_heads": 4}, **values})
    parameters = empty_model(config).named_parameters()
    assert weight_shapes(config) == {name: tuple(weight.shape) for name, weight in parameters}


@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_of_each_dtype_are_those_of_torch(dtype: str) -> None:
    cost = cost_of(ModelConfig(), dtype=dtype)
    assert DTYPE_BYTES[dtype] == DTYPES[dtype].itemsize and list(DTYPE_BYTES) == list(DTYPES)
    assert cost.weight_bytes == cost.parameters * DTYPES[dtype].itemsize


@pytest.mark.parametrize(
    "changes",
    [
        {"position.kind": "sinusoidal", "width": 33, "attention.num_heads": 3},
        {"width": 2**31 - 1, "attention.num_heads": 1, "feedforward.width": 2**31 - 1},
    ],
)
def test_sizes_that_cannot_be_built_have_the_message_of_building(changes: dict) -> None:
    config = ModelConfig(kind="decoder", position={"kind": "none"}).with_changes(changes)
    with pytest.raises(ConfigError) as building:
        empty_model(config)
    with pytest.raises(ConfigError) as counting:
        cost_of(config)
    assert str(counting.value) == str(building.value)


@pytest.mark.parametrize("heads", ["mha", "gqa", "mqa"])
@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_flops_are_what_torch_counts_for_the_last_of_many_tokens(kind: str, heads: str) -> None:
    """The reference kernel is plain matrix products, so torch's own counter sees everything."""
    config = ModelConfig(
        kind=kind,
        vocab_size=50,
        width=24,
        num_layers=2,
        max_len=16,
        attention={"kind": heads, "num_heads": 4, "kernel": "reference"},
        feedforward={"kind": "swiglu", "width": 40},
    )
    model = build_model(config).eval()
    source = ForwardBatch(torch.zeros(1, 16, dtype=torch.long))
    given = {}
    cache = ContiguousCache(model.kv_specs(), 1, 16)
    with torch.no_grad():
        if isinstance(model, EncoderDecoder):
            given = {"memory_BSD": model.encode(source)}
        model(ForwardBatch(source.ids_BT[:, :15], cache=cache, **given))
        cache.advance(15)
        with FlopCounterMode(display=False) as counter:
            model(ForwardBatch(source.ids_BT[:, :1], cache=cache, **given))
    assert cost_of(config).flops_per_token == counter.get_total_flops()


def test_heads_side_by_side_shrink_the_cache_and_nothing_else_changes() -> None:
    config = ModelConfig(kind="decoder", width=128, num_layers=3, attention={"num_heads": 8})
    mha, gqa, mqa, mla = compare_heads(config)
    assert [c.heads for c in (mha, gqa, mqa, mla)] == ["mha", "gqa", "mqa", "mla"]
    assert mha.kv_bytes_per_token == 3 * 2 * 8 * 16 * 4
    assert gqa.kv_bytes_per_token == 3 * 2 * 2 * 16 * 4
    assert mqa.kv_bytes_per_token == 3 * 2 * 1 * 16 * 4
    assert mla.kv_bytes_per_token == 3 * (4 * 16 + 8) * 4


def test_idle_experts_cost_parameters_but_no_work() -> None:
    def cost(num_experts: int):
        experts = {"kind": "experts", "num_experts": num_experts, "width": 16}
        return cost_of(ModelConfig(kind="decoder", width=32, feedforward=experts))

    few, many = cost(4), cost(8)
    assert many.parameters > few.parameters
    router = 4 * 4 * 32  # four layers, four more rows of the router
    assert many.active_parameters - few.active_parameters == router
    assert many.flops_per_token - few.flops_per_token == 2 * router


def test_a_window_bounds_the_keys_that_are_counted() -> None:
    def flops(context: int) -> int:
        pattern = {"kind": "window", "window": 32}
        config = ModelConfig(kind="decoder", attention={"pattern": pattern})
        return cost_of(config, context).flops_per_token

    assert flops(16) < flops(32) == flops(1000)
