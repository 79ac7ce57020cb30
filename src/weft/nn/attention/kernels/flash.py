"""Flash attention (Dao 2022): the contract of attention/base.py without ever storing T x S scores.

Four ways, chosen by what the call needs; all are exact:

    short.py      short sequences in training, where storing the weights is faster after all
    fused.py      torch's own kernel: no mask, plain causal, or small masks and biases
    scheduled.py  a larger mask: the fused kernel on the tiles where the mask leaves work
    tiled.py      softcap, a bias that needs gradients or is large: a running softmax over tiles
                  (reference.py where the scores are so few that storing them is cheaper)

Differs from the paper: when one new token meets its cache (T = 1), the query heads of a group stand
in as queries, so that each key is read once and not once per head.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from weft.core.kv_spec import KVView
from weft.nn.attention.base import Mask
from weft.nn.attention.kernels import fused
from weft.nn.attention.kernels.flex import flex_attention, flex_fits
from weft.nn.attention.kernels.reference import reference_attention
from weft.nn.attention.kernels.scheduled import scheduled
from weft.nn.attention.kernels.short import fits_short, short_attention
from weft.nn.attention.kernels.tiled import tiled_attention
from weft.nn.attention.masks.dense import Grid, dense
from weft.nn.attention.masks.distance import Causal
from weft.nn.positions.base import Bias

WRITTEN_OUT = 2**22
"""Numbers of a mask or bias that may be written out as a matrix: 16 MB."""
FEW_SCORES = 2**22
"""Scores that may be stored after all, where tiles would have to make them twice: 16 MB."""


def flash_attention(
    q_BTHC: Tensor,
    view: KVView,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    *,
    softcap: float | None = None,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """(out_BTHU, lse_BHT); the contract is `Kernel` in attention/base.py."""
    if dropout > 0:
        return reference_attention(
            q_BTHC, view, mask, bias, scale, softcap=softcap, dropout=dropout
        )
    if flex_fits(q_BTHC, view, bias):
        return flex_attention(q_BTHC, view, mask, bias, scale, softcap=softcap)
    grid = Grid.of(q_BTHC, view)
    if softcap is not None or q_BTHC.device.type != "cpu" or not can_write(bias, q_BTHC, grid):
        is_small = grid.pairs * q_BTHC.shape[2] <= FEW_SCORES
        kernel = reference_attention if is_small else tiled_attention
        return kernel(q_BTHC, view, mask, bias, scale, softcap=softcap)
    if not has_short_form(mask, bias, grid) and grid.pairs > WRITTEN_OUT:
        assert mask is not None, f"a bias of {grid.pairs} pairs was not sent to tiles"
        return scheduled(q_BTHC, view, mask, scale)
    scale = q_BTHC.shape[-1] ** -0.5 if scale is None else scale
    return fused_attention(q_BTHC, view, written_out(mask, bias, grid, q_BTHC.dtype), scale)


def can_write(bias: Bias | None, q_BTHC: Tensor, grid: Grid) -> bool:
    """Whether the bias may become a matrix: it is small, and nobody asks for its gradients."""
    if bias is None:
        return True
    needs_grad = torch.is_grad_enabled() and any(x.requires_grad for x in bias.tensors())
    return not needs_grad and grid.pairs * q_BTHC.shape[2] <= WRITTEN_OUT


def has_short_form(mask: Mask | None, bias: Bias | None, grid: Grid) -> bool:
    """Whether the fused kernel needs no matrix: it knows nothing-masked, and causal over whole
    sequences."""
    is_plain = isinstance(mask, Causal) and grid.start == 0 and grid.T == grid.S
    return bias is None and (mask is None or is_plain)


class Added(NamedTuple):
    """What is added to the scores, in the form that the fused kernel reads."""

    matrix: Tensor | None = None
    """[B or 1, H or 1, T, S]."""
    empty_BT: Tensor | None = None
    """Queries that see nothing; None when there are none."""
    is_causal: bool = False


def written_out(mask: Mask | None, bias: Bias | None, grid: Grid, dtype: torch.dtype) -> Added:
    """Mask and bias as one matrix, or as no matrix where none is needed."""
    if has_short_form(mask, bias, grid):
        return Added(is_causal=mask is not None)
    matrix, empty_BT = None, None
    if mask is not None and not (written := dense(mask, grid)).is_full:
        matrix, empty_BT = written.added_B1TS(dtype), written.empty_BT
    if bias is not None:
        t_T = torch.arange(grid.T, device=grid.device)
        bias_BHTS = bias.at(t_T, grid.q_BT, grid.k_S, *bias.tensors()).to(dtype)
        matrix = bias_BHTS if matrix is None else bias_BHTS + matrix
    return Added(matrix, empty_BT)


def fused_attention(
    q_BTHC: Tensor, view: KVView, added: Added, scale: float
) -> tuple[Tensor, Tensor]:
    """The fused kernel, with the heads of a group as queries where there is one new token."""
    B, T, H, _ = q_BTHC.shape
    k_BKSC, v_BKSU = view.k_BSKC.transpose(1, 2), view.v_BSKU.transpose(1, 2)
    K = k_BKSC.shape[1]
    if T > 1 or K == H:
        out_BHTU, lse_BHT = heads_first(q_BTHC.transpose(1, 2), k_BKSC, v_BKSU, added, scale)
        return out_BHTU.transpose(1, 2), lse_BHT
    q_BKGC = q_BTHC.reshape(B, K, H // K, -1)
    out_BKGU, lse_BKG = heads_first(q_BKGC, k_BKSC, v_BKSU, folded(added, K, H), scale)
    return out_BKGU.reshape(B, 1, H, -1), lse_BKG.reshape(B, H, 1)


def folded(added: Added, K: int, H: int) -> Added:
    """The same for one new token, with the H / K heads of a group in the place of queries."""
    if added.matrix is None:
        return Added()
    B, heads, _, S = added.matrix.shape
    if heads == 1:
        return added._replace(matrix=added.matrix.expand(B, 1, H // K, S), is_causal=False)
    return added._replace(matrix=added.matrix.reshape(B, K, H // K, S), is_causal=False)


def heads_first(
    q_BHTC: Tensor, k_BKSC: Tensor, v_BKSU: Tensor, added: Added, scale: float
) -> tuple[Tensor, Tensor]:
    """(out_BHTU, lse_BHT); without the cost of autograd where nobody asks for gradients."""
    inputs = (q_BHTC, k_BKSC, v_BKSU)
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        if fits_short(q_BHTC, k_BKSC):
            matrix = causal_matrix(q_BHTC) if added.is_causal else added.matrix
            out_BHTU, lse_BHT = short_attention(*inputs, matrix, added.empty_BT, scale)
        else:
            out_BHTU, lse_BHT = FusedAttention.apply(*inputs, added, scale)
    else:
        out_BHTU, lse_BHT = fused.forward(*inputs, added.matrix, scale, added.is_causal)
    if added.empty_BT is not None:
        lse_BHT = lse_BHT.masked_fill(added.empty_BT[:, None], -torch.inf)
    return out_BHTU, lse_BHT


def causal_matrix(q_BHTC: Tensor) -> Tensor:
    """-inf above the diagonal: what the fused kernel knows without being told."""
    T = q_BHTC.shape[2]
    return torch.full((T, T), -torch.inf, dtype=q_BHTC.dtype, device=q_BHTC.device).triu_(1)


class FusedAttention(torch.autograd.Function):
    """The fused kernel with a gradient of lse. Where a query sees nothing, out and lse are 0."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, q: Tensor, k: Tensor, v: Tensor, added: Added, scale: float
    ) -> tuple[Tensor, Tensor]:
        out, lse = fused.forward(q, k, v, added.matrix, scale, added.is_causal)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.added, ctx.scale = added, scale  # type: ignore[attr-defined]
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        dout = torch.zeros_like(saved[3]) if dout is None else dout
        added = ctx.added
        grads = fused.backward(dout, dlse, saved, added.matrix, ctx.scale, added.is_causal)
        return *grads, None, None
