"""Base class of the attention layers: x_BTD -> y_BTD, with an optional KV cache.

    kv = project_kv(x or memory)        what is cached per token; KVSpec declares it
    kv = cache.extend(kv)               rows of all tokens so far (self-attention)
         cache.source(kv)               rows of the encoder output, computed once (cross-attention)
         cache.layout()                 the page tables, if the cache is paged
    y  = out(attention of the queries of x over kv)

Self- and cross-attention are one class: they differ in whose keys and values are read, in positions
and in the mask. Differs from the textbook: a layer does not build masks or positions; both are in
`AttentionContext`.
"""

from __future__ import annotations

from torch import Tensor, nn

from weft.core.kv_spec import DenseView, KVRows, KVSpec, PagedView, PageLayout
from weft.core.shapes import check_shapes
from weft.nn.attention.base import AttentionCall, AttentionContext, AttentionSlot, Mask
from weft.nn.attention.config import AttentionConfig
from weft.nn.attention.kernels import attention_weights, choose_kernel
from weft.nn.attention.paged_attention import attend_pages
from weft.nn.positions.base import Bias


class Attention(nn.Module):
    """softmax(Q K^T * scale + bias, masked) V for H heads, concatenated and projected by W_O."""

    spec: KVSpec
    out: nn.Linear

    def __init__(self, config: AttentionConfig, slot: AttentionSlot, scale: float) -> None:
        super().__init__()
        self.config, self.slot = config, slot
        self.scale, self.kernel = config.scale or scale, choose_kernel(config.kernel)
        self.is_full = slot.is_cross or config.pattern.is_full(slot.layer)
        # receives the attention weights while a forward hook is registered on it; they are then
        # computed by the reference kernel
        self.weights = nn.Identity()

    def forward(self, x_BTD: Tensor, ctx: AttentionContext) -> Tensor:
        """Project, update the KV cache, attend, and merge the heads."""
        raise NotImplementedError

    def project_kv(self, x_BSD: Tensor, ctx: AttentionContext) -> KVRows:
        """What the cache stores of each token of x."""
        raise NotImplementedError

    def update_cache(self, kv: KVRows, ctx: AttentionContext) -> KVRows:
        """Append the rows of the new tokens to the cache; returns the rows of all tokens so far."""
        return kv if ctx.cache is None else ctx.cache.extend(self.slot.kv_index, kv)

    def cached_source_kv(self, ctx: AttentionContext) -> KVRows:
        """Keys and values of the encoder output, projected at the first use of a cache."""
        if ctx.cache is None:
            return self.source_kv(ctx)
        return ctx.cache.source(self.slot.kv_index, lambda: self.source_kv(ctx))

    def source_kv(self, ctx: AttentionContext) -> KVRows:
        memory_BSD = ctx.memory_BSD
        assert memory_BSD is not None, "cross-attention was called without an encoder's output"
        return self.project_kv(memory_BSD, ctx)

    def rotate_queries(self, q_BTHO: Tensor, ctx: AttentionContext) -> Tensor:
        """Encode the positions of new queries; cross-attention has no positions."""
        if self.slot.is_cross:
            return q_BTHO
        return ctx.position.rotate_queries(q_BTHO, ctx.positions_BT, ctx.lengths)

    def rotate_keys(self, k_BTKO: Tensor, ctx: AttentionContext) -> Tensor:
        """Encode the positions of new keys; cross-attention has no positions."""
        if self.slot.is_cross:
            return k_BTKO
        return ctx.position.rotate_keys(k_BTKO, ctx.positions_BT, ctx.lengths)

    def bias(self, q_BTHC: Tensor, ctx: AttentionContext) -> Bias | None:
        return None if self.slot.is_cross else ctx.position.bias(self.slot.layer, q_BTHC)

    def mask(self, ctx: AttentionContext) -> Mask | None:
        if self.slot.is_cross:
            return ctx.memory_mask
        return ctx.full_mask if self.is_full else ctx.mask

    def page_layout(self, ctx: AttentionContext) -> PageLayout | None:
        """The page tables of this layer's keys; None: they are plain tensors."""
        return None if ctx.cache is None else ctx.cache.layout(self.slot.kv_index)

    def scaled_dot_product(
        self,
        q_BTHC: Tensor,
        k_BSKC: Tensor,
        v_BSKU: Tensor,
        ctx: AttentionContext,
        bias: Bias | None,
    ) -> Tensor:
        """out_BTHU, by paged attention over a paged cache, else by the kernel of the settings."""
        softcap, mask, layout = self.config.softcap, self.mask(ctx), self.page_layout(ctx)
        if layout is not None:
            pages = PagedView(k_BSKC, v_BSKU, layout)
            return attend_pages(AttentionCall(q_BTHC, pages, mask, bias, self.scale, softcap))[0]
        check_shapes(q_BTHC=q_BTHC, k_BSKC=k_BSKC, v_BSKU=v_BSKU)
        kv = DenseView(k_BSKC, v_BSKU, 0 if self.slot.is_cross else ctx.start)
        if bias is not None:
            bias = bias.for_call(q_BTHC, kv)
        dropout = self.config.dropout if self.training else 0.0
        call = AttentionCall(q_BTHC, kv, mask, bias, self.scale, softcap, dropout)
        if self.weights._forward_hooks:
            self.weights(attention_weights(call)[0])
        return self.kernel(call)[0]
