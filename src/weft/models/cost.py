"""ModelConfig -> parameters, KV cache bytes and FLOPs per token, without allocating the model.

The model is built without memory (torch's meta device), so that the sizes are those of the real
layers. FLOPs are two per multiply-add of one forward pass: the matrix products, and the products
of one query with `context` keys. Norms, activations and softmax are left out, as is usual.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from weft.models.build import AnyModel, empty_model
from weft.models.config import ModelConfig
from weft.models.stack import Stack
from weft.models.transformer import Encoder, EncoderDecoder
from weft.nn.mixture_of_experts import MixtureOfExperts


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


def cost_of(
    config: ModelConfig, context: int | None = None, dtype: torch.dtype = torch.float32
) -> Cost:
    """The cost of a model with these settings, with `context` keys in sight (None: max_len)."""
    model = empty_model(config)
    context = context or config.max_len
    specs = model.kv_specs()
    parameters = sum(weight.numel() for weight in model.parameters())
    source, target = flops(model, context)
    return Cost(
        kind=config.kind,
        heads=config.attention.kind,
        parameters=parameters,
        active_parameters=parameters - idle_parameters(model),
        kv_bytes_per_token=sum(s.bytes_per_token(dtype) for s in specs if not s.is_cross),
        kv_bytes_per_source_token=sum(s.bytes_per_token(dtype) for s in specs if s.is_cross),
        flops_per_token=target,
        flops_per_source_token=source,
        context=context,
        dtype=str(dtype).removeprefix("torch."),
        weight_bytes=parameters * dtype.itemsize,
    )


def compare_heads(
    config: ModelConfig, context: int | None = None, dtype: torch.dtype = torch.float32
) -> list[Cost]:
    """The same settings with each kind of heads."""
    kinds = ("mha", "gqa", "mqa", "mla")
    return [
        cost_of(config.with_changes({"attention.kind": kind}), context, dtype) for kind in kinds
    ]


def idle_parameters(model: nn.Module) -> int:
    """Parameters of experts that one token does not visit."""
    return sum(idle_in(layer) for layer in model.modules() if isinstance(layer, MixtureOfExperts))


def idle_in(experts: MixtureOfExperts) -> int:
    one = experts.gate_up_EFD[0].numel() + experts.down_EDF[0].numel()
    return one * (experts.config.num_experts - experts.config.experts_per_token)


def flops(model: AnyModel, context: int) -> tuple[int, int]:
    """FLOPs of one source token (encoder, and the keys and values it gives), and of one target
    token."""
    head = linear_flops(model.head)
    if isinstance(model, Encoder):
        return 0, stack_flops(model.encoder, context) + head
    if not isinstance(model, EncoderDecoder):
        return 0, stack_flops(model.decoder, context) + head
    crosses = [block.cross for block in model.decoder.layers if block.cross is not None]
    source = stack_flops(model.encoder, context) + sum(2 * c.macs_per_row for c in crosses)
    return source, stack_flops(model.decoder, context) + head


def stack_flops(stack: Stack, context: int) -> int:
    """One token through all layers of a stack."""
    total = 0
    for block in stack.layers:
        seen = min(context, block.attention.spec.window or context)
        total += linear_flops(block.feedforward) + linear_flops(block.attention)
        total += 2 * block.attention.macs_per_pair * seen
        if block.cross is not None:
            total += linear_flops(block.cross) - 2 * block.cross.macs_per_row
            total += 2 * block.cross.macs_per_pair * context
    return total


def linear_flops(layer: nn.Module) -> int:
    """Two per weight of every matrix, counting of the experts only those that a token visits."""
    matrices = [weight for weight in layer.parameters() if weight.ndim >= 2]
    return 2 * (sum(weight.numel() for weight in matrices) - idle_parameters(layer))
