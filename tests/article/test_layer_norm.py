"""The article's LayerNorm compared with Weft's: where they agree, and where they differ on purpose.

The article divides by (std + eps), where std has Bessel's correction (it divides by D - 1).
Weft, like Ba 2016 and all pretrained models, divides by sqrt(var + eps) with var over D.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

from weft.nn.config import NormConfig
from weft.nn.norm import build_norm

B, T, D = 2, 5, 12


class LayerNorm(nn.Module):
    """Layer-norm implementation."""

    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a_2 = nn.Parameter(torch.ones(features))
        self.b_2 = nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        std = x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2


def both(eps: float) -> tuple[nn.Module, nn.Module]:
    """The article's norm and Weft's, with the same random weights."""
    article, ours = LayerNorm(D, eps), build_norm(NormConfig(kind="layernorm", eps=eps), D)
    weight, bias = torch.randn(D), torch.randn(D)
    article.load_state_dict({"a_2": weight, "b_2": bias})
    ours.load_state_dict({"weight": weight, "bias": bias})
    return article, ours


def corrected(article: nn.Module, y: torch.Tensor) -> torch.Tensor:
    """The article's output without Bessel's correction: (y - b_2) * sqrt(D / (D - 1)) + b_2."""
    return (y - article.b_2) * (D / (D - 1)) ** 0.5 + article.b_2


def test_ours_equals_the_articles_without_bessels_correction() -> None:
    article, ours = both(eps=1e-12)
    x_BTD = torch.randn(B, T, D)
    torch.testing.assert_close(ours(x_BTD), corrected(article, article(x_BTD)))


def test_with_bessels_correction_they_differ() -> None:
    article, ours = both(eps=1e-12)
    x_BTD = torch.randn(B, T, D)
    assert (ours(x_BTD) - article(x_BTD)).abs().max() > 0.01


def test_eps_is_added_to_the_variance_here_and_to_the_deviation_there() -> None:
    article, ours = both(eps=0.01)
    x_BTD = torch.randn(B, T, D) * 0.1
    theirs, mine = article(x_BTD) - article.b_2, ours(x_BTD) - ours.bias
    std = x_BTD.std(-1, keepdim=True)
    var = x_BTD.var(-1, keepdim=True, correction=0)
    # equal numerators: only the divisors differ
    torch.testing.assert_close(theirs * (std + 0.01), mine * (var + 0.01).sqrt())
    assert ((std + 0.01) / (var + 0.01).sqrt() - 1).abs().min() > 0.01


def test_a_constant_input_gives_the_bias_in_both() -> None:
    article, ours = both(eps=1e-6)
    x_BTD = torch.full((1, 1, D), 3.0)
    assert torch.equal(article(x_BTD)[0, 0], article.b_2)
    assert torch.equal(ours(x_BTD)[0, 0], ours.bias)


@pytest.mark.parametrize("x", [-2.0, 5.0])
def test_width_one_is_undefined_there_and_gives_the_bias_here(x: float) -> None:
    article, ours = LayerNorm(1), build_norm(NormConfig(), 1)
    assert ours(torch.tensor([x])).item() == 0.0
    with pytest.warns(UserWarning, match="degrees of freedom"):
        assert article(torch.tensor([x])).isnan()
