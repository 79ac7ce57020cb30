"""Attention over short sequences, in training: q, k, v -> out_BHTU, lse_BHT, storing the weights.

    p = softmax(q . k * scale + added),  out = p . v
    ds = p (dp - sum(dp p) + dlse),  dp = dout . v

Up to a few dozen tokens, plain batched products and one stored matrix of weights take half the time
of a fused kernel, whose tiles are mostly empty and which recomputes the weights in the backward
pass. The compiled kernel takes half of that again, without a copy of q, k and v.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.core.shapes import check_shapes
from weft.native import attention_kernels

MAX_PAIRS = 64 * 64
"""Queries times keys of one sequence up to which storing the weights is faster."""


def fits_short(q_BHTC: Tensor, k_BKSC: Tensor) -> bool:
    """Whether a call is short enough; grouped heads (K < H) use the fused kernel."""
    T, S = q_BHTC.shape[2], k_BKSC.shape[2]
    return T * S <= MAX_PAIRS and q_BHTC.shape[1] == k_BKSC.shape[1] and T > 1


def short_attention(
    q_BHTC: Tensor,
    k_BHSC: Tensor,
    v_BHSU: Tensor,
    added_BHTS: Tensor | None,
    empty_BT: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """(out_BHTU, lse_BHT), by the compiled kernel where it supports the call."""
    check_shapes(q_BHTC=q_BHTC, k_BHSC=k_BHSC, v_BHSU=v_BHSU)
    compiled = attention_kernels.short_attention(q_BHTC, k_BHSC, v_BHSU, added_BHTS, scale)
    if compiled is not None:
        return compiled
    out: tuple[Tensor, Tensor]
    out = ShortAttention.apply(q_BHTC, k_BHSC, v_BHSU, added_BHTS, empty_BT, scale)
    return out


class ShortAttention(torch.autograd.Function):
    """A query without any allowed key (`empty_BT`; all of `added` is -inf) gets 0 with lse 0, as in
    the fused kernel."""

    @staticmethod
    def forward(
        ctx: Any,
        q_BHTC: Tensor,
        k_BHSC: Tensor,
        v_BHSU: Tensor,
        added_BHTS: Tensor | None,
        empty_BT: Tensor | None,
        scale: float,
    ) -> tuple[Tensor, Tensor]:
        # made contiguous once, for the four products that read each of them
        q_BHTC, k_BHSC, v_BHSU = (
            (q_BHTC * scale).contiguous(),
            k_BHSC.contiguous(),
            v_BHSU.contiguous(),
        )
        scores_BHTS = torch.matmul(q_BHTC, k_BHSC.transpose(-1, -2))
        if added_BHTS is not None:
            scores_BHTS += added_BHTS
        if empty_BT is not None:
            scores_BHTS.masked_fill_(empty_BT[:, None, :, None], 0.0)
        lse_BHT = scores_BHTS.logsumexp(-1)
        weights_BHTS = scores_BHTS.sub_(lse_BHT[..., None]).exp_()
        if empty_BT is not None:
            weights_BHTS.masked_fill_(empty_BT[:, None, :, None], 0.0)
            lse_BHT.masked_fill_(empty_BT[:, None], 0.0)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q_BHTC, k_BHSC, v_BHSU, weights_BHTS)
        ctx.scale = scale
        return torch.matmul(weights_BHTS, v_BHSU), lse_BHT

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> tuple[Tensor | None, ...]:
        q_BHTC, k_BHSC, v_BHSU, weights_BHTS = ctx.saved_tensors
        dv_BHSU, ds_BHTS = None, torch.zeros_like(weights_BHTS)
        if dout is not None:
            dout = dout.contiguous()
            dv_BHSU = torch.matmul(weights_BHTS.transpose(-1, -2), dout)
            dp_BHTS = torch.matmul(dout, v_BHSU.transpose(-1, -2))
            ds_BHTS = torch._softmax_backward_data(dp_BHTS, weights_BHTS, -1, dp_BHTS.dtype)
        if dlse is not None:
            ds_BHTS = ds_BHTS + weights_BHTS * dlse[..., None]
        dq_BHTC = torch.matmul(ds_BHTS, k_BHSC).mul_(ctx.scale)
        dk_BHSC = torch.matmul(ds_BHTS.transpose(-1, -2), q_BHTC)
        return dq_BHTC, dk_BHSC, dv_BHSU, None, None, None
