"""Attention of packed queries over pages: q_NHC, PagedView -> out_NHU, lse_NH.

    scores = softcap(q . k * scale) + bias[distance],  masked,  weights = softmax(scores)

A row's bits depend on its query, its slot and its keys: never on how the prompt was cut, on what
else is in the call, on shared pages or on threads. The compiled kernel (native/csrc/attention.cpp)
reads
keys where they lie, in tiles of 32 slots from the left, and reads pages that sequences share once
for all of them (cascade, Ye 2024). Without it, torch takes each query by itself. Both are within
1e-5 of exact arithmetic, but not equal to each other. Forward only.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.core.kv_spec import DenseView, PagedView, PageLayout
from weft.core.shapes import check_shapes
from weft.native.library import Native, native
from weft.native.structs import PagedStruct
from weft.nn.attention.base import Mask
from weft.nn.attention.kernels.reference import reference_attention
from weft.nn.attention.masks.distance import Causal, Window
from weft.nn.positions.base import Bias


@dataclass(frozen=True)
class PagedRule:
    """Who sees whom in a call over pages, and what is done to the scores."""

    scale: float
    is_causal: bool = True
    """A query sees keys up to its own slot; False: all keys of its sequence (cross-attention)."""
    window: int | None = None
    """Only keys nearer than this."""
    softcap: float | None = None
    bias_HM: Tensor | None = None
    """Added to the scores by distance (`distance_table`)."""

    @property
    def zero_distance(self) -> int:
        """Entry of the bias for a query's own slot."""
        return 0 if self.is_causal or self.bias_HM is None else (self.bias_HM.shape[1] - 1) // 2


def paged_attention(
    q_NHC: Tensor,
    view: PagedView,
    scale: float | None = None,
    *,
    is_causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
    bias_HM: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(out_NHU, lse_NH). `scale` None: 1/sqrt(C). A query that sees nothing gets 0 and -inf."""
    check_shapes(q_NHC=q_NHC, k_PRKC=view.k_PRKC, v_PRKU=view.v_PRKU)
    scale = q_NHC.shape[-1] ** -0.5 if scale is None else scale
    rule = PagedRule(scale, is_causal, window, softcap, bias_HM)
    library = native()
    if library is not None and is_plain(q_NHC, view):
        return native_attention(library, q_NHC, view, rule)
    return torch_attention(q_NHC, view, rule)


def is_plain(q_NHC: Tensor, view: PagedView) -> bool:
    """Whether the compiled kernel can take this call: float32 on the CPU, and no gradients."""
    parts = (q_NHC, view.k_PRKC, view.v_PRKU)
    if torch.is_grad_enabled() and any(x.requires_grad for x in parts):
        return False
    return all(x.dtype == torch.float32 and x.device.type == "cpu" for x in parts)


def native_attention(
    library: Native, q_NHC: Tensor, view: PagedView, rule: PagedRule
) -> tuple[Tensor, Tensor]:
    """By the library."""
    (N, H, C), (_, R, K, U) = q_NHC.shape, view.v_PRKU.shape
    layout, k_PRKC, v_PRKU = view.layout, view.k_PRKC, view.v_PRKU
    bias_HM = None if rule.bias_HM is None else rule.bias_HM.contiguous()
    q_NHC = q_NHC if q_NHC.stride(2) == 1 else q_NHC.contiguous()
    assert k_PRKC.stride(3) == v_PRKU.stride(3) == 1, "the numbers of a head must lie together"
    out_NHU, lse_NH = q_NHC.new_empty(N, H, U), q_NHC.new_empty(N, H)
    call = PagedStruct(
        *(q_NHC.data_ptr(), k_PRKC.data_ptr(), v_PRKU.data_ptr()),
        *(None if bias_HM is None else bias_HM.data_ptr(), out_NHU.data_ptr(), lse_NH.data_ptr()),
        *pointers(layout),
        *(*k_PRKC.stride()[:3], *v_PRKU.stride()[:3], *q_NHC.stride()[:2]),
        *(len(layout.lengths_B), layout.table_BP.shape[1], H, K, C, U, R),
        *(rule.is_causal, rule.window or 0, 0 if bias_HM is None else bias_HM.shape[1]),
        *(rule.zero_distance, torch.get_num_threads(), rule.scale, rule.softcap or 0.0),
    )
    library.paged_attention(ctypes.addressof(call))
    return out_NHU, lse_NH


def pointers(layout: PageLayout) -> tuple[int, ...]:
    """Addresses of the layout's tensors and of `order`, which are found once per layout."""
    known: tuple[tuple[int, ...], list[Tensor]] | None = layout.__dict__.get("_pointers")
    if known is None:
        parts = (layout.offsets, layout.starts_B, layout.lengths_B, layout.table_BP)
        kept = [part.int().contiguous() for part in (*parts, order(layout.table_BP))]
        known = tuple(part.data_ptr() for part in kept), kept
        layout.__dict__["_pointers"] = known
    return known[0]


def order(table_BP: Tensor) -> Tensor:
    """The sequences in an order that brings those with the same first pages together."""
    rows = table_BP.tolist()
    return torch.tensor(sorted(range(len(rows)), key=rows.__getitem__), dtype=torch.int32)


def torch_attention(q_NHC: Tensor, view: PagedView, rule: PagedRule) -> tuple[Tensor, Tensor]:
    """By torch: on a CPU each query by itself, so that its sizes depend on its own slot alone; on
    other devices all new tokens of a sequence at once, where the last bits may depend on them."""
    N, H, _ = q_NHC.shape
    out_NHU = q_NHC.new_zeros(N, H, view.v_PRKU.shape[3])
    lse_NH = q_NHC.new_full((N, H), -torch.inf, dtype=torch.promote_types(q_NHC.dtype, torch.float))
    step = 1 if q_NHC.device.type == "cpu" else N
    begins = view.layout.offsets.tolist()
    for b, (start, length) in enumerate(
        zip(view.layout.starts_B.tolist(), view.layout.lengths_B.tolist(), strict=True)
    ):
        for n in range(begins[b], begins[b + 1], max(step, 1)):
            some = slice(n, min(n + step, begins[b + 1]))
            slot = start + n - begins[b]
            seen = min(length, slot + some.stop - n) if rule.is_causal else length
            if seen > 0:
                dense = gathered(view, b, seen, slot)
                out_NHU[some], lse_NH[some] = attend_some(q_NHC[some], dense, rule)
    return out_NHU, lse_NH


def gathered(view: PagedView, b: int, length: int, start: int) -> DenseView:
    """The first keys and values of a sequence as plain tensors. What lies in page 0 is no key."""
    slots_S = torch.arange(length, device=view.k_PRKC.device)
    R = view.k_PRKC.shape[1]
    pages_S = view.layout.table_BP[b].to(slots_S.device)[slots_S // R].long()
    is_page = (pages_S != 0)[:, None, None]
    k_SKC, v_SKU = (
        torch.where(is_page, x[pages_S, slots_S % R], 0) for x in (view.k_PRKC, view.v_PRKU)
    )
    return DenseView(k_SKC[None], v_SKU[None], start)


def attend_some(q_THC: Tensor, dense: DenseView, rule: PagedRule) -> tuple[Tensor, Tensor]:
    """(out_THU, lse_TH) of a few neighbouring queries of one sequence."""
    mask: Mask | None = Causal() if rule.is_causal else None
    if rule.window is not None:
        mask = Window(rule.window) & Causal() if rule.is_causal else Window(rule.window)
    bias = None if rule.bias_HM is None else TableBias(rule.bias_HM, rule.zero_distance)
    out_BTHU, lse_BHT = reference_attention(
        q_THC[None], dense, mask, bias, rule.scale, softcap=rule.softcap
    )
    return out_BTHU[0], lse_BHT[0].T


@dataclass(frozen=True)
class TableBias(Bias):
    """A bias that is looked up by distance; distances beyond the table have its last entry."""

    bias_HM: Tensor
    zero: int

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.bias_HM,)

    def at(self, t_T: Tensor, q_BT: Tensor, k_S: Tensor, *tensors: Tensor) -> Tensor:
        (bias_HM,) = tensors or self.tensors()
        distance_BTS = q_BT[:, :, None] - k_S + self.zero
        return bias_HM[:, distance_BTS.clamp(0, bias_HM.shape[1] - 1)].transpose(0, 1)


def distance_table(bias: Bias, reach: int, *, is_causal: bool = True) -> Tensor:
    """bias_HM of a bias that asks for the distance alone (T5's buckets, ALiBi): entry d is for the
    key d slots before the query, up to d = reach - 1; not causal: from the key reach - 1 after it
    to the key reach - 1 before it."""
    # one query with `reach - 1` keys before it, and as many behind it where those are seen
    num = reach if is_causal else 2 * reach - 1
    device = next(iter(bias.tensors()), torch.empty(0)).device
    k_S = torch.arange(num, device=device)
    bias_BHTS = bias.at(k_S[:1], k_S[None, reach - 1 : reach], k_S, *bias.tensors())
    return bias_BHTS[0, :, 0].float().flip(-1).contiguous()
