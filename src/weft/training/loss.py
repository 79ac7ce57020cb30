"""The training loss: hidden_ND, output embedding weight_VD and targets_N -> summed cross-entropy.

    loss = (1 - smoothing) * -log p[target] + smoothing * mean of -log p     Szegedy 2016
    R-Drop adds the KL divergence between two passes (rdrop.py)              Liang 2021

Differs from the textbook: gradients are computed together with the loss, one chunk of tokens at a
time, and the softmax over the vocabulary is never stored. The logits of a chunk become exp(logits)
in place and are multiplied back immediately, so that memory is chunk x V instead of several times
N x V. The division by the sum, and the subtraction of the target and of the smoothing term, are
applied to the products, which are V / D times smaller.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.training.rdrop import rdrop_loss_and_grads_

CHUNK_ELEMENTS = 1 << 22
"""Logits of a chunk: 16 MB of float32, about the size of a processor's last-level cache."""

SAFE_LOGIT = 60.0
"""exp of logits in -60..60, and sums of them over a vocabulary, are exact enough in float32."""


class LossConfig(NamedTuple):
    """How the loss of a token is computed from its logits."""

    smoothing: float = 0.0
    rdrop: float = 0.0
    """Weight of the R-Drop term. If not 0, hidden and targets have two halves, pass 1 and pass 2,
    with the same targets."""


def token_loss(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    config: LossConfig,
) -> Tensor:
    """The summed loss of all tokens, differentiable in hidden, weight and bias."""
    assert len(hidden_ND) == len(targets_N), (
        f"{len(hidden_ND)} vectors but {len(targets_N)} targets"
    )
    loss, _ = ChunkedLossFunction.apply(hidden_ND, weight_VD, bias_V, targets_N, config)
    return loss


class ChunkedLossFunction(torch.autograd.Function):
    """Computes the gradients in forward, as the logits exist only there; backward scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        config: LossConfig,
    ) -> tuple[Tensor, None]:
        chunked = ChunkedCrossEntropy(
            hidden_ND.detach(), weight_VD.detach(), bias_V, targets_N, config
        )
        needs_grad = any(ctx.needs_input_grad[:3])
        loss = chunked.run(needs_grad)
        if needs_grad:
            ctx.save_for_backward(chunked.d_hidden_ND, chunked.d_weight_VD)
            ctx.d_bias_V = chunked.d_bias_V
        return loss, None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden_ND, d_weight_VD = ctx.saved_tensors
        factor = grads[0]
        d_bias_V = None if ctx.d_bias_V is None else ctx.d_bias_V * factor
        return d_hidden_ND * factor, d_weight_VD * factor, d_bias_V, None, None


class ChunkedCrossEntropy:
    """One pass over the tokens in chunks; accumulates the gradients."""

    def __init__(
        self,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        config: LossConfig,
    ) -> None:
        self.hidden_ND, self.weight_VD, self.bias_V = hidden_ND, weight_VD, bias_V
        self.targets_N, self.config = targets_N, config
        self.num_passes = 2 if config.rdrop else 1
        self.chunk_size = max(1, CHUNK_ELEMENTS // (len(weight_VD) * self.num_passes))
        if config.rdrop:
            half = len(targets_N) // 2
            assert targets_N[:half].equal(targets_N[half:]), "the two passes have unlike targets"
        self.d_hidden_ND = torch.empty_like(hidden_ND)
        self.d_weight_VD = torch.zeros_like(weight_VD)
        self.d_bias_V = None if bias_V is None else torch.zeros_like(bias_V)

    def run(self, needs_grad: bool) -> Tensor:
        """The summed loss; fills the gradients if `needs_grad`."""
        total = self.hidden_ND.new_zeros((), dtype=torch.float64)
        N, size = len(self.hidden_ND) // self.num_passes, self.chunk_size
        for begin in range(0, N, size):
            end = min(begin + size, N)
            rows = [slice(p * N + begin, p * N + end) for p in range(self.num_passes)]
            if len(rows) == 1:
                total += self.cross_entropy_chunk(rows[0], needs_grad)
            else:
                total += self.rdrop_chunk(rows, needs_grad)
        return total.to(self.hidden_ND.dtype)

    def rdrop_chunk(self, rows: list[slice], needs_grad: bool) -> Tensor:
        """Loss of the same tokens in both passes."""
        first_NV, second_NV = (self.hidden_ND[part] @ self.weight_VD.T for part in rows)
        if self.bias_V is not None:
            first_NV += self.bias_V
            second_NV += self.bias_V
        targets_N, config = self.targets_N[rows[0]], self.config
        loss, grads = rdrop_loss_and_grads_(
            first_NV, second_NV, targets_N, config.smoothing, config.rdrop
        )
        if needs_grad:
            for grad_NV, part in zip(grads, rows, strict=True):
                self.add_grads(grad_NV, part)
        return loss

    def cross_entropy_chunk(self, rows: slice, needs_grad: bool) -> Tensor:
        """Loss of one chunk of a single pass."""
        targets_N, smoothing = self.targets_N[rows], self.config.smoothing
        logits_NV = self.logits(rows)
        target_logits_N = logits_NV.gather(1, targets_N[:, None]).squeeze(1).double()
        mean_logits_N = self.mean_logits(self.hidden_ND[rows]).double()
        shift_N1 = None if self.exp_is_safe else logits_NV.amax(1, keepdim=True)
        exp_NV = (logits_NV if shift_N1 is None else logits_NV.sub_(shift_N1)).exp_()
        sums_N1 = exp_NV.sum(1, keepdim=True)
        lse_N1 = sums_N1.log() if shift_N1 is None else shift_N1 + sums_N1.log()
        lse_N = lse_N1.squeeze(1).double()
        if needs_grad:
            self.add_softmax_grads(exp_NV, 1 / sums_N1, rows)
        return (lse_N - (1 - smoothing) * target_logits_N - smoothing * mean_logits_N).sum()

    @cached_property
    def mean_embedding_D(self) -> Tensor:
        return self.weight_VD.mean(0)

    @cached_property
    def logits_buffer(self) -> Tensor:
        """Reused by all chunks: allocating fresh memory costs a third of the matrix product."""
        num_rows = min(self.chunk_size, len(self.hidden_ND))
        return self.weight_VD.new_empty(num_rows * len(self.weight_VD))

    @cached_property
    def exp_is_safe(self) -> bool:
        """Whether all logits are within SAFE_LOGIT, by |h . w| <= |h| |w|. Then exp needs no shift
        by the maximum, which saves two passes over all logits. False for NaN."""
        bound = self.hidden_ND.norm(dim=1).max() * self.weight_VD.norm(dim=1).max()
        offset = 0.0 if self.bias_V is None else self.bias_V.detach().abs().max()
        return bool(bound + offset < SAFE_LOGIT)

    def mean_logits(self, hidden_ND: Tensor) -> Tensor:
        """The mean over the vocabulary of each token's logits, from the mean embedding."""
        mean_N = hidden_ND @ self.mean_embedding_D
        return mean_N if self.bias_V is None else mean_N + self.bias_V.mean()

    def logits(self, rows: slice) -> Tensor:
        """logits_NV as a transposed view of a [V, N] product, which is a third faster with the long
        side first. Overwrites the logits of the previous chunk."""
        hidden_DN = self.hidden_ND[rows].T
        V, N = len(self.weight_VD), hidden_DN.shape[1]
        logits_VN = self.logits_buffer[: V * N].view(V, N)
        if self.bias_V is None:
            return torch.mm(self.weight_VD, hidden_DN, out=logits_VN).T
        return torch.addmm(self.bias_V[:, None], self.weight_VD, hidden_DN, out=logits_VN).T

    def add_softmax_grads(self, exp_NV: Tensor, scale_N1: Tensor, rows: slice) -> None:
        """Add the gradients for grad = exp * scale - (1 - smoothing) [target] - smoothing / V,
        without materializing grad."""
        hidden_ND, targets_N, V = self.hidden_ND[rows], self.targets_N[rows], len(self.weight_VD)
        on_target, on_others = 1 - self.config.smoothing, self.config.smoothing / V
        d_hidden_ND = self.d_hidden_ND[rows]
        torch.mm(exp_NV, self.weight_VD, out=d_hidden_ND)
        d_hidden_ND.mul_(scale_N1).sub_(self.weight_VD[targets_N], alpha=on_target)
        d_hidden_ND.sub_(self.mean_embedding_D, alpha=self.config.smoothing)
        self.d_weight_VD.addmm_(exp_NV.T, hidden_ND * scale_N1)
        self.d_weight_VD.index_add_(0, targets_N, hidden_ND, alpha=-on_target)
        self.d_weight_VD.sub_(hidden_ND.sum(0), alpha=on_others)
        if self.d_bias_V is not None:
            self.d_bias_V.add_(scale_N1.squeeze(1) @ exp_NV).sub_(on_others * len(hidden_ND))
            ones_N = torch.ones_like(targets_N, dtype=exp_NV.dtype)
            self.d_bias_V.index_add_(0, targets_N, ones_N, alpha=-on_target)

    def add_grads(self, grad_NV: Tensor, rows: slice) -> None:
        """Add the gradients for a given gradient of the logits."""
        torch.mm(grad_NV, self.weight_VD, out=self.d_hidden_ND[rows])
        self.d_weight_VD.addmm_(grad_NV.T, self.hidden_ND[rows])
        if self.d_bias_V is not None:
            self.d_bias_V += grad_NV.sum(0)
