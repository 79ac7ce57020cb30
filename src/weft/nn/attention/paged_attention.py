"""Variable-length attention over the pages of a KV cache: q_1NHC, PagedView -> out_1NHU, lse_NH.

    scores = softcap(q . k * scale) + bias[distance],  masked,  weights = softmax(scores)

`paged_attention` supports what nearly all models need: causal, a sliding window, all keys of a
source, a bias by distance. The compiled kernel (native/csrc/attention.cpp) reads keys from their
pages, in tiles of 32 slots from the left, and reads pages that sequences share once for all of them
(cascade, Ye 2024). Every other mask is passed to it as a matrix (`attend_masked`). Without the
library, and for a bias that the kernel does not know, torch computes each query by itself. Both are
within 1e-5 of exact arithmetic, but not equal to each other. Forward only.

Batch-invariant: the result of a query depends on the query, its slot and its keys, not on how the
prompt was cut into chunks, on the other sequences of the pass, on shared pages, on threads or on
where in memory the query is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from weft.core.kv_spec import DenseView, PagedView, PageLayout
from weft.core.shapes import check_shapes
from weft.native import attention_kernels
from weft.native.attention_kernels import PagedAttentionParams
from weft.nn.attention.base import AttentionCall, Mask
from weft.nn.attention.kernels.reference import query_attention, reference_attention
from weft.nn.attention.masks.algebra import MaskBase, conjuncts
from weft.nn.attention.masks.dense import additive, cached_on_mask
from weft.nn.attention.masks.kinds import Causal, Window
from weft.nn.positions.base import Bias

MAX_MASK_NUMBERS = 2**22
"""Elements of a mask that is passed to the kernel as a matrix; longer passes are divided."""


@dataclass(frozen=True)
class MaskSpan:
    """A mask that the paged kernel supports: keys up to the query (causal) or all, in a window."""

    is_causal: bool
    window: int | None = None


def attend_pages(call: AttentionCall[PagedView]) -> tuple[Tensor, Tensor]:
    """(out_1NHU, lse_NH): by the paged kernel if it supports mask and bias, else query by query."""
    span, bias, view = mask_span(call.mask), call.bias, call.kv
    check_shapes(q_BNHC=call.q_BTHC, k_PRKC=view.k_PRKC, v_PRKU=view.v_PRKU, B=1)
    if span is None or (bias is not None and not bias.by_distance):
        return attend_masked(call, span) or attend_each_query(call)
    bias_HM = None if bias is None else bias_table(bias, view, span.is_causal)
    params = PagedAttentionParams(
        call.softmax_scale, span.is_causal, span.window, call.softcap, bias_HM
    )
    out_NHU, lse_NH = paged_attention(call.q_BTHC[0], view, params)
    return out_NHU[None], lse_NH


def mask_span(mask: Mask | None) -> MaskSpan | None:
    """The mask as the paged kernel's parameters; None if it does not support the mask."""
    if mask is None:
        return MaskSpan(is_causal=False)
    if not isinstance(mask, MaskBase) or not is_causal(mask):
        return None
    parts = conjuncts(mask)
    if not all(isinstance(part, Causal | Window) for part in parts):
        return None
    windows = [part.size for part in parts if isinstance(part, Window)]
    return MaskSpan(is_causal=True, window=min(windows) if windows else None)


def is_causal(mask: Mask | None) -> bool:
    """Whether a mask is a conjunction with Causal."""
    parts = conjuncts(mask) if isinstance(mask, MaskBase) else ()
    return any(isinstance(part, Causal) for part in parts)


def bias_table(bias: Bias, view: PagedView, is_causal: bool) -> Tensor:
    """bias_HM of a bias by distance: up to its largest distance, or to the longest sequence."""
    longest = view.layout.table_BP.shape[1] * view.k_PRKC.shape[1]
    num_distances = longest if bias.max_distance is None else bias.max_distance + 1
    return distance_table(bias, num_distances, is_causal=is_causal)


def distance_table(bias: Bias, num_distances: int, *, is_causal: bool = True) -> Tensor:
    """bias_HM of a bias by distance: entry d is for the key d slots before the query, d = 0 ..
    num_distances - 1; not causal: from the key num_distances - 1 after the query to the key
    num_distances - 1 before it."""
    # one query with `num_distances - 1` keys before it, and as many after it if not causal
    num = num_distances if is_causal else 2 * num_distances - 1
    device = next(iter(bias.tensors()), torch.empty(0)).device
    k_S = torch.arange(num, device=device)
    q_BT = k_S[None, num_distances - 1 : num_distances]
    bias_BHTS = bias.at(k_S[:1], q_BT, k_S, *bias.tensors())
    return bias_BHTS[0, :, 0].float().flip(-1).contiguous()


def attend_masked(
    call: AttentionCall[PagedView], span: MaskSpan | None
) -> tuple[Tensor, Tensor] | None:
    """By the compiled kernel, with a matrix for a mask that is no span, and with the bias of each
    query. None: there is no library, or it does not know the bias."""
    view, params = call.kv, masked_params(call, span)
    if params is None or not attention_kernels.can_compile_pages(call.q_BTHC, view):
        return None
    blocks: Iterable[MaskBlock] = [(slice(0, call.q_BTHC.shape[1]), view.layout, None)]
    if span is None:
        assert call.mask is not None, "without a mask the span is all keys"
        blocks = mask_blocks(call.mask, view.layout)
    results = [attend_block(call, params, *block) for block in blocks]
    outs, lses = zip(*results, strict=True)
    return torch.cat(outs)[None], torch.cat(lses)


def masked_params(
    call: AttentionCall[PagedView], span: MaskSpan | None
) -> PagedAttentionParams | None:
    """Without the mask; None for a bias that the kernel does not know."""
    bias, is_cut = call.bias, is_causal(call.mask)
    bias_HM = None
    if bias is not None:
        is_table = bias.by_distance
        bias_HM = bias_table(bias, call.kv, is_cut) if is_table else bias.query_table()
        if bias_HM is None:
            return None
    window = None if span is None else span.window
    return PagedAttentionParams(call.softmax_scale, is_cut, window, call.softcap, bias_HM)


def attend_block(
    call: AttentionCall[PagedView],
    params: PagedAttentionParams,
    queries: slice,
    layout: PageLayout,
    mask_NS: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """(out_NHU, lse_NH) of some of the queries."""
    bias_HM = params.bias_HM
    if bias_HM is not None and bias_HM.dim() == 3:
        bias_HM = bias_HM[queries]
    params = replace(params, bias_HM=bias_HM, mask_NS=mask_NS)
    view = replace(call.kv, layout=layout)
    result = attention_kernels.paged_attention(call.q_BTHC[0, queries], view, params)
    assert result is not None, "the compiled kernel has rejected a call that it can compute"
    return result


MaskBlock = tuple[slice, PageLayout, Tensor | None]
"""Queries of a pass, their layout, and their rows of the mask, mask_NS."""


def mask_blocks(mask: Mask, layout: PageLayout) -> Iterable[MaskBlock]:
    """The mask of all queries. In one block, it is made once for all layers that share mask and
    layout; more blocks are made one at a time."""
    num_slots = attention_kernels.masked_slots(int(layout.lengths_B.max()))
    size, num_queries = max(1, MAX_MASK_NUMBERS // num_slots), int(layout.offsets[-1])
    if num_queries > size:
        parts = (slice(i, min(i + size, num_queries)) for i in range(0, num_queries, size))
        return (mask_block(mask, layout, queries, num_slots) for queries in parts)
    # the layout is part of the value: while it lives, no other one has its id
    key, queries = ("block", id(layout)), slice(0, num_queries)
    return [cached_on_mask(mask, key, lambda: mask_block(mask, layout, queries, num_slots))]


def mask_block(mask: Mask, layout: PageLayout, queries: slice, num_slots: int) -> MaskBlock:
    first_B = layout.starts_B - layout.offsets[:-1]
    slot_N = torch.arange(int(layout.offsets[-1]))
    slot_N = (slot_N + first_B.repeat_interleave(layout.offsets.diff()))[queries]
    b = torch.zeros((), dtype=torch.long)
    allowed_NS = mask.allows(b, slot_N[:, None], torch.arange(num_slots))
    mask_NS = additive(allowed_NS.expand(len(slot_N), num_slots), torch.float32)
    return queries, layout_of(layout, queries), mask_NS


def layout_of(layout: PageLayout, queries: slice) -> PageLayout:
    """The layout of some of the queries; sequences without any of them keep their place."""
    begin, end = queries.start, queries.stop
    if (begin, end) == (0, int(layout.offsets[-1])):
        return layout
    offsets = layout.offsets.clamp(begin, end) - begin
    starts_B = layout.starts_B + (begin - layout.offsets[:-1]).clamp(min=0)
    return replace(layout, offsets=offsets, starts_B=starts_B)


def attend_each_query(call: AttentionCall[PagedView]) -> tuple[Tensor, Tensor]:
    """The reference kernel for each query by itself, over the keys up to its own slot, or over all
    keys if the mask is not causal."""
    q_1NHC, view, layout = call.q_BTHC, call.kv, call.kv.layout
    outs, lses, is_cut = [], [], is_causal(call.mask)
    offsets, starts = layout.offsets.tolist(), layout.starts_B.tolist()
    for b, length in enumerate(layout.lengths_B.tolist()):
        kv = gather_sequence(view, b, length)
        for n in range(offsets[b], offsets[b + 1]):
            slot = starts[b] + n - offsets[b]
            end = slot + 1 if is_cut else length
            dense = DenseView(kv.k_BSKC[:, :end], kv.v_BSKU[:, :end], slot)
            # a copy: a bias may multiply by it, and products depend on its alignment
            q_1THC = q_1NHC[:, n : n + 1].clone(memory_format=torch.contiguous_format)
            bias = None if call.bias is None else call.bias.for_call(q_1THC, dense, n)
            out_1THU, lse_1HT = query_attention(
                AttentionCall(q_1THC, dense, call.mask, bias, call.softmax_scale, call.softcap)
            )
            outs.append(out_1THU)
            lses.append(lse_1HT[:, :, 0])
    return torch.cat(outs, dim=1), torch.cat(lses)


def gather_sequence(view: PagedView, b: int, length: int, start: int = 0) -> DenseView:
    """The first `length` keys and values of a sequence, copied out of their pages; zeros for slots
    without a page."""
    R = view.k_PRKC.shape[1]
    pages_P = view.layout.table_BP[b, : -(-length // R)].long().to(view.k_PRKC.device)
    is_page = (pages_P != 0)[:, None, None, None]
    k_SKC, v_SKU = (
        torch.where(is_page, x_PRKC[pages_P], 0).flatten(0, 1)[:length]
        for x_PRKC in (view.k_PRKC, view.v_PRKU)
    )
    return DenseView(k_SKC[None], v_SKU[None], start)


def paged_attention(
    q_NHC: Tensor, view: PagedView, params: PagedAttentionParams
) -> tuple[Tensor, Tensor]:
    """(out_NHU, lse_NH). A query without any allowed key gets 0 and -inf."""
    check_shapes(q_NHC=q_NHC, k_PRKC=view.k_PRKC, v_PRKU=view.v_PRKU)
    compiled = attention_kernels.paged_attention(q_NHC, view, params)
    return torch_attention(q_NHC, view, params) if compiled is None else compiled


def torch_attention(
    q_NHC: Tensor, view: PagedView, params: PagedAttentionParams
) -> tuple[Tensor, Tensor]:
    """By torch: on a CPU each query by itself, so that sizes depend on its own slot alone; on other
    devices all new tokens of a sequence at once, where the last bits may depend on the others."""
    N, H, _ = q_NHC.shape
    out_NHU = q_NHC.new_zeros(N, H, view.v_PRKU.shape[3])
    lse_NH = q_NHC.new_full((N, H), -torch.inf, dtype=torch.promote_types(q_NHC.dtype, torch.float))
    step = 1 if q_NHC.device.type == "cpu" else N
    offsets = view.layout.offsets.tolist()
    for b, (start, length) in enumerate(
        zip(view.layout.starts_B.tolist(), view.layout.lengths_B.tolist(), strict=True)
    ):
        for n in range(offsets[b], offsets[b + 1], max(step, 1)):
            queries = slice(n, min(n + step, offsets[b + 1]))
            slot = start + n - offsets[b]
            num_keys = min(length, slot + queries.stop - n) if params.is_causal else length
            if num_keys > 0:
                dense = gather_sequence(view, b, num_keys, slot)
                out_NHU[queries], lse_NH[queries] = attend_dense(q_NHC[queries], dense, params)
    return out_NHU, lse_NH


def attend_dense(
    q_THC: Tensor, dense: DenseView, params: PagedAttentionParams
) -> tuple[Tensor, Tensor]:
    """(out_THU, lse_TH) of neighboring queries of one sequence."""
    mask: Mask | None = Causal() if params.is_causal else None
    if params.window is not None:
        mask = Window(params.window) & Causal() if params.is_causal else Window(params.window)
    bias = None if params.bias_HM is None else TableBias(params.bias_HM, params.zero_distance)
    attend = query_attention if len(q_THC) == 1 else reference_attention
    call = AttentionCall(q_THC[None], dense, mask, bias, params.scale, params.softcap)
    out_BTHU, lse_BHT = attend(call)
    return out_BTHU[0], lse_BHT[0].T


@dataclass(frozen=True)
class TableBias(Bias):
    """A bias from a table by distance; larger distances have the value of the last entry."""

    bias_HM: Tensor
    zero: int
    by_distance = True

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.bias_HM,)

    def at(self, t_T: Tensor, q_BT: Tensor, k_S: Tensor, *tensors: Tensor) -> Tensor:
        (bias_HM,) = tensors or self.tensors()
        distance_BTS = q_BT[:, :, None] - k_S + self.zero
        return bias_HM[:, distance_BTS.clamp(0, bias_HM.shape[1] - 1)].transpose(0, 1)
