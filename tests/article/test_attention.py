"""The article's attention code and its fruit example, compared with every kernel of Weft."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from weft.core.kv_spec import DenseView
from weft.nn.attention.base import AttentionCall
from weft.nn.attention.kernels import KERNELS
from weft.nn.attention.kernels.reference import attention_weights
from weft.nn.attention.masks import Causal


def attention(
    query: Tensor, key: Tensor, value: Tensor, dropout: nn.Module | None = None
) -> tuple[Tensor, Tensor]:
    """Copied from the article."""
    d_k = query.size(-1)
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(d_k)
    p_attn = scores.softmax(dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.matmul(p_attn, value), p_attn


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_every_kernel_gives_the_articles_result() -> None:
    q, k, v = draw(5, 8, seed=1), draw(5, 8, seed=2), draw(5, 8, seed=3)
    expected, expected_weights = attention(q, k, v)
    view = DenseView(k[None, :, None], v[None, :, None])
    for kernel in KERNELS.values():
        out_BTHU, _ = kernel(AttentionCall(q[None, :, None], view))
        torch.testing.assert_close(out_BTHU[0, :, 0], expected)
    weights_BHTS, _ = attention_weights(AttentionCall(q[None, :, None], view))
    torch.testing.assert_close(weights_BHTS[0, 0], expected_weights)


def test_a_mask_is_the_articles_upper_triangle_of_large_negative_numbers() -> None:
    q, k, v = draw(5, 8, seed=1), draw(5, 8, seed=2), draw(5, 8, seed=3)
    upper = torch.full((5, 5), -1e9).triu(1)
    scores = q @ k.T / math.sqrt(8) + upper
    expected = scores.softmax(-1) @ v
    for kernel in KERNELS.values():
        out_BTHU, _ = kernel(
            AttentionCall(q[None, :, None], DenseView(k[None, :, None], v[None, :, None]), Causal())
        )
        torch.testing.assert_close(out_BTHU[0, :, 0], expected)


def test_unlike_the_article_a_fully_masked_query_gets_zero() -> None:
    """Adding -1e9 to all scores of a query gives the mean of all values; Weft returns zeros."""
    q, k, v = draw(1, 8, seed=1), draw(3, 8, seed=2), draw(3, 8, seed=3)
    from_article = (q @ k.T / math.sqrt(8) + torch.full((1, 3), -1e9)).softmax(-1) @ v
    torch.testing.assert_close(from_article[0], v.mean(0))
    for kernel in KERNELS.values():
        view = DenseView(k[None, :, None], v[None, :, None])
        out_BTHU, lse_BHT = kernel(AttentionCall(q[None, :, None], view, ~Causal() & Causal()))
        assert out_BTHU.abs().max() == 0 and lse_BHT.item() == -math.inf


def test_fruit_gives_eight() -> None:
    """The article's retrieval example: apple 0.6, banana 0.4, chair 0.0; values 10, 5, 2."""
    weights = torch.tensor([0.6, 0.4, 0.0])
    values = torch.tensor([10.0, 5.0, 2.0])
    # scores whose softmax is exactly these weights; -inf gives the chair weight 0
    scores = torch.tensor([math.log(0.6), math.log(0.4), -math.inf])
    torch.testing.assert_close(scores.softmax(0), weights)
    k_BSKC = torch.tensor([math.log(0.6), math.log(0.4), -1e4]).view(1, 3, 1, 1)
    q_BTHC = torch.ones(1, 1, 1, 1)
    view = DenseView(k_BSKC, values.view(1, 3, 1, 1))
    weights_BHTS, _ = attention_weights(AttentionCall(q_BTHC, view, scale=1.0))
    torch.testing.assert_close(weights_BHTS.flatten(), weights)
    for kernel in KERNELS.values():
        out_BTHU, _ = kernel(AttentionCall(q_BTHC, view, scale=1.0))
        assert out_BTHU.item() == pytest.approx(8.0, abs=1e-5)


def test_scaling_keeps_the_softmax_from_saturating() -> None:
    """Reason for sqrt(d_k): without it, wide heads put nearly all weight on one key."""
    q, k = draw(64, 256, seed=1), draw(64, 256, seed=2)
    scaled, raw = (q @ k.T / 16).softmax(-1), (q @ k.T).softmax(-1)
    view = DenseView(k[None, :, None], k[None, :, None])
    weights_BHTS, _ = attention_weights(AttentionCall(q[None, :, None], view))
    torch.testing.assert_close(weights_BHTS[0, 0], scaled)
    assert scaled.max(-1).values.mean() < 0.3 < 0.8 < raw.max(-1).values.mean()
