"""Attention by the compiled library: paged attention, and short sequences in training.

`paged_attention` and `short_attention` return None where the library cannot compute a call (no
library, other dtypes or devices, gradients through pages); nn/attention has the torch
versions, which need masks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.core.kv_spec import PagedView, PageLayout
from weft.native.library import address, check, native


@dataclass(frozen=True)
class PagedAttentionParams:
    """Mask and score function of a call over pages."""

    scale: float
    is_causal: bool = True
    """A query sees keys up to its own slot; False: all keys of its sequence (cross-attention)."""
    window: int | None = None
    """Only keys nearer than this."""
    softcap: float | None = None
    bias_HM: Tensor | None = None
    """Added to the scores by distance. [N, H, M]: each query has its own values."""
    mask_NS: Tensor | None = None
    """Added to the scores by slot: 0, or -inf for keys that a query does not see. Whole tiles:
    at least `masked_slots` of the longest sequence."""

    @property
    def zero_distance(self) -> int:
        """Entry of the bias for a query's own slot."""
        return 0 if self.is_causal or self.bias_HM is None else (self.bias_HM.shape[-1] - 1) // 2


TILE = 32
"""Slots that the kernel reads at a time (csrc/tile.h)."""


def masked_slots(num_slots: int) -> int:
    """Size of a row of a mask for this many slots."""
    return -(-num_slots // TILE) * TILE


def paged_attention(
    q_NHC: Tensor, view: PagedView, params: PagedAttentionParams
) -> tuple[Tensor, Tensor] | None:
    """(out_NHU, lse_NH) of packed queries over keys and values in pages (csrc/attention.cpp)."""
    library = native()
    if library is None or not can_compile_pages(q_NHC, view):
        return None
    (N, H, C), (_, R, K, U) = q_NHC.shape, view.v_PRKU.shape
    layout, k_PRKC, v_PRKU = view.layout, view.k_PRKC, view.v_PRKU
    bias_HM = None if params.bias_HM is None else params.bias_HM.contiguous()
    distances, bias_token = bias_sizes(bias_HM)
    mask_NS = params.mask_NS
    q_NHC = q_NHC if q_NHC.stride(2) == 1 else q_NHC.contiguous()
    assert k_PRKC.stride(3) == v_PRKU.stride(3) == 1, "the numbers of a head must be contiguous"
    out_NHU, lse_NH = q_NHC.new_empty(N, H, U), q_NHC.new_empty(N, H)
    fields = (
        *(q_NHC.data_ptr(), k_PRKC.data_ptr(), v_PRKU.data_ptr()),
        *(address(bias_HM), address(mask_NS), out_NHU.data_ptr(), lse_NH.data_ptr()),
        *layout_pointers(layout),
        *(k_PRKC.stride()[:3], v_PRKU.stride()[:3], *q_NHC.stride()[:2]),
        *(len(layout.lengths_B), layout.table_BP.shape[1], H, K, C, U, R),
        *(params.is_causal, params.window or 0, distances, params.zero_distance, bias_token),
        *(0 if mask_NS is None else mask_NS.shape[1], torch.get_num_threads()),
        *(params.scale, params.softcap or 0.0),
    )
    check(library.lib.weft_paged_attention(library.new("WeftPagedAttention*", fields)))
    return out_NHU, lse_NH


def can_compile_pages(q: Tensor, view: PagedView) -> bool:
    """Whether the library takes a call over pages."""
    return native() is not None and is_float32_inference(q, view.k_PRKC, view.v_PRKU)


def bias_sizes(bias_HM: Tensor | None) -> tuple[int, int]:
    """Values of a head, and distance from query to query: 0 where all have the same values."""
    if bias_HM is None:
        return 0, 0
    *queries, H, M = bias_HM.shape
    return M, H * M if queries else 0


def is_float32_inference(*parts: Tensor) -> bool:
    """Whether all are float32 on the CPU and none needs a gradient."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in parts):
        return False
    return all(x.dtype == torch.float32 and x.device.type == "cpu" for x in parts)


def layout_pointers(layout: PageLayout) -> tuple[int, ...]:
    """Addresses of the layout's tensors and of `shared_prefix_order`, found once per layout."""
    known: tuple[tuple[int, ...], list[Tensor]] | None = layout.__dict__.get("_pointers")
    if known is None:
        parts = (layout.offsets, layout.starts_B, layout.lengths_B, layout.table_BP)
        kept = [part.int().contiguous() for part in (*parts, shared_prefix_order(layout.table_BP))]
        known = tuple(part.data_ptr() for part in kept), kept
        layout.__dict__["_pointers"] = known
    return known[0]


def shared_prefix_order(table_BP: Tensor) -> Tensor:
    """The sequences in an order that brings those with the same first pages together."""
    rows = table_BP.tolist()
    return torch.tensor(sorted(range(len(rows)), key=rows.__getitem__), dtype=torch.int32)


VECTOR_SIZE = 16
"""Head sizes that are multiples of this fill the vectors of every processor."""


def short_attention(
    q_BHTC: Tensor, k_BHSC: Tensor, v_BHSU: Tensor, added_BHTS: Tensor | None, scale: float
) -> tuple[Tensor, Tensor] | None:
    """(out_BHTU, lse_BHT) with gradients, the weights stored for the backward pass. Tensors are
    read with their strides; results are stored as [B, T, H, ...], and dq, dk and dv next to each
    other, as the layers around need them. A query that sees nothing (all of `added` is -inf) gets
    0 with lse 0."""
    if not can_compile_short(q_BHTC, k_BHSC, v_BHSU):
        return None
    results: tuple[Tensor, Tensor]
    results = NativeShortAttention.apply(q_BHTC, k_BHSC, v_BHSU, added_BHTS, scale)
    return results


def can_compile_short(q_BHTC: Tensor, k_BHSC: Tensor, v_BHSU: Tensor) -> bool:
    """Whether the library takes these."""
    tensors = (q_BHTC, k_BHSC, v_BHSU)
    is_float32 = all(x.dtype == torch.float32 and x.device.type == "cpu" for x in tensors)
    fills_vectors = all(x.shape[-1] % VECTOR_SIZE == 0 and x.numel() > 0 for x in tensors)
    return is_float32 and fills_vectors and native() is not None


class NativeShortAttention(torch.autograd.Function):
    """One call forward and one backward (csrc/short_attention.cpp)."""

    @staticmethod
    def forward(
        ctx: Any,
        q_BHTC: Tensor,
        k_BHSC: Tensor,
        v_BHSU: Tensor,
        added_BHTS: Tensor | None,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        q_BHTC, k_BHSC, v_BHSU = (contiguous_rows(x) for x in (q_BHTC, k_BHSC, v_BHSU))
        B, H, T, _ = q_BHTC.shape
        S, U = v_BHSU.shape[-2:]
        out_BHTU = torch.empty(B, T, H, U).transpose(1, 2)
        weights = torch.empty(B, H, T, -(-S // VECTOR_SIZE) * VECTOR_SIZE)
        lse_BHT = torch.empty(B, H, T)
        call = short_call(q_BHTC, k_BHSC, v_BHSU, scale)
        call.out, call.weights, call.lse = strided(out_BHTU), weights.data_ptr(), lse_BHT.data_ptr()
        if added_BHTS is not None:
            added_BHTS = contiguous_rows(added_BHTS).expand(B, H, T, S)
            call.added = strided(added_BHTS)
        run_short(call, is_backward=False)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q_BHTC, k_BHSC, v_BHSU, weights)
        ctx.scale = scale
        return out_BHTU, lse_BHT

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        q_BHTC, k_BHSC, v_BHSU, weights = ctx.saved_tensors
        B, H, T, _ = q_BHTC.shape
        dout = torch.zeros(B, H, T, v_BHSU.shape[-1]) if dout is None else contiguous_rows(dout)
        dlse = None if dlse is None else dlse.contiguous()
        grads = empty_grads(q_BHTC, k_BHSC, v_BHSU)
        call = short_call(q_BHTC, k_BHSC, v_BHSU, ctx.scale)
        call.weights, call.dout = weights.data_ptr(), strided(dout)
        call.dlse = address(dlse)
        call.dq, call.dk, call.dv = (strided(x) for x in grads)
        run_short(call, is_backward=True)
        return *grads, None, None


def empty_grads(q_BHTC: Tensor, k_BHSC: Tensor, v_BHSU: Tensor) -> list[Tensor]:
    """Memory for dq, dk and dv; where they have one shape in one block [B, T, 3 H, C], which is
    the gradient of a fused projection."""
    shapes = [x.transpose(1, 2).shape for x in (q_BHTC, k_BHSC, v_BHSU)]
    if shapes[0] == shapes[1] == shapes[2]:
        B, T, H, C = shapes[0]
        parts = torch.empty(B, T, 3 * H, C).split(H, dim=2)
        return [part.transpose(1, 2) for part in parts]
    return [torch.empty(shape).transpose(1, 2) for shape in shapes]


def short_call(q_BHTC: Tensor, k_BHSC: Tensor, v_BHSU: Tensor, scale: float) -> Any:
    """A WeftShortAttention with the fields that forward and backward share."""
    library = native()
    assert library is not None, "short attention needs the compiled library"
    call = library.new("WeftShortAttention*")
    call.q, call.k, call.v = strided(q_BHTC), strided(k_BHSC), strided(v_BHSU)
    call.batch, call.heads, call.queries, call.head_size = q_BHTC.shape
    call.keys, call.value_size = v_BHSU.shape[-2:]
    call.threads, call.scale = torch.get_num_threads(), scale
    return call


def run_short(call: Any, is_backward: bool) -> None:
    library = native()
    assert library is not None, "short attention needs the compiled library"
    check(library.lib.weft_short_attention(call, is_backward))


def strided(x: Tensor) -> tuple[int, ...]:
    """The fields of WeftStridedRows."""
    return x.data_ptr(), *x.stride()[:3]


def contiguous_rows(x: Tensor) -> Tensor:
    """x with contiguous numbers in its last dimension."""
    return x if x.stride(-1) == 1 else x.contiguous()
