"""ModelConfig -> parameters, KV cache bytes and FLOPs per token, without building the model.

FLOPs are two per multiply-add of one forward pass: the matrix products, and the products of one
query with `context` keys. Norms, activations and softmax are left out, as is usual. Sizes are those
of weight_shapes.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Literal

from weft.core.registry import pick
from weft.models.config import ModelConfig
from weft.models.weight_shapes import (
    attention_shapes,
    feedforward_shapes,
    head_shapes,
    weight_shapes,
)
from weft.nn.config import FeedForwardConfig, MixtureOfExpertsConfig

DTYPE_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}
"""Bytes of one number, by the names of core/device.py."""


@dataclass(frozen=True)
class Cost:
    """Sizes of one model. `context` is the number of keys that a token sees (a window sees
    fewer)."""

    kind: str
    heads: str
    parameters: int
    active_parameters: int
    """Parameters that one token uses: all but the experts that it is not sent to."""
    kv_bytes_per_token: int
    kv_bytes_per_source_token: int
    """Cross-attention rows, once for each token of the source."""
    flops_per_token: int
    flops_per_source_token: int
    context: int
    dtype: str
    weight_bytes: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def cost_of(config: ModelConfig, context: int | None = None, dtype: str = "float32") -> Cost:
    """The cost of a model with these settings, with `context` keys in sight (None: max_len) and
    weights and cache of a dtype of DTYPE_BYTES."""
    item_bytes = pick(DTYPE_BYTES, dtype, "dtype")
    context = context or config.max_len
    parameters = sum(prod(shape) for shape in weight_shapes(config).values())
    row_bytes = item_bytes * sum(map(prod, config.attention.kv_rows(config.width).values()))
    num_cached = 0 if config.kind == "encoder" else config.num_layers
    num_cross = config.num_layers if config.kind == "encoder-decoder" else 0
    source, target = flops(config, context)
    return Cost(
        kind=config.kind,
        heads=config.attention.kind,
        parameters=parameters,
        active_parameters=parameters - idle_parameters(config),
        kv_bytes_per_token=num_cached * row_bytes,
        kv_bytes_per_source_token=num_cross * row_bytes,
        flops_per_token=target,
        flops_per_source_token=source,
        context=context,
        dtype=dtype,
        weight_bytes=parameters * item_bytes,
    )


def compare_heads(
    config: ModelConfig, context: int | None = None, dtype: str = "float32"
) -> list[Cost]:
    """The same settings with each kind of heads."""
    kinds = ("mha", "gqa", "mqa", "mla")
    return [
        cost_of(config.with_changes({"attention.kind": kind}), context, dtype) for kind in kinds
    ]


def idle_parameters(config: ModelConfig) -> int:
    """Parameters of experts that one token does not visit, in all layers."""
    sides: tuple[Literal["encoder", "decoder"], ...] = ("encoder", "decoder")
    return sum(
        idle_in(config.feedforward_of(layer), config.width)
        for side in sides
        if side in config.kind.split("-")
        for layer in range(config.layers_of(side))
    )


def idle_in(config: FeedForwardConfig, width: int) -> int:
    """Parameters of one layer's experts that one token does not visit."""
    if not isinstance(config, MixtureOfExpertsConfig):
        return 0
    per_expert = 3 * config.inner_width(width) * width
    return per_expert * (config.num_experts - config.experts_per_token)


def flops(config: ModelConfig, context: int) -> tuple[int, int]:
    """FLOPs of one source token (encoder, and the keys and values it gives), and of one target
    token."""
    head = matrix_flops(head_shapes(config))
    if config.kind != "encoder-decoder":
        return 0, stack_flops(config, config.kind, context) + head
    source_rows = config.num_layers * 2 * config.attention.macs_per_row(config.width)
    source = stack_flops(config, "encoder", context) + source_rows
    return source, stack_flops(config, "decoder", context) + head


def stack_flops(config: ModelConfig, side: Literal["encoder", "decoder"], context: int) -> int:
    """One token through all layers of a stack."""
    attention, width = config.attention, config.width
    projections = matrix_flops(attention_shapes(attention, width))
    flops_per_key = 2 * attention.macs_per_pair(width)
    cross = 0
    if side == "decoder" and config.kind == "encoder-decoder":
        cross = projections - 2 * attention.macs_per_row(width) + flops_per_key * context
    total = 0
    for layer in range(config.layers_of(side)):
        feedforward = config.feedforward_of(layer)
        seen = min(context, attention.pattern.kv_window(layer) or context)
        total += projections + flops_per_key * seen + cross
        total += matrix_flops(feedforward_shapes(feedforward, width))
        total -= 2 * idle_in(feedforward, width)
    return total


def matrix_flops(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Two per weight of every matrix."""
    return 2 * sum(prod(shape) for shape in shapes.values() if len(shape) >= 2)
