"""Scaled dot-product attention as in the paper (Vaswani 2017), and merging of partial results.

    scores = softcap(q . k * scale) + bias, masked;  weights = softmax(scores);  out = weights . v

The other kernels are tested against this one. It stores all T x S weights, so it can return them
and apply dropout to them. Differs from the textbook: K key heads serve groups of H / K query heads
without being repeated (Ainslie 2023); a query without any allowed key gets zeros rather than NaN;
scores are at least float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.core.shapes import check_shapes
from weft.nn.attention.base import DenseCall
from weft.nn.attention.masks.dense import Grid, dense


def reference_attention(call: DenseCall) -> tuple[Tensor, Tensor]:
    """(out_BTHU, lse_BHT); the contract is `Kernel` in attention/base.py."""
    weights_BHTS, lse_BHT = attention_weights(call)
    if call.dropout > 0:
        weights_BHTS = F.dropout(weights_BHTS, call.dropout)
    v_BSKU = call.kv.v_BSKU
    weights_BKGTS = weights_BHTS.unflatten(1, (v_BSKU.shape[2], -1))
    out_BTKGU = torch.einsum("bkgts,bsku->btkgu", weights_BKGTS, v_BSKU.to(weights_BHTS.dtype))
    return out_BTKGU.flatten(2, 3).to(call.q_BTHC.dtype), lse_BHT


def attention_weights(call: DenseCall) -> tuple[Tensor, Tensor]:
    """(weights_BHTS, lse_BHT). Each row of weights sums to 1, or to 0 for a query without any
    allowed key."""
    q_BTHC, kv = call.q_BTHC, call.kv
    check_shapes(q_BTHC=q_BTHC, k_BSKC=kv.k_BSKC, v_BSKU=kv.v_BSKU)
    return softmax_weights(call, raw_scores(q_BTHC, kv.k_BSKC, call.softmax_scale, call.softcap))


def softmax_weights(call: DenseCall, scores_BHTS: Tensor) -> tuple[Tensor, Tensor]:
    """(weights_BHTS, lse_BHT) of scores without bias and mask."""
    bias, grid = call.bias, Grid.of(call.q_BTHC, call.kv)
    if bias is not None:
        t_T = torch.arange(grid.T, device=grid.device)
        scores_BHTS = scores_BHTS + bias.at(t_T, grid.q_BT, grid.k_S, *bias.tensors())
    if call.mask is None:
        return scores_BHTS.softmax(dim=-1), scores_BHTS.logsumexp(dim=-1)
    return masked_softmax(scores_BHTS, dense(call.mask, grid).allowed_BTS[:, None])


def raw_scores(q_BTHC: Tensor, k_BSKC: Tensor, scale: float, softcap: float | None) -> Tensor:
    """scores_BHTS before bias and mask, at least in float32: bfloat16 loses the tail of a long
    softmax."""
    dtype = torch.promote_types(q_BTHC.dtype, torch.float32)
    q_BTKGC = q_BTHC.to(dtype).unflatten(2, (k_BSKC.shape[2], -1))
    scores_BKGTS = torch.einsum("btkgc,bskc->bkgts", q_BTKGC, k_BSKC.to(dtype))
    return capped_scores(scores_BKGTS.flatten(1, 2), scale, softcap)


def capped_scores(products_BHTS: Tensor, scale: float, softcap: float | None) -> Tensor:
    scores_BHTS = products_BHTS * scale
    return scores_BHTS if softcap is None else softcap * torch.tanh(scores_BHTS / softcap)


def query_attention(call: DenseCall) -> tuple[Tensor, Tensor]:
    """`reference_attention` of one query. In float32 on a CPU by sums instead of matrix products,
    in which torch adds in another order for another number of threads or alignment."""
    q_BTHC, k_BSKC, v_BSKU = call.q_BTHC, call.kv.k_BSKC, call.kv.v_BSKU
    if q_BTHC.dtype != torch.float32 or q_BTHC.device.type != "cpu":
        return reference_attention(call)
    q_KGC, k_KSC = q_BTHC[0, 0].unflatten(0, (k_BSKC.shape[2], -1)), k_BSKC[0].transpose(0, 1)
    products_KGS = (q_KGC[:, :, None] * k_KSC[:, None]).sum(-1)
    products_BHTS = products_KGS.flatten(0, 1)[None, :, None]
    scores_BHTS = capped_scores(products_BHTS, call.softmax_scale, call.softcap)
    weights_BHTS, lse_BHT = softmax_weights(call, scores_BHTS)
    weights_KGS = weights_BHTS[0, :, 0].unflatten(0, (k_BSKC.shape[2], -1))
    out_KGU = (weights_KGS[:, :, None] * v_BSKU[0].permute(1, 2, 0)[:, None]).sum(-1)
    return out_KGU.flatten(0, 1)[None, None], lse_BHT


def masked_softmax(scores_BHTS: Tensor, allowed_BHTS: Tensor) -> tuple[Tensor, Tensor]:
    """(weights, lse) over the allowed keys only."""
    is_empty_BHT1 = ~allowed_BHTS.any(dim=-1, keepdim=True)
    scores_BHTS = scores_BHTS.masked_fill(~allowed_BHTS, -torch.inf)
    # a row of -inf alone would give NaN, in the gradient too: compute it on zeros and replace it
    scores_BHTS = scores_BHTS.masked_fill(is_empty_BHT1, 0.0)
    weights_BHTS = scores_BHTS.softmax(dim=-1).masked_fill(is_empty_BHT1, 0.0)
    lse_BHT = scores_BHTS.logsumexp(dim=-1).masked_fill(is_empty_BHT1[..., 0], -torch.inf)
    return weights_BHTS, lse_BHT


def merge(
    out_a_BTHU: Tensor, lse_a_BHT: Tensor, out_b_BTHU: Tensor, lse_b_BHT: Tensor
) -> tuple[Tensor, Tensor]:
    """Two partial results over disjoint keys -> (out_BTHU, lse_BHT) over the keys of both, exactly.

        lse = log(exp(lse_a) + exp(lse_b)),  out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b

    This joins tiles (Dao 2022), shared prefixes and parts of a long cache. The larger lse is
    subtracted first; a side without keys (lse -inf) has weight 0, in the gradient too. If both
    sides have no keys: 0 and -inf.
    """
    check_shapes(a_BTHU=out_a_BTHU, b_BTHU=out_b_BTHU, a_BHT=lse_a_BHT, b_BHT=lse_b_BHT)
    max_BHT = torch.maximum(lse_a_BHT, lse_b_BHT).detach()
    is_empty_BHT = max_BHT == -torch.inf
    max_BHT = max_BHT.masked_fill(is_empty_BHT, 0.0)
    a_BHT, b_BHT = (lse_a_BHT - max_BHT).exp(), (lse_b_BHT - max_BHT).exp()
    total_BHT = (a_BHT + b_BHT).masked_fill(is_empty_BHT, 1.0)
    out = scaled(out_a_BTHU, a_BHT / total_BHT) + scaled(out_b_BTHU, b_BHT / total_BHT)
    lse_BHT = (max_BHT + total_BHT.log()).masked_fill(is_empty_BHT, -torch.inf)
    return out.to(out_a_BTHU.dtype), lse_BHT


def scaled(out_BTHU: Tensor, factor_BHT: Tensor) -> Tensor:
    return out_BTHU * factor_BHT.transpose(1, 2)[..., None]
