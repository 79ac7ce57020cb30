"""Grouped-query attention: x_BTD -> y_BTD. K key/value heads serve H query heads (Ainslie 2023).
The cache stores K heads.

    MHA  K = H   q0 q1 q2 q3      GQA  K = 2   q0 q1 q2 q3      MQA  K = 1   q0 q1 q2 q3
                 k0 k1 k2 k3                   [k0]  [k1]                     [-- k0 --]

Differs from the textbook: the three projections are one matrix, rows in the order Q, K, V, so that
self-attention is one product; cross-attention applies its Q rows to x and its K and V rows to the
encoder output.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from weft.core.kv_spec import KVRows, KVSpec
from weft.core.shapes import check_shapes
from weft.nn.attention.base import AttentionContext, AttentionSlot
from weft.nn.attention.config import AttentionConfig
from weft.nn.attention.layer import Attention
from weft.nn.config import NormConfig
from weft.nn.linear import Linear
from weft.nn.norm import RMSNorm


class GroupedQueryAttention(Attention):
    """MHA, GQA and MQA: they differ in the number of key/value heads alone."""

    def __init__(
        self, config: AttentionConfig, width: int, norm: NormConfig, slot: AttentionSlot
    ) -> None:
        self.num_heads, self.num_kv_heads = config.num_heads, config.kv_heads
        self.width, self.head_size = width, config.size_of_head(width)
        super().__init__(config, slot, scale=self.head_size**-0.5)
        H, K, C = self.num_heads, self.num_kv_heads, self.head_size
        self.qkv = Linear(width, (H + 2 * K) * C, bias=config.bias)
        self.out = Linear(H * C, width, bias=config.has_out_bias)
        self.query_norm = RMSNorm(norm.for_heads(), C) if config.qk_norm else nn.Identity()
        self.key_norm = RMSNorm(norm.for_heads(), C) if config.qk_norm else nn.Identity()
        window = None if slot.is_cross else config.pattern.kv_window(slot.layer)
        self.spec = KVSpec(config.kv_rows(width), is_cross=slot.is_cross, window=window)

    def forward(self, x_BTD: Tensor, ctx: AttentionContext) -> Tensor:
        """Project, update the KV cache, attend, and merge the heads."""
        check_shapes(x_BTD=x_BTD, D=self.width)
        if self.slot.is_cross:
            return self.cross_attention(x_BTD, ctx)
        H, K = self.num_heads, self.num_kv_heads
        q_BTHC, k_BTKC, v_BTKC = split_heads(self.unflatten_heads(self.qkv(x_BTD)), (H, K, K))
        kv = self.update_cache(self.to_cached(k_BTKC, v_BTKC, ctx), ctx)
        return self.out(self.attend(q_BTHC, kv, ctx))

    def cross_attention(self, x_BTD: Tensor, ctx: AttentionContext) -> Tensor:
        """Queries of x over the keys and values of the encoder output."""
        q_BTHC = self.unflatten_heads(self.project(x_BTD, slice(self.num_heads * self.head_size)))
        return self.out(self.attend(q_BTHC, self.cached_source_kv(ctx), ctx))

    def project_kv(self, x_BSD: Tensor, ctx: AttentionContext) -> KVRows:
        kv_BSC = self.project(x_BSD, slice(self.num_heads * self.head_size, None))
        k_BSKC, v_BSKC = self.unflatten_heads(kv_BSC).chunk(2, dim=2)
        return self.to_cached(k_BSKC, v_BSKC, ctx)

    def to_cached(self, k_BTKC: Tensor, v_BTKC: Tensor, ctx: AttentionContext) -> KVRows:
        """Apply QK-norm and RoPE to new keys."""
        return {"k": self.rotate_keys(self.key_norm(k_BTKC), ctx), "v": v_BTKC}

    def attend(self, q_BTHC: Tensor, kv: KVRows, ctx: AttentionContext) -> Tensor:
        """Scaled dot-product attention of new queries over all cached keys and values: [B, T, H *
        C]."""
        q_BTHC = self.rotate_queries(self.query_norm(q_BTHC), ctx)
        bias = self.bias(q_BTHC, ctx)
        return self.scaled_dot_product(q_BTHC, kv["k"], kv["v"], ctx, bias).flatten(2)

    def project(self, x: Tensor, rows: slice) -> Tensor:
        """Some rows of the fused QKV projection, applied to x."""
        return self.qkv(x, rows)

    def unflatten_heads(self, x: Tensor) -> Tensor:
        """[B, T, heads * C] -> [B, T, heads, C]."""
        return x.unflatten(-1, (-1, self.head_size))


def split_heads(x_BTAC: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """x.split(sizes, dim=2), by SplitHeads where a gradient is needed."""
    parts: tuple[Tensor, ...]
    parts = SplitHeads.apply(x_BTAC, sizes) if x_BTAC.requires_grad else x_BTAC.split(sizes, dim=2)
    return parts


class SplitHeads(torch.autograd.Function):
    """A split whose gradients are not copied together if they are already parts of one block, as
    those of the compiled short attention are."""

    @staticmethod
    def forward(ctx: Any, x_BTAC: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
        ctx.shape = x_BTAC.shape
        return tuple(part.view_as(part) for part in x_BTAC.split(sizes, dim=2))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return concat_grads(grads, ctx.shape), None


def shares_storage(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def concat_grads(grads: tuple[Tensor, ...], shape: torch.Size) -> Tensor:
    """The gradients concatenated in dim 2; a view if they are the parts of one block of this
    shape."""
    B, T, A, C = shape
    strides, offset = (T * A * C, A * C, C, 1), grads[0].storage_offset()
    for grad in grads:
        is_next = grad.storage_offset() == offset and grad.stride() == strides
        if not is_next or not shares_storage(grad, grads[0]):
            return torch.cat(grads, dim=2)
        offset += grad.shape[2] * C
    return grads[0].as_strided(shape, strides)
