"""The article's MLP is kind relu without bias: the same weights give the same output."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from weft.nn.config import MLPConfig
from weft.nn.feedforward import build_feedforward

B, T, D, INNER = 2, 5, 12, 28


class MLP(nn.Module):
    """Feed-forward network used in Transformers."""

    def __init__(self, dim: int, hidden_dim: int, dropout: float):
        super().__init__()
        self.w1 = nn.Linear(dim, hidden_dim, bias=False)
        self.w2 = nn.Linear(hidden_dim, dim, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return self.dropout(self.w2(F.relu(self.w1(x))))


def ours_of(article: MLP) -> nn.Module:
    ours = build_feedforward(MLPConfig(width=INNER, bias=False), D)
    ours.load_state_dict({"up.weight": article.w1.weight, "down.weight": article.w2.weight})
    return ours


def test_ours_is_bit_identical_to_the_articles() -> None:
    article = MLP(D, INNER, dropout=0.0)
    x_BTD = torch.randn(B, T, D)
    assert torch.equal(ours_of(article)(x_BTD), article(x_BTD))


def test_gradients_equal_the_articles() -> None:
    article = MLP(D, INNER, dropout=0.0)
    ours, x_BTD, weight_BTD = ours_of(article), torch.randn(B, T, D), torch.randn(B, T, D)
    (article(x_BTD) * weight_BTD).sum().backward()
    (ours(x_BTD) * weight_BTD).sum().backward()
    torch.testing.assert_close(ours.up.weight.grad, article.w1.weight.grad)
    torch.testing.assert_close(ours.down.weight.grad, article.w2.weight.grad)


def test_the_articles_dropout_is_applied_to_the_output() -> None:
    """In Weft the block applies it before the residual connection (nn/block.py)."""
    article, x_BTD = MLP(D, INNER, dropout=0.5), torch.randn(B, T, D)
    ours = ours_of(article)
    torch.manual_seed(1)
    expected = article(x_BTD)
    torch.manual_seed(1)
    assert torch.equal(F.dropout(ours(x_BTD), 0.5), expected)
