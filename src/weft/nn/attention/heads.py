"""Grouped heads: x_BTD -> y_BTD. K key/value heads serve H query heads (Ainslie 2023); the cache
stores K heads.

    MHA  K = H   q0 q1 q2 q3      GQA  K = 2   q0 q1 q2 q3      MQA  K = 1   q0 q1 q2 q3
                 k0 k1 k2 k3                   [k0]  [k1]                     [-- k0 --]

Differs from the textbook: the three projections are one matrix, rows in the order Q, K, V, so that
self-attention is one product; cross-attention uses its Q rows on x and its K and V rows on the
memory.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from weft.core.kv_spec import KVRows, KVSpec
from weft.nn.attention.layer import Attention, Pass, Place
from weft.nn.attention.settings import AttentionConfig
from weft.nn.linear import Linear
from weft.nn.norm import NormConfig, RMSNorm


class GroupedAttention(Attention):
    """MHA, GQA and MQA: they differ in the number of key/value heads alone."""

    def __init__(self, config: AttentionConfig, width: int, norm: NormConfig, place: Place) -> None:
        self.num_heads, self.num_kv_heads = config.num_heads, config.kv_heads
        self.head_size = config.size_of_head(width)
        super().__init__(config, place, scale=self.head_size**-0.5)
        H, K, C = self.num_heads, self.num_kv_heads, self.head_size
        out_bias = config.bias if config.out_bias is None else config.out_bias
        self.qkv = Linear(width, (H + 2 * K) * C, bias=config.bias)
        self.out = Linear(H * C, width, bias=out_bias)
        self.query_norm = RMSNorm(norm.for_heads(), C) if config.qk_norm else nn.Identity()
        self.key_norm = RMSNorm(norm.for_heads(), C) if config.qk_norm else nn.Identity()
        reach = None if place.is_cross else config.pattern.reach(place.layer)
        self.numbers_per_pair, self.numbers_per_row = 2 * H * C, 2 * K * C * width
        self.spec = KVSpec({"k": (K, C), "v": (K, C)}, is_cross=place.is_cross, window=reach)

    def forward(self, x_BTD: Tensor, given: Pass) -> Tensor:
        if self.place.is_cross:
            return super().forward(x_BTD, given)
        H, K = self.num_heads, self.num_kv_heads
        q_BTHC, k_BTKC, v_BTKC = parts_of(self.split(self.qkv(x_BTD)), (H, K, K))
        rows = self.stored(k_BTKC, v_BTKC, given)
        if given.cache is not None:
            rows = given.cache.extend(self.place.slot, rows)
        return self.out(self.meet(q_BTHC, rows, given))

    def make_rows(self, x_BSD: Tensor, given: Pass) -> KVRows:
        k_BSKC, v_BSKC = self.split(self.part(x_BSD, keys=True)).chunk(2, dim=2)
        return self.stored(k_BSKC, v_BSKC, given)

    def read(self, x_BTD: Tensor, rows: KVRows, given: Pass) -> Tensor:
        return self.meet(self.split(self.part(x_BTD, keys=False)), rows, given)

    def stored(self, k_BTKC: Tensor, v_BTKC: Tensor, given: Pass) -> KVRows:
        """Keys as the cache keeps them: normed, and turned unless the angle depends on the
        length."""
        k_BTKC = self.key_norm(k_BTKC)
        return {
            "k": k_BTKC if given.position.turns_late else self.rotate_keys(k_BTKC, given),
            "v": v_BTKC,
        }

    def meet(self, q_BTHC: Tensor, rows: KVRows, given: Pass) -> Tensor:
        """Queries meet the stored keys and values; the heads side by side: [B, T, H * C]."""
        q_BTHC = self.rotate_queries(self.query_norm(q_BTHC), given)
        k_BSKC = self.turn_stored(rows["k"], given)
        bias = self.bias(q_BTHC, given)
        return self.core(q_BTHC, k_BSKC, rows["v"], given, bias).flatten(2)

    def part(self, x: Tensor, *, keys: bool) -> Tensor:
        """The query rows of the projection, or its key and value rows, applied to x."""
        cut = self.num_heads * self.head_size
        rows = slice(cut, None) if keys else slice(cut)
        return self.qkv(x, rows)

    def split(self, x: Tensor) -> Tensor:
        """[B, T, heads * C] -> [B, T, heads, C]."""
        return x.unflatten(-1, (-1, self.head_size))


def parts_of(x_BTAC: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """x.split(sizes, dim=2), by Parts where a gradient will be asked for."""
    parts: tuple[Tensor, ...]
    parts = Parts.apply(x_BTAC, sizes) if x_BTAC.requires_grad else x_BTAC.split(sizes, dim=2)
    return parts


class Parts(torch.autograd.Function):
    """A split whose gradient is not copied together where its parts lie so already,
    as those of the compiled short attention do."""

    @staticmethod
    def forward(ctx: Any, x_BTAC: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
        ctx.shape = x_BTAC.shape
        return tuple(part.view_as(part) for part in x_BTAC.split(sizes, dim=2))

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        return joined(slopes, ctx.shape), None


def joined(parts: tuple[Tensor, ...], shape: torch.Size) -> Tensor:
    """The parts side by side; as they lie, if they are the parts of one block of this shape."""
    B, T, A, C = shape
    strides, offset = (T * A * C, A * C, C, 1), parts[0].storage_offset()
    block = parts[0].untyped_storage().data_ptr()
    for part in parts:
        is_next = part.storage_offset() == offset and part.stride() == strides
        if not is_next or part.untyped_storage().data_ptr() != block:
            return torch.cat(parts, dim=2)
        offset += part.shape[2] * C
    return parts[0].as_strided(shape, strides)
