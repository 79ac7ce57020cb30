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

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.core.kv_spec import DenseView, PagedView
from weft.core.shapes import check_shapes
from weft.native import attention_kernels
from weft.native.attention_kernels import PagedAttentionParams
from weft.nn.attention.base import Mask
from weft.nn.attention.kernels.reference import reference_attention
from weft.nn.attention.masks.distance import Causal, Window
from weft.nn.positions.base import Bias


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
    params = PagedAttentionParams(scale, is_causal, window, softcap, bias_HM)
    compiled = attention_kernels.paged_attention(q_NHC, view, params)
    return torch_attention(q_NHC, view, params) if compiled is None else compiled


def torch_attention(
    q_NHC: Tensor, view: PagedView, params: PagedAttentionParams
) -> tuple[Tensor, Tensor]:
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
            seen = min(length, slot + some.stop - n) if params.is_causal else length
            if seen > 0:
                dense = gathered(view, b, seen, slot)
                out_NHU[some], lse_NH[some] = attend_some(q_NHC[some], dense, params)
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


def attend_some(
    q_THC: Tensor, dense: DenseView, params: PagedAttentionParams
) -> tuple[Tensor, Tensor]:
    """(out_THU, lse_TH) of a few neighbouring queries of one sequence."""
    mask: Mask | None = Causal() if params.is_causal else None
    if params.window is not None:
        mask = Window(params.window) & Causal() if params.is_causal else Window(params.window)
    bias = None if params.bias_HM is None else TableBias(params.bias_HM, params.zero_distance)
    out_BTHU, lse_BHT = reference_attention(
        q_THC[None], dense, mask, bias, params.scale, softcap=params.softcap
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
