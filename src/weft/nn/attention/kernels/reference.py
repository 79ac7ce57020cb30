"""Attention as in the paper (Vaswani 2017): q_BTHC, keys and values -> out_BTHU, lse_BHT, weights.

    scores = softcap(q . k * scale) + bias, masked;  weights = softmax(scores);  out = weights . v

The other kernels are held to this one. It stores all T x S weights, which is why it can show them
and drop some of them in training. Differs from the textbook: K key heads serve groups of H / K
query heads without being repeated (Ainslie 2023); a query that may see nothing gets zeros rather
than NaN; scores are at least float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.core.kv_spec import KVView
from weft.nn.attention.base import Mask
from weft.nn.attention.masks.dense import Grid, dense
from weft.nn.positions.base import Bias


def reference_attention(
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
    weights_BHTS, lse_BHT = attention_weights(q_BTHC, view, mask, bias, scale, softcap=softcap)
    if dropout > 0:
        weights_BHTS = F.dropout(weights_BHTS, dropout)
    weights_BKGTS = weights_BHTS.unflatten(1, (view.v_BSKU.shape[2], -1))
    out_BTKGU = torch.einsum("bkgts,bsku->btkgu", weights_BKGTS, view.v_BSKU.to(weights_BHTS.dtype))
    return out_BTKGU.flatten(2, 3).to(q_BTHC.dtype), lse_BHT


def attention_weights(
    q_BTHC: Tensor,
    view: KVView,
    mask: Mask | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    *,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(weights_BHTS, lse_BHT). Each row of weights sums to 1, or to 0 for a query that may see
    nothing."""
    grid = Grid.of(q_BTHC, view)
    scores_BHTS = raw_scores(q_BTHC, view.k_BSKC, scale, softcap)
    if bias is not None:
        t_T = torch.arange(grid.T, device=grid.device)
        scores_BHTS = scores_BHTS + bias.at(t_T, grid.q_BT, grid.k_S, *bias.tensors())
    if mask is None:
        return scores_BHTS.softmax(dim=-1), scores_BHTS.logsumexp(dim=-1)
    return masked_softmax(scores_BHTS, dense(mask, grid).allowed_BTS[:, None])


def raw_scores(
    q_BTHC: Tensor, k_BSKC: Tensor, scale: float | None, softcap: float | None
) -> Tensor:
    """scores_BHTS before bias and mask, in float32 at least: bf16 loses the tail of a long
    softmax."""
    wide = torch.promote_types(q_BTHC.dtype, torch.float32)
    q_BTKGC = q_BTHC.to(wide).unflatten(2, (k_BSKC.shape[2], -1))
    scores_BKGTS = torch.einsum("btkgc,bskc->bkgts", q_BTKGC, k_BSKC.to(wide))
    scores_BHTS = scores_BKGTS.flatten(1, 2) * (
        q_BTHC.shape[-1] ** -0.5 if scale is None else scale
    )
    return scores_BHTS if softcap is None else softcap * torch.tanh(scores_BHTS / softcap)


def masked_softmax(scores_BHTS: Tensor, allowed_BHTS: Tensor) -> tuple[Tensor, Tensor]:
    """(weights, lse) over the allowed keys only."""
    is_empty_BHT1 = ~allowed_BHTS.any(dim=-1, keepdim=True)
    scores_BHTS = scores_BHTS.masked_fill(~allowed_BHTS, -torch.inf)
    # a row of -inf alone would make NaN, in the gradient too: it runs on zeros and is replaced
    scores_BHTS = scores_BHTS.masked_fill(is_empty_BHT1, 0.0)
    weights_BHTS = scores_BHTS.softmax(dim=-1).masked_fill(is_empty_BHT1, 0.0)
    lse_BHT = scores_BHTS.logsumexp(dim=-1).masked_fill(is_empty_BHT1[..., 0], -torch.inf)
    return weights_BHTS, lse_BHT
