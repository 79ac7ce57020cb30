"""R-Drop: logits of two forward passes over the same tokens -> summed loss and logit gradients.

    loss = both smoothed cross-entropies + rdrop / 2 * (KL(p || q) + KL(q || p))     Liang 2021

The compiled kernel reads each row of logits once. Without it, the torch functions below compute the
same within 1e-6, with about forty passes over memory.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from weft.native.kernels import rdrop_loss_


class RDropLoss(NamedTuple):
    """The summed loss of some tokens in both passes, and its gradients for the logits of each."""

    loss: Tensor
    grads: tuple[Tensor, Tensor]


def rdrop_loss_and_grads_(
    logits_NV: Tensor, others_NV: Tensor, targets_N: Tensor, smoothing: float, rdrop: float
) -> RDropLoss:
    """Loss of two passes with the same targets; overwrites the logits of both."""
    losses_N = rdrop_loss_(logits_NV, others_NV, targets_N, smoothing, rdrop / 2)
    if losses_N is None:
        return rdrop_reference(logits_NV, others_NV, targets_N, smoothing, rdrop)
    return RDropLoss(losses_N.sum(), (logits_NV, others_NV))


def rdrop_reference(
    logits_NV: Tensor, others_NV: Tensor, targets_N: Tensor, smoothing: float, rdrop: float
) -> RDropLoss:
    """The same in torch operations."""
    logp_NV, logq_NV = logits_NV.log_softmax(-1), others_NV.log_softmax(-1)
    loss, grads = symmetric_kl(logp_NV, logq_NV, rdrop / 2)
    for log_NV, grad_NV in zip((logp_NV, logq_NV), grads, strict=True):
        loss = loss + smoothed_cross_entropy(log_NV, targets_N, smoothing)
        grad_NV += smoothed_cross_entropy_grad_(log_NV, targets_N, smoothing)
    return RDropLoss(loss, grads)


def smoothed_cross_entropy(logp_NV: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
    """Summed cross-entropy with label smoothing."""
    target_sum = logp_NV.gather(1, targets_N[:, None]).sum(dtype=torch.float64)
    if smoothing == 0:
        return -target_sum
    return -(1 - smoothing) * target_sum - smoothing * logp_NV.mean(1).sum(dtype=torch.float64)


def smoothed_cross_entropy_grad_(logp_NV: Tensor, targets_N: Tensor, smoothing: float) -> Tensor:
    """d loss / d logits = p - (1 - smoothing) [target] - smoothing / V, written over logp."""
    grad_NV = logp_NV.exp_()
    if smoothing:
        grad_NV -= smoothing / grad_NV.shape[1]
    index_N1 = targets_N[:, None]
    return grad_NV.scatter_add_(1, index_N1, grad_NV.new_full(index_N1.shape, smoothing - 1))


def symmetric_kl(logp_NV: Tensor, logq_NV: Tensor, weight: float) -> RDropLoss:
    """weight * (KL(p || q) + KL(q || p)), and its gradients for the logits of p and q.

    For p's logits: p (log p - log q - KL(p || q)) + p - q; for q's with p and q exchanged.
    """
    p_NV, q_NV, ratio_NV = logp_NV.exp(), logq_NV.exp(), logp_NV - logq_NV
    pq_N1 = (p_NV * ratio_NV).sum(1, keepdim=True)
    qp_N1 = -(q_NV * ratio_NV).sum(1, keepdim=True)
    loss = weight * (pq_N1.sum(dtype=torch.float64) + qp_N1.sum(dtype=torch.float64))
    grad_p_NV = weight * (p_NV * (ratio_NV - pq_N1) + p_NV - q_NV)
    grad_q_NV = weight * (q_NV * (-ratio_NV - qp_N1) + q_NV - p_NV)
    return RDropLoss(loss, (grad_p_NV, grad_q_NV))
