"""The sliced loss against torch's own, value and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.training import loss as module
from weft.training.loss import LossRule, token_loss


def draw(N: int = 11, D: int = 6, V: int = 17) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(N, D, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(V, D, generator=generator, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(V, generator=generator, dtype=torch.float64, requires_grad=True)
    return hidden, weight, bias, torch.randint(0, V, (N,), generator=generator)


def plain(logits: Tensor, targets: Tensor, rule: LossRule) -> Tensor:
    """The same loss as a textbook writes it."""
    both = torch.cat((targets, targets)) if rule.rdrop else targets
    loss = F.cross_entropy(logits, both, reduction="sum", label_smoothing=rule.smoothing)
    if rule.rdrop:
        p, q = logits.log_softmax(-1).chunk(2)
        there = F.kl_div(q, p, log_target=True, reduction="sum")
        back = F.kl_div(p, q, log_target=True, reduction="sum")
        loss = loss + rule.rdrop / 2 * (there + back)
    return loss


@pytest.mark.parametrize("slice_numbers", [1, 40, 1 << 22], ids=["row by row", "two rows", "whole"])
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("rule", [LossRule(), LossRule(0.1), LossRule(0.1, rdrop=5.0)])
def test_it_is_the_textbooks_loss(
    rule: LossRule, has_bias: bool, slice_numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLICE_NUMBERS", slice_numbers)
    hidden, weight, bias, targets = draw(N=12 if rule.rdrop else 11)
    inputs = [hidden, weight, bias] if has_bias else [hidden, weight]
    half = targets[:6] if rule.rdrop else targets
    both = torch.cat((half, half)) if rule.rdrop else targets
    ours = token_loss(hidden, weight, bias if has_bias else None, both, rule)
    theirs = plain(F.linear(hidden, weight, bias if has_bias else None), half, rule)
    torch.testing.assert_close(ours, theirs)
    for a, b in zip(
        torch.autograd.grad(3 * ours, inputs), torch.autograd.grad(3 * theirs, inputs), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_without_gradients_nothing_is_kept() -> None:
    hidden, weight, _, targets = draw()
    with torch.no_grad():
        loss = token_loss(hidden, weight, None, targets, LossRule())
    assert not loss.requires_grad
