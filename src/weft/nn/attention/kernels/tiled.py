"""Exact tiled attention with a running softmax, for any bias, softcap and mask, in plain torch.

    for each tile of queries:   m, total, out = -inf, 0, 0
        for each tile of keys:  m' = max(m, max s);   p = exp(s - m')
                                out = out e^(m - m') + p v;   total = total e^(m - m') + sum p
        out / total,   lse = m + log total

The algorithm of FlashAttention-2 (Dao 2023), with the loops in Python and large tiles. Only tile
scores are ever stored. Differs from the paper: tiles that the mask rules out are skipped by its
bounds, and the way back makes the scores again under autograd, so that a bias gets its gradients
whatever it is made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from weft.core.kv_spec import KVView
from weft.nn.attention.base import Mask
from weft.nn.attention.kernels.reference import raw_scores
from weft.nn.attention.masks.dense import Grid
from weft.nn.positions.base import Bias

TILE = 512
"""Queries and keys in a tile: large, since each costs a dozen calls from Python."""


class Tile(NamedTuple):
    """A rectangle of scores: queries t_lo..t_hi and keys s_lo..s_hi, ends excluded."""

    t: slice
    s: slice
    is_sure: bool
    """True: the mask allows every pair."""


class Recipe(NamedTuple):
    """How scores are made, besides from tensors that need gradients."""

    grid: Grid
    mask: Mask | None
    bias: Bias | None
    scale: float | None
    softcap: float | None


def tiled_attention(
    q_BTHC: Tensor,
    view: KVView,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    *,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(out_BTHU, lse_BHT) like the other kernels, without dropout."""
    recipe = Recipe(Grid.of(q_BTHC, view), mask, bias, scale, softcap)
    tensors = () if bias is None else bias.tensors()
    out_BTHU, lse_BHT = TiledAttention.apply(recipe, q_BTHC, view.k_BSKC, view.v_BSKU, *tensors)
    return out_BTHU, lse_BHT


class TiledAttention(torch.autograd.Function):
    """Keeps q, k, v, out and lse; makes tile scores twice."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        recipe: Recipe,
        q_BTHC: Tensor,
        k_BSKC: Tensor,
        v_BSKU: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(q_BTHC.dtype, torch.float32)
        B, T, H, _ = q_BTHC.shape
        out_BTHU = q_BTHC.new_zeros(B, T, H, v_BSKU.shape[-1], dtype=wide)
        peak_BHT = q_BTHC.new_full((B, H, T), -torch.inf, dtype=wide)
        total_BHT = torch.zeros_like(peak_BHT)
        for tile in tiles(recipe):
            t, s = tile.t, tile.s
            scores = tile_scores(recipe, tile, q_BTHC[:, t], k_BSKC[:, s], *tensors)
            state = out_BTHU[:, t], peak_BHT[..., t], total_BHT[..., t]
            fold_in(scores, v_BSKU[:, s].to(wide), *state)
        out_BTHU /= per_query(total_BHT.masked_fill(total_BHT == 0, 1.0))
        lse_BHT = peak_BHT + total_BHT.log()
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q_BTHC, k_BSKC, v_BSKU, out_BTHU, lse_BHT, *tensors)
        ctx.recipe = recipe  # type: ignore[attr-defined]
        return out_BTHU.to(q_BTHC.dtype), lse_BHT

    @staticmethod
    def backward(ctx: Any, dout_BTHU: Tensor | None, dlse_BHT: Tensor | None) -> tuple[Any, ...]:
        q_BTHC, k_BSKC, v_BSKU, out_BTHU, lse_BHT, *tensors = ctx.saved_tensors
        back = Back.of(dout_BTHU, dlse_BHT, out_BTHU, lse_BHT)
        wide = out_BTHU.dtype
        dq, dk, dv = (torch.zeros_like(x, dtype=wide) for x in (q_BTHC, k_BSKC, v_BSKU))
        needed = ctx.needs_input_grad[4:]
        extra = [
            torch.zeros_like(x) if need else None for x, need in zip(tensors, needed, strict=True)
        ]
        for tile in tiles(ctx.recipe):
            t, s = tile.t, tile.s
            leaves = [x.detach() for x in (q_BTHC[:, t], k_BSKC[:, s], *tensors)]
            sums = [dq[:, t], dk[:, s], *extra]
            add_gradients(ctx.recipe, tile, back, leaves, sums, v_BSKU[:, s], dv[:, s])
        return None, dq.to(q_BTHC.dtype), dk.to(k_BSKC.dtype), dv.to(v_BSKU.dtype), *extra


class Back(NamedTuple):
    """What the way back knows of every query."""

    dout_BTHU: Tensor
    lse_BHT: Tensor
    """+inf for a query without keys, so that its weights are 0."""
    shift_BHT: Tensor
    """dlse - delta of ds = p (dp - delta + dlse)."""

    @staticmethod
    def of(dout: Tensor | None, dlse: Tensor | None, out_BTHU: Tensor, lse_BHT: Tensor) -> Back:
        dout = torch.zeros_like(out_BTHU) if dout is None else dout.to(out_BTHU.dtype)
        shift_BHT = -(dout * out_BTHU).sum(dim=-1).transpose(1, 2)
        shift_BHT = shift_BHT if dlse is None else shift_BHT + dlse
        return Back(dout, lse_BHT.masked_fill(lse_BHT == -torch.inf, torch.inf), shift_BHT)


def tiles(recipe: Recipe) -> Iterator[Tile]:
    """The tiles with work, queries in the outer loop."""
    grid = recipe.grid
    t_ends, s_ends = ([range(n)[i : i + TILE] for i in range(0, n, TILE)] for n in (grid.T, grid.S))
    maybe, surely = tile_bounds(recipe.mask, grid, t_ends, s_ends)
    for i, t in enumerate(t_ends):
        for j, s in enumerate(s_ends):
            if maybe[i][j]:
                yield Tile(slice(t[0], t[-1] + 1), slice(s[0], s[-1] + 1), surely[i][j])


def tile_bounds(
    mask: Mask | None, grid: Grid, t_ends: list[range], s_ends: list[range]
) -> tuple[list[list[bool]], list[list[bool]]]:
    """(maybe, surely) for each tile, over all rows of the batch."""
    if mask is None:
        everywhere = [[True] * len(s_ends)] * len(t_ends)
        return everywhere, everywhere
    t = torch.tensor([(t[0] + grid.first_start, t[-1] + grid.last_start) for t in t_ends])
    s = torch.tensor([(s[0], s[-1]) for s in s_ends])
    ends = [x.to(grid.device) for x in (t[:, :1], t[:, 1:], s[:, 0], s[:, 1])]
    maybe, surely = mask.bounds(*ends)
    return maybe.any(dim=0).tolist(), surely.all(dim=0).tolist()


def tile_scores(
    recipe: Recipe, tile: Tile, q_BTHC: Tensor, k_BSKC: Tensor, *tensors: Tensor
) -> Tensor:
    """scores_BHTS of one tile, -inf where the mask forbids."""
    grid, device = recipe.grid, q_BTHC.device
    scores_BHTS = raw_scores(q_BTHC, k_BSKC, recipe.scale, recipe.softcap)
    q_BT, k_S = grid.q_BT[:, tile.t], torch.arange(tile.s.start, tile.s.stop, device=device)
    if recipe.bias is not None:
        t_T = torch.arange(tile.t.start, tile.t.stop, device=device)
        scores_BHTS = scores_BHTS + recipe.bias.at(t_T, q_BT, k_S, *tensors)
    if recipe.mask is None or tile.is_sure:
        return scores_BHTS
    b = torch.arange(grid.B, device=device)[:, None, None]
    allowed_BTS = recipe.mask.allows(b, q_BT[:, :, None], k_S)
    return scores_BHTS.masked_fill(~allowed_BTS[:, None], -torch.inf)


def fold_in(
    scores_BHTS: Tensor, v_BSKU: Tensor, out_BTHU: Tensor, peak_BHT: Tensor, total_BHT: Tensor
) -> None:
    """Add a tile of keys to the running sums of its queries, in place."""
    new_BHT = torch.maximum(peak_BHT, scores_BHTS.amax(dim=-1))
    safe_BHT = new_BHT.masked_fill(new_BHT == -torch.inf, 0.0)  # -inf - -inf is not a number
    p_BHTS = (scores_BHTS - safe_BHT[..., None]).exp_()
    shrink_BHT = (peak_BHT - safe_BHT).exp()
    total_BHT.mul_(shrink_BHT).add_(p_BHTS.sum(dim=-1))
    out_BTHU.mul_(per_query(shrink_BHT)).add_(weighted(p_BHTS, v_BSKU))
    peak_BHT.copy_(new_BHT)


def add_gradients(
    recipe: Recipe,
    tile: Tile,
    back: Back,
    leaves: list[Tensor],
    sums: list[Tensor | None],
    v_BSKU: Tensor,
    dv_BSKU: Tensor,
) -> None:
    """Add one tile's gradients of `leaves` (q, k and the bias's tensors) to `sums`, and that of
    v."""
    t, K = tile.t, v_BSKU.shape[2]
    wanted = [
        (x.requires_grad_(), total)
        for x, total in zip(leaves, sums, strict=True)
        if total is not None
    ]
    with torch.enable_grad():
        scores_BHTS = tile_scores(recipe, tile, *leaves)
    p_BHTS = (scores_BHTS.detach() - back.lse_BHT[..., t, None]).exp_()
    dout_BTKGU = back.dout_BTHU[:, t].unflatten(2, (K, -1))
    dv_BSKU += torch.einsum("bkgts,btkgu->bsku", p_BHTS.unflatten(1, (K, -1)), dout_BTKGU)
    dp_BKGTS = torch.einsum("btkgu,bsku->bkgts", dout_BTKGU, v_BSKU.to(dout_BTKGU.dtype))
    ds_BHTS = p_BHTS.mul_(dp_BKGTS.flatten(1, 2).add_(back.shift_BHT[..., t, None]))
    found = torch.autograd.grad(scores_BHTS, [x for x, _ in wanted], ds_BHTS, allow_unused=True)
    for (_, total), grad in zip(wanted, found, strict=True):
        if grad is not None:
            total += grad


def weighted(p_BHTS: Tensor, v_BSKU: Tensor) -> Tensor:
    """Weights times values: [B, T, H, U]."""
    p_BKGTS = p_BHTS.unflatten(1, (v_BSKU.shape[2], -1))
    return torch.einsum("bkgts,bsku->btkgu", p_BKGTS, v_BSKU).flatten(2, 3)


def per_query(x_BHT: Tensor) -> Tensor:
    """One number for each query and head, beside its output: [B, T, H, 1]."""
    return x_BHT.transpose(1, 2)[..., None]
