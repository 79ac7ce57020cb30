"""Torch's fused CPU kernel with its corners rounded: q, k, v -> out_BHTU, lse_BHT, and the way
back.

    ds = p (dout . v - delta + dlse),   delta = sum(dout * out),   p = exp(s - lse)

It never stores T x S numbers, forward or backward, and serves K key heads to H query heads itself
(Dao 2023). Heads come before tokens here. Differs from the bare operator, which wants values as
wide as keys (here zeros fill the gap) and knows no gradient of lse (here a column of ones in v,
whose gradient is dlse, adds exactly that term). One habit is left to the caller: a query that may
see nothing comes out as 0 with lse 0.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

forward_op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
backward_op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


def forward(
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
        q_BHTC, k_BKSC, v_BKSU = (widen(x, max(C, U)) for x in (q_BHTC, k_BKSC, v_BKSU))
    out_BHTU, lse_BHT = forward_op(
        q_BHTC, k_BKSC, v_BKSU, 0.0, is_causal, attn_mask=added, scale=scale
    )
    return out_BHTU[..., :U], lse_BHT


def backward(
    dout_BHTU: Tensor,
    dlse_BHT: Tensor | None,
    saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    added: Tensor | None,
    scale: float,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) from `saved` = q, k, v, out, lse. out and lse may span more keys than k: then
    the gradient is that of this part. A row with lse = +inf gives nothing."""
    q_BHTC, k_BKSC, v_BKSU, out_BHTU, lse_BHT = saved
    C, U = q_BHTC.shape[-1], v_BKSU.shape[-1]
    if dlse_BHT is not None:
        v_BKSU = F.pad(v_BKSU, (0, 1), value=1.0)
        dout_BHTU = torch.cat([dout_BHTU, dlse_BHT[..., None].to(dout_BHTU.dtype)], dim=-1)
    width = max(C, v_BKSU.shape[-1])
    wide = [widen(x, width) for x in (dout_BHTU, q_BHTC, k_BKSC, v_BKSU, out_BHTU)]
    dq, dk, dv = backward_op(*wide, lse_BHT, 0.0, is_causal, attn_mask=added, scale=scale)
    return dq[..., :C], dk[..., :C], dv[..., :U]


def widen(x: Tensor, width: int) -> Tensor:
    """Zeros after the last column, up to `width`; the operator also wants neighbouring columns side
    by side."""
    missing = width - x.shape[-1]
    if missing:
        return F.pad(x, (0, missing))
    return x if x.stride(-1) == 1 else x.contiguous()
