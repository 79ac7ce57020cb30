"""Flash attention (Dao 2022) by torch's fused CPU kernel: out and lse without stored scores.

    ds = p (dout . v - delta + dlse),   delta = sum(dout * out),   p = exp(s - lse)

The kernel never stores T x S values, forward or backward, and serves K key heads to H query heads
itself (Dao 2023). Differs from the bare operator: values may have another size than keys (padded
with zeros), and lse has a gradient (a column of ones in v, whose gradient is dlse, adds exactly
that term). With one new token (T = 1), the query heads of a group are passed as queries, so that
each key is read once instead of once per head.

`fused_forward` and `fused_backward` have heads before tokens and return 0 with lse 0 for a query
without any allowed key; `fused_attention` replaces that lse by -inf.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from weft.core.shapes import check_shapes
from weft.nn.attention.base import DenseCall, Mask
from weft.nn.attention.kernels.short import fits_short, short_attention
from weft.nn.attention.masks.dense import Grid, dense
from weft.nn.attention.masks.kinds import Causal
from weft.nn.positions.base import Bias

forward_op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
backward_op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class AdditiveMask(NamedTuple):
    """What is added to the scores, in the form that the fused kernel reads."""

    matrix: Tensor | None = None
    """[B or 1, H or 1, T, S]."""
    empty_BT: Tensor | None = None
    """Queries without any allowed key; None if there are none."""
    is_causal: bool = False


def needs_no_matrix(mask: Mask | None, bias: Bias | None, grid: Grid) -> bool:
    """Whether the fused kernel has a flag for this mask: none, or causal over whole sequences."""
    is_plain_causal = isinstance(mask, Causal) and grid.start == 0 and grid.T == grid.S
    return bias is None and (mask is None or is_plain_causal)


def materialize_mask(call: DenseCall, grid: Grid) -> AdditiveMask:
    """Mask and bias as one matrix, or as no matrix where none is needed."""
    mask, bias, dtype = call.mask, call.bias, call.q_BTHC.dtype
    if needs_no_matrix(mask, bias, grid):
        return AdditiveMask(is_causal=mask is not None)
    matrix, empty_BT = None, None
    if mask is not None and not (matrix_form := dense(mask, grid)).is_full:
        matrix, empty_BT = matrix_form.additive_B1TS(dtype), matrix_form.empty_BT
    if bias is not None:
        t_T = torch.arange(grid.T, device=grid.device)
        bias_BHTS = bias.at(t_T, grid.q_BT, grid.k_S, *bias.tensors()).to(dtype)
        matrix = bias_BHTS if matrix is None else bias_BHTS + matrix
    return AdditiveMask(matrix, empty_BT)


def fused_attention(call: DenseCall, added: AdditiveMask) -> tuple[Tensor, Tensor]:
    """(out_BTHU, lse_BHT) of a call without softcap and dropout; `added` is its mask and bias."""
    q_BTHC, kv, scale = call.q_BTHC, call.kv, call.softmax_scale
    check_shapes(q_BTHC=q_BTHC, k_BSKC=kv.k_BSKC, v_BSKU=kv.v_BSKU)
    B, T, H, _ = q_BTHC.shape
    k_BKSC, v_BKSU = kv.k_BSKC.transpose(1, 2), kv.v_BSKU.transpose(1, 2)
    K = k_BKSC.shape[1]
    if T > 1 or K == H:
        out_BHTU, lse_BHT = heads_first(q_BTHC.transpose(1, 2), k_BKSC, v_BKSU, added, scale)
        return out_BHTU.transpose(1, 2), lse_BHT
    q_BKGC = q_BTHC.reshape(B, K, H // K, -1)
    out_BKGU, lse_BKG = heads_first(q_BKGC, k_BKSC, v_BKSU, group_as_queries(added, K, H), scale)
    return out_BKGU.reshape(B, 1, H, -1), lse_BKG.reshape(B, H, 1)


def group_as_queries(added: AdditiveMask, K: int, H: int) -> AdditiveMask:
    """The same for one new token, with the H / K heads of a group in the query dimension."""
    if added.matrix is None:
        return AdditiveMask()
    B, heads, _, S = added.matrix.shape
    if heads == 1:
        return added._replace(matrix=added.matrix.expand(B, 1, H // K, S), is_causal=False)
    return added._replace(matrix=added.matrix.reshape(B, K, H // K, S), is_causal=False)


def heads_first(
    q_BHTC: Tensor, k_BKSC: Tensor, v_BKSU: Tensor, added: AdditiveMask, scale: float
) -> tuple[Tensor, Tensor]:
    """(out_BHTU, lse_BHT); without the overhead of autograd where no gradient is needed."""
    inputs = (q_BHTC, k_BKSC, v_BKSU)
    if torch.is_grad_enabled() and any(x.requires_grad for x in inputs):
        if fits_short(q_BHTC, k_BKSC):
            matrix = causal_matrix(q_BHTC) if added.is_causal else added.matrix
            out_BHTU, lse_BHT = short_attention(*inputs, matrix, added.empty_BT, scale)
        else:
            out_BHTU, lse_BHT = FusedAttention.apply(*inputs, added, scale)
    else:
        out_BHTU, lse_BHT = fused_forward(*inputs, added.matrix, scale, added.is_causal)
    if added.empty_BT is not None:
        lse_BHT = lse_BHT.masked_fill(added.empty_BT[:, None], -torch.inf)
    return out_BHTU, lse_BHT


def causal_matrix(q_BHTC: Tensor) -> Tensor:
    """-inf above the diagonal, [T, T]: the fused kernel's causal flag as a matrix."""
    T = q_BHTC.shape[2]
    return torch.full((T, T), -torch.inf, dtype=q_BHTC.dtype, device=q_BHTC.device).triu_(1)


class FusedAttention(torch.autograd.Function):
    """The fused kernel with a gradient of lse."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, q: Tensor, k: Tensor, v: Tensor, added: AdditiveMask, scale: float
    ) -> tuple[Tensor, Tensor]:
        out, lse = fused_forward(q, k, v, added.matrix, scale, added.is_causal)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.added, ctx.scale = added, scale  # type: ignore[attr-defined]
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        dout = torch.zeros_like(saved[3]) if dout is None else dout
        added = ctx.added
        grads = fused_backward(dout, dlse, saved, added.matrix, ctx.scale, added.is_causal)
        return *grads, None, None


def fused_forward(
    q_BHTC: Tensor,
    k_BKSC: Tensor,
    v_BKSU: Tensor,
    added: Tensor | None,
    scale: float,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor]:
    """(out_BHTU, lse_BHT) of softmax(q . k * scale + added) . v; `added` is [B or 1, H or 1, T,
    S]."""
    C, U = q_BHTC.shape[-1], v_BKSU.shape[-1]
    if C != U:
        q_BHTC, k_BKSC, v_BKSU = (pad_size(x, max(C, U)) for x in (q_BHTC, k_BKSC, v_BKSU))
    out_BHTU, lse_BHT = forward_op(
        q_BHTC, k_BKSC, v_BKSU, 0.0, is_causal, attn_mask=added, scale=scale
    )
    return out_BHTU[..., :U], lse_BHT


def fused_backward(
    dout_BHTU: Tensor,
    dlse_BHT: Tensor | None,
    saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    added: Tensor | None,
    scale: float,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) from `saved` = q, k, v, out, lse. out and lse may be those of more keys than k:
    then the gradients are those of this part. A row with lse = +inf contributes nothing."""
    q_BHTC, k_BKSC, v_BKSU, out_BHTU, lse_BHT = saved
    C, U = q_BHTC.shape[-1], v_BKSU.shape[-1]
    if dlse_BHT is not None:
        v_BKSU = F.pad(v_BKSU, (0, 1), value=1.0)
        dout_BHTU = torch.cat([dout_BHTU, dlse_BHT[..., None].to(dout_BHTU.dtype)], dim=-1)
    size = max(C, v_BKSU.shape[-1])
    padded = [pad_size(x, size) for x in (dout_BHTU, q_BHTC, k_BKSC, v_BKSU, out_BHTU)]
    dq, dk, dv = backward_op(*padded, lse_BHT, 0.0, is_causal, attn_mask=added, scale=scale)
    return dq[..., :C], dk[..., :C], dv[..., :U]


def pad_size(x: Tensor, size: int) -> Tensor:
    """x with zeros after its last element, up to `size`; contiguous in the last dimension, which
    the operator requires."""
    missing = size - x.shape[-1]
    if missing:
        return F.pad(x, (0, missing))
    return x if x.stride(-1) == 1 else x.contiguous()
