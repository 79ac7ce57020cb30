"""Exact attention by online softmax over tiles, for any bias, softcap and mask, in plain torch.

    for each tile of queries:   m, total, out = -inf, 0, 0
        for each tile of keys:  m' = max(m, max s);   p = exp(s - m')
                                out = out e^(m - m') + p v;   total = total e^(m - m') + sum p
        out / total,   lse = m + log total

The algorithm of FlashAttention-2 (Dao 2023), with the loops in Python and large tiles. Only the
scores of one tile are stored. Differs from the paper: tiles that the mask leaves empty are skipped,
and the backward pass recomputes the scores under autograd, so that any bias gets its gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from weft.core.shapes import check_shapes
from weft.nn.attention.base import DenseCall, Mask
from weft.nn.attention.kernels.reference import raw_scores
from weft.nn.attention.masks.dense import Grid
from weft.nn.positions.base import Bias

TILE = 512
"""Queries and keys in a tile: large, because each tile costs a dozen calls from Python."""


class Tile(NamedTuple):
    """A tile of scores: queries t and keys s."""

    t: slice
    s: slice
    is_full: bool
    """True: the mask allows every pair."""


class TileParams(NamedTuple):
    """What scores depend on besides tensors that need gradients."""

    grid: Grid
    mask: Mask | None
    bias: Bias | None
    scale: float
    softcap: float | None


def tiled_attention(call: DenseCall) -> tuple[Tensor, Tensor]:
    """(out_BTHU, lse_BHT); the contract is `Kernel` in attention/base.py, without dropout."""
    q_BTHC, kv, bias = call.q_BTHC, call.kv, call.bias
    check_shapes(q_BTHC=q_BTHC, k_BSKC=kv.k_BSKC, v_BSKU=kv.v_BSKU)
    grid = Grid.of(q_BTHC, kv)
    params = TileParams(grid, call.mask, bias, call.softmax_scale, call.softcap)
    tensors = () if bias is None else bias.tensors()
    out_BTHU, lse_BHT = TiledAttention.apply(params, q_BTHC, kv.k_BSKC, kv.v_BSKU, *tensors)
    return out_BTHU, lse_BHT


class TiledAttention(torch.autograd.Function):
    """Saves q, k, v, out and lse; computes the scores of a tile twice."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        params: TileParams,
        q_BTHC: Tensor,
        k_BSKC: Tensor,
        v_BSKU: Tensor,
        *tensors: Tensor,
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.promote_types(q_BTHC.dtype, torch.float32)
        B, T, H, _ = q_BTHC.shape
        out_BTHU = q_BTHC.new_zeros(B, T, H, v_BSKU.shape[-1], dtype=dtype)
        max_BHT = q_BTHC.new_full((B, H, T), -torch.inf, dtype=dtype)
        total_BHT = torch.zeros_like(max_BHT)
        for tile in tiles(params):
            t, s = tile.t, tile.s
            scores = tile_scores(params, tile, q_BTHC[:, t], k_BSKC[:, s], *tensors)
            state = out_BTHU[:, t], max_BHT[..., t], total_BHT[..., t]
            online_softmax_update(scores, v_BSKU[:, s].to(dtype), *state)
        out_BTHU /= per_query(total_BHT.masked_fill(total_BHT == 0, 1.0))
        lse_BHT = max_BHT + total_BHT.log()
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q_BTHC, k_BSKC, v_BSKU, out_BTHU, lse_BHT, *tensors)
        ctx.params = params  # type: ignore[attr-defined]
        return out_BTHU.to(q_BTHC.dtype), lse_BHT

    @staticmethod
    def backward(
        ctx: Any, dout_BTHU: Tensor | None, dlse_BHT: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        q_BTHC, k_BSKC, v_BSKU, out_BTHU, lse_BHT, *tensors = ctx.saved_tensors
        grads_in = TileGradients.of(dout_BTHU, dlse_BHT, out_BTHU, lse_BHT)
        dtype = out_BTHU.dtype
        dq, dk, dv = (torch.zeros_like(x, dtype=dtype) for x in (q_BTHC, k_BSKC, v_BSKU))
        needed = ctx.needs_input_grad[4:]
        extra = [
            torch.zeros_like(x) if need else None for x, need in zip(tensors, needed, strict=True)
        ]
        for tile in tiles(ctx.params):
            t, s = tile.t, tile.s
            leaves = [x.detach() for x in (q_BTHC[:, t], k_BSKC[:, s], *tensors)]
            sums = [dq[:, t], dk[:, s], *extra]
            add_gradients(ctx.params, tile, grads_in, leaves, sums, v_BSKU[:, s], dv[:, s])
        return None, dq.to(q_BTHC.dtype), dk.to(k_BSKC.dtype), dv.to(v_BSKU.dtype), *extra


class TileGradients(NamedTuple):
    """What the backward pass needs of every query."""

    dout_BTHU: Tensor
    lse_BHT: Tensor
    """+inf for a query without keys, so that its weights are 0."""
    shift_BHT: Tensor
    """dlse - delta of ds = p (dp - delta + dlse)."""

    @staticmethod
    def of(
        dout: Tensor | None, dlse: Tensor | None, out_BTHU: Tensor, lse_BHT: Tensor
    ) -> TileGradients:
        dout = torch.zeros_like(out_BTHU) if dout is None else dout.to(out_BTHU.dtype)
        shift_BHT = -(dout * out_BTHU).sum(dim=-1).transpose(1, 2)
        shift_BHT = shift_BHT if dlse is None else shift_BHT + dlse
        return TileGradients(dout, lse_BHT.masked_fill(lse_BHT == -torch.inf, torch.inf), shift_BHT)


def tiles(params: TileParams) -> Iterator[Tile]:
    """The nonempty tiles, queries in the outer loop."""
    grid = params.grid
    t_ends, s_ends = ([range(n)[i : i + TILE] for i in range(0, n, TILE)] for n in (grid.T, grid.S))
    nonempty, full = tile_bounds(params.mask, grid, t_ends, s_ends)
    for i, t in enumerate(t_ends):
        for j, s in enumerate(s_ends):
            if nonempty[i][j]:
                yield Tile(slice(t[0], t[-1] + 1), slice(s[0], s[-1] + 1), full[i][j])


def tile_bounds(
    mask: Mask | None, grid: Grid, t_ends: list[range], s_ends: list[range]
) -> tuple[list[list[bool]], list[list[bool]]]:
    """(nonempty, full) for each tile, over all rows of the batch."""
    if mask is None:
        all_true = [[True] * len(s_ends)] * len(t_ends)
        return all_true, all_true
    t = torch.tensor([(t[0] + grid.first_start, t[-1] + grid.last_start) for t in t_ends])
    s = torch.tensor([(s[0], s[-1]) for s in s_ends])
    ends = [x.to(grid.device) for x in (t[:, :1], t[:, 1:], s[:, 0], s[:, 1])]
    nonempty, full = mask.bounds(*ends)
    return nonempty.any(dim=0).tolist(), full.all(dim=0).tolist()


def tile_scores(
    params: TileParams, tile: Tile, q_BTHC: Tensor, k_BSKC: Tensor, *tensors: Tensor
) -> Tensor:
    """scores_BHTS of one tile, -inf where the mask forbids."""
    grid, device = params.grid, q_BTHC.device
    scores_BHTS = raw_scores(q_BTHC, k_BSKC, params.scale, params.softcap)
    q_BT, k_S = grid.q_BT[:, tile.t], torch.arange(tile.s.start, tile.s.stop, device=device)
    if params.bias is not None:
        t_T = torch.arange(tile.t.start, tile.t.stop, device=device)
        scores_BHTS = scores_BHTS + params.bias.at(t_T, q_BT, k_S, *tensors)
    if params.mask is None or tile.is_full:
        return scores_BHTS
    b = torch.arange(grid.B, device=device)[:, None, None]
    allowed_BTS = params.mask.allows(b, q_BT[:, :, None], k_S)
    return scores_BHTS.masked_fill(~allowed_BTS[:, None], -torch.inf)


def online_softmax_update(
    scores_BHTS: Tensor, v_BSKU: Tensor, out_BTHU: Tensor, max_BHT: Tensor, total_BHT: Tensor
) -> None:
    """Add a tile of keys to the running maximum, sum and output of its queries, in place."""
    new_BHT = torch.maximum(max_BHT, scores_BHTS.amax(dim=-1))
    safe_BHT = new_BHT.masked_fill(new_BHT == -torch.inf, 0.0)  # -inf - -inf is NaN
    p_BHTS = (scores_BHTS - safe_BHT[..., None]).exp_()
    decay_BHT = (max_BHT - safe_BHT).exp()
    total_BHT.mul_(decay_BHT).add_(p_BHTS.sum(dim=-1))
    out_BTHU.mul_(per_query(decay_BHT)).add_(weighted(p_BHTS, v_BSKU))
    max_BHT.copy_(new_BHT)


def add_gradients(
    params: TileParams,
    tile: Tile,
    grads_in: TileGradients,
    leaves: list[Tensor],
    sums: list[Tensor | None],
    v_BSKU: Tensor,
    dv_BSKU: Tensor,
) -> None:
    """Add one tile's gradients of `leaves` (q, k and the bias's tensors) to `sums`, and the
    gradient
    of v to dv."""
    t, K = tile.t, v_BSKU.shape[2]
    wanted = [
        (x.requires_grad_(), total)
        for x, total in zip(leaves, sums, strict=True)
        if total is not None
    ]
    with torch.enable_grad():
        scores_BHTS = tile_scores(params, tile, *leaves)
    p_BHTS = (scores_BHTS.detach() - grads_in.lse_BHT[..., t, None]).exp_()
    dout_BTKGU = grads_in.dout_BTHU[:, t].unflatten(2, (K, -1))
    dv_BSKU += torch.einsum("bkgts,btkgu->bsku", p_BHTS.unflatten(1, (K, -1)), dout_BTKGU)
    dp_BKGTS = torch.einsum("btkgu,bsku->bkgts", dout_BTKGU, v_BSKU.to(dout_BTKGU.dtype))
    ds_BHTS = p_BHTS.mul_(dp_BKGTS.flatten(1, 2).add_(grads_in.shift_BHT[..., t, None]))
    new_grads = torch.autograd.grad(scores_BHTS, [x for x, _ in wanted], ds_BHTS, allow_unused=True)
    for (_, total), grad in zip(wanted, new_grads, strict=True):
        if grad is not None:
            total += grad


def weighted(p_BHTS: Tensor, v_BSKU: Tensor) -> Tensor:
    """Weights times values: [B, T, H, U]."""
    p_BKGTS = p_BHTS.unflatten(1, (v_BSKU.shape[2], -1))
    return torch.einsum("bkgts,bsku->btkgu", p_BKGTS, v_BSKU).flatten(2, 3)


def per_query(x_BHT: Tensor) -> Tensor:
    """One value for each query and head, aligned with its output: [B, T, H, 1]."""
    return x_BHT.transpose(1, 2)[..., None]
