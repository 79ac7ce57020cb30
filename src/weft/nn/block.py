"""One layer of a stack: x_BTD -> x_BTD by self-attention, cross-attention (decoders with a source)
and feed-forward.

after   x = norm(x + f(x))              Vaswani 2017
before  x = x + f(norm(x))              trains deep stacks without warm-up (Xiong 2020)
both    x = x + norm(f(norm(x)))        Gemma
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from weft.nn.attention.base import AttentionContext
from weft.nn.attention.layer import Attention
from weft.nn.config import NormConfig
from weft.nn.dropout import Dropout
from weft.nn.norm import build_norm


class Residual(nn.Module):
    """The path around a sub-layer: `x + f(x)` with its norms and dropout. The sub-layer itself is
    passed to forward."""

    def __init__(self, norm: NormConfig, width: int, dropout: float) -> None:
        super().__init__()
        self.placement = norm.placement
        self.norm = build_norm(norm, width)
        self.norm_out = build_norm(norm, width) if norm.placement == "both" else nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(self, x_BTD: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.placement == "after":
            return self.norm(x_BTD + self.dropout(sublayer(x_BTD)))
        return x_BTD + self.dropout(self.norm_out(sublayer(self.norm(x_BTD))))


class Block(nn.Module):
    """The sub-layers of one layer, each inside its own residual path."""

    def __init__(
        self,
        attention: Attention,
        cross: Attention | None,
        feedforward: nn.Module,
        norm: NormConfig,
        width: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.attention, self.attention_path = attention, Residual(norm, width, dropout)
        self.cross = cross
        self.cross_path = Residual(norm, width, dropout) if cross is not None else None
        self.feedforward, self.feedforward_path = feedforward, Residual(norm, width, dropout)

    def forward(self, x_BTD: Tensor, ctx: AttentionContext) -> Tensor:
        x_BTD = self.attention_path(x_BTD, lambda x: self.attention(x, ctx))
        cross = self.cross
        if cross is not None and self.cross_path is not None:
            x_BTD = self.cross_path(x_BTD, lambda x: cross(x, ctx))
        return self.feedforward_path(x_BTD, self.feedforward)
