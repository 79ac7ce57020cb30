"""The training loss: hidden_ND, a word table and targets_N -> summed loss. The softmax over the
vocabulary is never stored.

    loss = (1 - smoothing) * -log p[target] + smoothing * mean of -log p     Szegedy 2016
    R-Drop: + what two passes differ in, by agreement.py                     Liang 2021

Differs from the textbook: gradients are made together with the loss, a slice of tokens at a time.
Logits of a slice are turned into exp(logits) in place and multiplied back at once, so that memory
is slice x V instead of several times N x V. Dividing by the sum, and taking the target and the
smoothing away, is done on the products, which are V / D times smaller.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from weft.training.agreement import agree_

SLICE_NUMBERS = 1 << 22
"""Logits in flight at once: 16 MB of float32, about what a processor's last cache holds."""

TAME = 60.0
"""Logits up to here, of either sign, have an exp and a sum of exps that float32 holds well."""


class LossRule(NamedTuple):
    """How a token's loss is made from its logits."""

    smoothing: float = 0.0
    rdrop: float = 0.0
    """Weight of the agreement between two passes; hidden and targets then have two halves, pass 1
    and pass 2, with the same targets."""


def token_loss(
    hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, targets_N: Tensor, rule: LossRule
) -> Tensor:
    """The summed loss of all tokens, as one number with gradients for hidden, weight and bias."""
    assert len(hidden_ND) == len(targets_N), (
        f"{len(hidden_ND)} vectors but {len(targets_N)} targets"
    )
    loss, _ = SlicedLoss.apply(hidden_ND, weight_VD, bias_V, targets_N, rule)
    return loss


class SlicedLoss(torch.autograd.Function):
    """Loss and gradients in one walk over the tokens."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        rule: LossRule,
    ) -> tuple[Tensor, None]:
        walk = Walk(hidden_ND.detach(), weight_VD.detach(), bias_V, targets_N, rule)
        wants_gradient = any(ctx.needs_input_grad[:3])
        loss = walk.run(wants_gradient)
        if wants_gradient:
            ctx.save_for_backward(walk.d_hidden_ND, walk.d_weight_VD)
            ctx.d_bias_V = walk.d_bias_V
        return loss, None

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_hidden_ND, d_weight_VD = ctx.saved_tensors
        factor = grads[0]
        d_bias_V = None if ctx.d_bias_V is None else ctx.d_bias_V * factor
        return d_hidden_ND * factor, d_weight_VD * factor, d_bias_V, None, None


class Walk:
    """One walk over the tokens; holds the gradients that it adds up."""

    def __init__(
        self,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        rule: LossRule,
    ) -> None:
        self.hidden_ND, self.weight_VD, self.bias_V = hidden_ND, weight_VD, bias_V
        self.targets_N, self.rule = targets_N, rule
        passes = 2 if rule.rdrop else 1
        self.size = max(1, SLICE_NUMBERS // (len(weight_VD) * passes))
        if rule.rdrop:
            half = len(targets_N) // 2
            assert targets_N[:half].equal(targets_N[half:]), "two passes with unlike targets"
        self.d_hidden_ND = torch.empty_like(hidden_ND)
        self.d_weight_VD = torch.zeros_like(weight_VD)
        self.d_bias_V = None if bias_V is None else torch.zeros_like(bias_V)

    def run(self, wants_gradient: bool) -> Tensor:
        """The summed loss."""
        total = self.hidden_ND.new_zeros((), dtype=torch.float64)
        passes = 2 if self.rule.rdrop else 1
        N, size = len(self.hidden_ND) // passes, self.size
        for begin in range(0, N, size):
            slices = [slice(p * N + begin, p * N + min(begin + size, N)) for p in range(passes)]
            total += self.one_slice(slices, wants_gradient)
        return total.to(self.hidden_ND.dtype)

    def one_slice(self, slices: list[slice], wants_gradient: bool) -> Tensor:
        """Loss of some tokens (in every pass); their logits become their own gradient."""
        if len(slices) == 1:
            return self.plain_slice(slices[0], wants_gradient)
        first, second = (self.hidden_ND[rows] @ self.weight_VD.T for rows in slices)
        if self.bias_V is not None:
            first += self.bias_V
            second += self.bias_V
        rule = self.rule
        found = agree_(first, second, self.targets_N[slices[0]], rule.smoothing, rule.rdrop)
        if wants_gradient:
            for slope_NV, rows in zip(found.slopes, slices, strict=True):
                self.add_gradient(slope_NV, rows)
        return found.loss

    def plain_slice(self, rows: slice, wants_gradient: bool) -> Tensor:
        """One pass: p stays unnormalised, and what is added to it for the gradient is added to the
        much smaller products instead."""
        hidden_ND, targets_N, smoothing = (
            self.hidden_ND[rows],
            self.targets_N[rows],
            self.rule.smoothing,
        )
        logits_NV = self.logits(rows)
        picked_N = logits_NV.gather(1, targets_N[:, None]).squeeze(1).double()
        means_N = self.mean_logits(hidden_ND).double()
        shift_N1 = None if self.is_tame else logits_NV.amax(1, keepdim=True)
        exp_NV = (logits_NV if shift_N1 is None else logits_NV.sub_(shift_N1)).exp_()
        sums_N1 = exp_NV.sum(1, keepdim=True)
        logs_N1 = sums_N1.log() if shift_N1 is None else shift_N1 + sums_N1.log()
        lse_N = logs_N1.squeeze(1).double()
        if wants_gradient:
            self.add_plain_gradient(exp_NV, 1 / sums_N1, rows)
        return (lse_N - (1 - smoothing) * picked_N - smoothing * means_N).sum()

    @cached_property
    def mean_word_D(self) -> Tensor:
        return self.weight_VD.mean(0)

    @cached_property
    def room(self) -> Tensor:
        """For the logits of every slice of one pass: fresh memory costs a third of the product."""
        rows = min(self.size, len(self.hidden_ND))
        return self.weight_VD.new_empty(rows * len(self.weight_VD))

    @cached_property
    def is_tame(self) -> bool:
        """Whether no logit can leave -TAME..TAME, as |h . w| <= |h| |w|: then exp needs no shift,
        which saves two walks over all logits. NaN is not tame."""
        lengths = self.hidden_ND.norm(dim=1).max() * self.weight_VD.norm(dim=1).max()
        offset = 0.0 if self.bias_V is None else self.bias_V.detach().abs().max()
        return bool(lengths + offset < TAME)

    def mean_logits(self, hidden_ND: Tensor) -> Tensor:
        """The mean over the vocabulary of each token's logits, by way of the mean word."""
        mean_N = hidden_ND @ self.mean_word_D
        return mean_N if self.bias_V is None else mean_N + self.bias_V.mean()

    def logits(self, rows: slice) -> Tensor:
        """logits_NV, which lie in memory as [V, N], as the product with the long side first is a
        third faster; they are written over those of the slice before."""
        hidden_DN = self.hidden_ND[rows].T
        V, N = len(self.weight_VD), hidden_DN.shape[1]
        logits_VN = self.room[: V * N].view(V, N)
        if self.bias_V is None:
            return torch.mm(self.weight_VD, hidden_DN, out=logits_VN).T
        return torch.addmm(self.bias_V[:, None], self.weight_VD, hidden_DN, out=logits_VN).T

    def add_plain_gradient(self, exp_NV: Tensor, scale_N1: Tensor, rows: slice) -> None:
        """slope = exp * scale - (1 - smoothing) [target] - smoothing / V, never written out."""
        hidden_ND, targets_N, V = self.hidden_ND[rows], self.targets_N[rows], len(self.weight_VD)
        picked, spread = 1 - self.rule.smoothing, self.rule.smoothing / V
        d_hidden_ND = self.d_hidden_ND[rows]
        torch.mm(exp_NV, self.weight_VD, out=d_hidden_ND)
        d_hidden_ND.mul_(scale_N1).sub_(self.weight_VD[targets_N], alpha=picked)
        d_hidden_ND.sub_(self.mean_word_D, alpha=self.rule.smoothing)
        self.d_weight_VD.addmm_(exp_NV.T, hidden_ND * scale_N1)
        self.d_weight_VD.index_add_(0, targets_N, hidden_ND, alpha=-picked)
        self.d_weight_VD.sub_(hidden_ND.sum(0), alpha=spread)
        if self.d_bias_V is not None:
            self.d_bias_V.add_(scale_N1.squeeze(1) @ exp_NV).sub_(spread * len(hidden_ND))
            ones_N = torch.ones_like(targets_N, dtype=exp_NV.dtype)
            self.d_bias_V.index_add_(0, targets_N, ones_N, alpha=-picked)

    def add_gradient(self, slope_NV: Tensor, rows: slice) -> None:
        torch.mm(slope_NV, self.weight_VD, out=self.d_hidden_ND[rows])
        self.d_weight_VD.addmm_(slope_NV.T, self.hidden_ND[rows])
        if self.d_bias_V is not None:
            self.d_bias_V += slope_NV.sum(0)
