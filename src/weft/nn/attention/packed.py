"""Attention over pages for a packed pass: q_1NHC and a PagedView -> out_1NHU, lse_HN.

The paged kernel knows what nearly all models need: causal, a window, all of a source, a bias that
depends on the distance alone. Whatever else a mask or a bias says goes query by query through the
reference kernel, each with exactly the keys that may matter to it. Either way a query's result
depends on its own slot and keys, never on what else is in the pass (engine invariant 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from weft.core.kv_spec import DenseView, PagedView
from weft.nn.attention.base import Mask
from weft.nn.attention.kernels.paged import distance_table, paged_attention
from weft.nn.attention.kernels.reference import reference_attention
from weft.nn.attention.masks.algebra import And
from weft.nn.attention.masks.distance import Causal, Window
from weft.nn.positions.base import Bias


@dataclass(frozen=True)
class Reach:
    """What a query at slot s sees: up to itself (causal) or all, and how far back."""

    is_causal: bool
    window: int | None = None


def attend_pages(
    q_1NHC: Tensor,
    view: PagedView,
    mask: Mask | None,
    bias: Bias | None,
    scale: float,
    *,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(out_1NHU, lse_NH): by the paged kernel where it knows mask and bias, else query by query."""
    reach = reach_of(mask)
    is_known = bias is None or bias.by_distance
    if reach is None or not is_known:
        return one_by_one(q_1NHC, view, mask, bias, scale, softcap)
    out_NHU, lse_NH = paged_attention(
        q_1NHC[0],
        view,
        scale,
        is_causal=reach.is_causal,
        window=reach.window,
        softcap=softcap,
        bias_HM=None if bias is None else by_distance(bias, view, reach.is_causal),
    )
    return out_NHU[None], lse_NH


def reach_of(mask: Mask | None) -> Reach | None:
    """The mask in the paged kernel's words; None where it has none for it."""
    if mask is None:
        return Reach(is_causal=False)
    parts = mask.masks if isinstance(mask, And) else (mask,)
    if not any(isinstance(part, Causal) for part in parts):
        return None
    if not all(isinstance(part, Causal | Window) for part in parts):
        return None
    windows = [part.size for part in parts if isinstance(part, Window)]
    return Reach(is_causal=True, window=min(windows) if windows else None)


def by_distance(bias: Bias, view: PagedView, is_causal: bool) -> Tensor:
    """bias_HM of a bias that depends on the distance alone: up to its largest distance, or to the
    longest sequence of the pass."""
    longest = view.layout.table_BP.shape[1] * view.k_PRKC.shape[1]
    num_distances = longest if bias.max_distance is None else bias.max_distance + 1
    return distance_table(bias, num_distances, is_causal=is_causal)


def one_by_one(
    q_1NHC: Tensor,
    view: PagedView,
    mask: Mask | None,
    bias: Bias | None,
    scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """The reference kernel for each query alone, over its keys up to itself, or to the end where
    the mask may allow later ones."""
    outs, lses = [], []
    layout = view.layout
    offsets, starts = layout.offsets.tolist(), layout.starts_B.tolist()
    for b, length in enumerate(layout.lengths_B.tolist()):
        k_1SKC, v_1SKU = gathered(view, b, length)
        for n in range(offsets[b], offsets[b + 1]):
            slot = starts[b] + n - offsets[b]
            end = slot + 1 if is_causal(mask) else length
            dense = DenseView(k_1SKC[:, :end], v_1SKU[:, :end], slot)
            moved = None if bias is None else bias.for_call(q_1NHC[:, n : n + 1], dense, n)
            out, lse_BHT = reference_attention(
                q_1NHC[:, n : n + 1], dense, mask, moved, scale, softcap=softcap
            )
            outs.append(out)
            lses.append(lse_BHT[:, :, 0])
    return torch.cat(outs, dim=1), torch.cat(lses)


def is_causal(mask: Mask | None) -> bool:
    parts = mask.masks if isinstance(mask, And) else (mask,)
    return any(isinstance(part, Causal) for part in parts)


def gathered(view: PagedView, b: int, length: int) -> tuple[Tensor, Tensor]:
    """Keys and values of one sequence, copied out of their pages: [1, length, ...] each."""
    pages = view.layout.table_BP[b].long()
    k_SKC, v_SKU = (stored[pages].flatten(0, 1)[:length] for stored in (view.k_PRKC, view.v_PRKU))
    return k_SKC[None], v_SKU[None]
