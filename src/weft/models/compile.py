"""Modules -> descriptions for the native library: a packed Stack -> StackWeights.

Modules are recognized by exact type, because a subclass may compute something else. Where a stack
has a part that the library does not know (MLA, mixture of experts, biases on scores, patterns other
than a window), the result is None and the modules compute. `HookWatch` tells whether a hook was
registered anywhere: hooks see the modules only, so the modules have to compute then.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from itertools import repeat
from operator import contains

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.utils.hooks import RemovableHandle

from weft.models.stack import Stack
from weft.native.kernels import is_contiguous_float32
from weft.native.packed import PackedMatrix
from weft.native.stack_weights import (
    AttentionWeights,
    EmbeddingWeights,
    FeedForwardWeights,
    HeadWeights,
    LayerWeights,
    LinearWeights,
    NormWeights,
    PositionRows,
    ResidualNorms,
    RotaryTable,
    StackWeights,
)
from weft.nn.attention.grouped_query import GroupedQueryAttention
from weft.nn.block import Block, Residual
from weft.nn.norm import LayerNorm, RMSNorm
from weft.nn.packed_modules import (
    PackedEmbedding,
    PackedGatedMLP,
    PackedLinear,
    PackedLMHead,
    PackedMLP,
    PackedModule,
)
from weft.nn.positions.base import Position
from weft.nn.positions.rotary import Rotary

CPU = torch.device("cpu")


class NotCompilableError(Exception):
    """A part that only its module can compute."""


def stack_weights(stack: Stack, head: nn.Module | None = None) -> StackWeights | None:
    """The description of a packed stack, with embedding and head where they are known too; None:
    the modules compute."""
    if not stack.blocks or stack.training:
        return None
    try:
        layers = [layer_weights(block, stack) for block in stack.layers]
        final_norm = optional_norm(stack.norm)
    except NotCompilableError:
        return None
    return StackWeights(layers, final_norm, embedding_weights(stack), lm_head_weights(head))


def layer_weights(block: Block, stack: Stack) -> LayerWeights:
    cross, cross_path = block.cross, block.cross_path
    return LayerWeights(
        width=stack.config.width,
        placement=block.attention_path.placement,
        attention=attention_weights(block.attention, stack),
        attention_norms=residual_norms(block.attention_path),
        cross=None if cross is None else attention_weights(cross, stack),
        cross_norms=None if cross_path is None else residual_norms(cross_path),
        feedforward=feedforward_weights(block.feedforward),
        feedforward_norms=residual_norms(block.feedforward_path),
    )


def attention_weights(layer: nn.Module, stack: Stack) -> AttentionWeights:
    if type(layer) is not GroupedQueryAttention:
        raise NotCompilableError
    is_cross, config = layer.slot.is_cross, layer.config
    qk_norms = None
    if config.qk_norm:
        qk_norms = norm_weights(layer.query_norm), norm_weights(layer.key_norm)
    return AttentionWeights(
        qkv=linear_weights(layer.qkv),
        out=linear_weights(layer.out),
        qk_norms=qk_norms,
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        head_size=layer.head_size,
        scale=layer.scale,
        softcap=config.softcap,
        kv_index=layer.slot.kv_index,
        is_causal=stack.is_causal and not is_cross,
        window=None if layer.is_full else window_of(stack),
        rotary=None if is_cross else rotary_of(layer, stack),
    )


def window_of(stack: Stack) -> int | None:
    """The window of layers with the model's pattern; the kernel knows causal windows only."""
    pattern = stack.config.attention.pattern
    if pattern.kind == "full":
        return None
    if pattern.kind != "window" or not stack.is_causal:
        raise NotCompilableError
    return pattern.window


def rotary_of(layer: GroupedQueryAttention, stack: Stack) -> int | None:
    """0: the stack's position encoding rotates; 1: that of layers with a window."""
    number = int(not layer.is_full and stack.local_position is not None)
    position = positions_of(stack)[number]
    assert position is not None, "a layer without a position encoding"
    kind = type(position)
    if kind is Rotary:
        return number
    hooks = ("rotate_queries", "rotate_keys", "bias")
    if any(getattr(kind, hook) is not getattr(Position, hook) for hook in hooks):
        raise NotCompilableError
    return None


def positions_of(stack: Stack) -> tuple[Position, Position | None]:
    return stack.position, stack.local_position


def feedforward_weights(layer: nn.Module) -> FeedForwardWeights:
    if type(layer) is PackedGatedMLP:
        up, down = linear_weights(layer.gate_up), linear_weights(layer.down)
        return FeedForwardWeights(up, down, True, layer.activation)
    if type(layer) is PackedMLP:
        up, down = linear_weights(layer.up), linear_weights(layer.down)
        return FeedForwardWeights(up, down, False, layer.activation)
    raise NotCompilableError


def residual_norms(path: Residual) -> ResidualNorms:
    return ResidualNorms(norm_weights(path.norm), optional_norm(path.norm_out))


def optional_norm(layer: nn.Module) -> NormWeights | None:
    return None if type(layer) is nn.Identity else norm_weights(layer)


def norm_weights(layer: nn.Module) -> NormWeights:
    if type(layer) is not LayerNorm and type(layer) is not RMSNorm:
        raise NotCompilableError
    config, tensors = layer.config, (layer.weight, layer.bias)
    if not all(tensor is None or is_contiguous_float32(tensor) for tensor in tensors):
        raise NotCompilableError
    return NormWeights(layer.weight, layer.bias, layer.kind, config.eps, config.unit_offset)


def linear_weights(layer: nn.Module) -> LinearWeights:
    if type(layer) is not PackedLinear:
        raise NotCompilableError
    return LinearWeights(native_matrix(layer), layer.bias)


def native_matrix(layer: PackedModule) -> PackedMatrix:
    matrix = layer.matrices["weight"]
    if not matrix.is_native:
        raise NotCompilableError
    return matrix


def embedding_weights(stack: Stack) -> EmbeddingWeights | None:
    """None: the modules embed."""
    embedding, adds = stack.embedding, type(stack.position).add is not Position.add
    if type(embedding.words) is not PackedEmbedding or embedding.segments is not None:
        return None
    try:
        words, norm = native_matrix(embedding.words), optional_norm(embedding.norm)
    except NotCompilableError:
        return None
    return EmbeddingWeights(words, embedding.scale, norm, adds)


def lm_head_weights(head: nn.Module | None) -> HeadWeights | None:
    """None: the module computes the logits."""
    if type(head) is not PackedLMHead or type(head.transform) is not nn.Identity:
        return None
    if head.softcap is not None or not head.matrices["weight"].is_native:
        return None
    return HeadWeights(LinearWeights(head.matrices["weight"], head.bias), head.scale)


def position_rows(stack: Stack, num_positions: int) -> PositionRows:
    """cos and sin, and the rows that the embedding adds, for positions below `num_positions` or
    more."""
    rotary = [rotary_table(one, num_positions) for one in positions_of(stack)]
    lengths = [len(table.cos_sin) for table in rotary if table is not None]
    added_MD: Tensor | None = None
    has_table = type(stack.position).add is Position.add
    if not has_table:
        added_MD = stack.position.position_rows(num_positions)
        has_table = added_MD is not None and is_contiguous_float32(added_MD)
    if added_MD is not None:
        lengths.append(len(added_MD))
    return PositionRows(rotary, added_MD, min(lengths, default=sys.maxsize), has_table)


def rotary_table(position: Position | None, num_positions: int) -> RotaryTable | None:
    if type(position) is not Rotary:
        return None
    cos_sin = position.table.first_rows(num_positions, CPU)
    return RotaryTable(cos_sin, position.size, position.config.layout == "interleaved")


class HookWatch:
    """Whether a forward hook is registered on any module of a model, or a module was given another
    forward. Asked on every step, hence without loops in Python. Even so, reading the dictionaries
    of all modules takes 0.1 ms after a pass over all weights, when they are in no cache."""

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        self.next_id, self.was_hooked = -1, False
        self.hooks: Sequence[Mapping[int, object]] = [
            hooks for part in modules for hooks in (part._forward_hooks, part._forward_pre_hooks)
        ]
        self.attributes = [vars(part) for part in modules]

    def is_hooked(self, is_quick: bool = False) -> bool:
        """`is_quick`: only hooks that were registered since the last call are noticed, not a
        module with another forward; the number of handles that torch has made tells."""
        if is_quick and not self.was_hooked and self.next_id == RemovableHandle.next_id:
            return False
        self.next_id = RemovableHandle.next_id
        self.was_hooked = self.has_hook()
        return self.was_hooked

    def has_hook(self) -> bool:
        if any(self.hooks) or _global_forward_hooks or _global_forward_pre_hooks:
            return True
        return any(map(contains, self.attributes, repeat("forward")))
