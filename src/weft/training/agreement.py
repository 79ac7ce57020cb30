"""R-Drop: logits of two passes over the same tokens -> summed loss and its slopes for the logits.

    loss = both passes' smoothed losses + rdrop / 2 * (KL(p || p') + KL(p' || p))     Liang 2021

By one compiled walk over each row where there is a compiler; the operations of torch below say the
same within 1e-6, in some forty walks through memory.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from weft.native.kernels import rdrop_loss_


class Agreement(NamedTuple):
    """The summed loss of some tokens in both passes, and its slopes for the logits of each."""

    loss: Tensor
    slopes: tuple[Tensor, Tensor]


def agree_(
    logits_NV: Tensor, others_NV: Tensor, targets_N: Tensor, smoothing: float, rdrop: float
) -> Agreement:
    """The logits of both passes may be written over."""
    losses_N = rdrop_loss_(logits_NV, others_NV, targets_N, smoothing, rdrop / 2)
    if losses_N is None:
        return reference(logits_NV, others_NV, targets_N, smoothing, rdrop)
    return Agreement(losses_N.sum(), (logits_NV, others_NV))


def reference(
    logits_NV: Tensor, others_NV: Tensor, targets_N: Tensor, smoothing: float, rdrop: float
) -> Agreement:
    logp_NV, logq_NV = logits_NV.log_softmax(-1), others_NV.log_softmax(-1)
    found = gaps(logp_NV, logq_NV, rdrop / 2)
    loss = found.loss
    for log_NV, slope_NV in zip((logp_NV, logq_NV), found.slopes, strict=True):
        loss = loss + smoothed(log_NV, targets_N, smoothing)
        slope_NV += smoothed_slope_(log_NV, targets_N, smoothing)
    return Agreement(loss, found.slopes)


def smoothed(logp_NV: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
    """Summed label-smoothed loss."""
    picked = logp_NV.gather(1, targets_N[:, None]).sum(dtype=torch.float64)
    if smoothing == 0:
        return -picked
    return -(1 - smoothing) * picked - smoothing * logp_NV.mean(1).sum(dtype=torch.float64)


def smoothed_slope_(logp_NV: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
    """d loss / d logits = p - (1 - smoothing) [target] - smoothing / V, written over logp."""
    slope_NV = logp_NV.exp_()
    if smoothing:
        slope_NV -= smoothing / slope_NV.shape[1]
    index_N1 = targets_N[:, None]
    return slope_NV.scatter_add_(1, index_N1, slope_NV.new_full(index_N1.shape, smoothing - 1))


def gaps(logp_NV: Tensor, logq_NV: Tensor, weight: float) -> Agreement:
    """KL(p || q) + KL(q || p), and its slopes: for p's logits p (log p - log q - KL(p || q)) + p -
    q."""
    p_NV, q_NV, ratio_NV = logp_NV.exp(), logq_NV.exp(), logp_NV - logq_NV
    pq_N1 = (p_NV * ratio_NV).sum(1, keepdim=True)
    qp_N1 = -(q_NV * ratio_NV).sum(1, keepdim=True)
    loss = weight * (pq_N1.sum(dtype=torch.float64) + qp_N1.sum(dtype=torch.float64))
    slope_p = weight * (p_NV * (ratio_NV - pq_N1) + p_NV - q_NV)
    slope_q = weight * (q_NV * (-ratio_NV - qp_N1) + q_NV - p_NV)
    return Agreement(loss, (slope_p, slope_q))
