"""LM head: x_BTD -> logits_BTV, a product with a word table, which may be tied to the embedding's.
And BERT's pooler: x_BTD -> x_BD, one vector per text."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.config import LMHeadConfig, NormConfig
from weft.nn.linear import Linear, linear_range
from weft.nn.norm import build_norm


class LMHead(nn.Module):
    """logits = softcap(transform(x) * scale . words^T + bias)."""

    def __init__(
        self, config: LMHeadConfig, words: nn.Embedding, norm: NormConfig, tied: bool
    ) -> None:
        super().__init__()
        vocab_size, width = words.weight.shape
        self.scale, self.softcap = config.scale, config.softcap
        self.weight = words.weight if tied else nn.Parameter(torch.empty_like(words.weight))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if config.bias else None
        self.transform = Transform(width, norm) if config.transform else nn.Identity()

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.apply_softcap(self.project(self.pre_projection(x_BTD)))

    def logit_of(self, x_ND: Tensor, token: int) -> Tensor:
        """The logits of one token, logits_N. Of a packed head they have the bits of `forward`."""
        logits_N1 = self.project(self.pre_projection(x_ND), slice(token, token + 1))
        return self.apply_softcap(logits_N1)[:, 0]

    def project(self, x: Tensor, outputs: slice | None = None) -> Tensor:
        """The product with the word table, or with a range of its rows."""
        return linear_range(x, self.weight, self.bias, outputs)

    def pre_projection(self, x: Tensor) -> Tensor:
        """The input of the product."""
        x = self.transform(x)
        return x if self.scale == 1.0 else x * self.scale

    def apply_softcap(self, logits: Tensor) -> Tensor:
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


class Transform(nn.Module):
    """norm(gelu(x W + b)), between BERT's last layer and its word table."""

    def __init__(self, width: int, norm: NormConfig) -> None:
        super().__init__()
        self.dense = Linear(width, width)
        self.norm = build_norm(norm, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.norm(F.gelu(self.dense(x_BTD)))


class Pooler(nn.Module):
    """tanh(x_0 W + b): BERT's vector of a text, trained by next-sentence prediction."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = Linear(width, width)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.tanh(self.dense(x_BTD[:, 0]))
