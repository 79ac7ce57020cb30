"""Normalization of each token's vector: x -> x over its last dimension, D.

    layernorm  (x - mean(x)) / sqrt(var(x) + eps) * weight + bias      Ba 2016
    rmsnorm    x / sqrt(mean(x ** 2) + eps) * weight                   Zhang 2019

eps is inside the root and the variance is divided by D, as in the papers and in trained models.
Statistics are float32 at least, whatever the dtype of x. native/kernels.py chooses between torch
and the compiled kernel, which is used on a CPU where no gradient is needed.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from weft.core.registry import pick
from weft.native.kernels import norm
from weft.nn.config import NormConfig


class Norm(nn.Module):
    """A weight, and a bias where the settings ask for one. Base of both kinds."""

    kind: Literal["layernorm", "rmsnorm"]

    def __init__(self, config: NormConfig, width: int) -> None:
        super().__init__()
        self.config, self.width = config, width
        self.weight = nn.Parameter(torch.full((width,), 0.0 if config.unit_offset else 1.0))
        self.bias = nn.Parameter(torch.zeros(width)) if config.has_bias else None

    def forward(self, x: Tensor) -> Tensor:
        config = self.config
        return norm(
            *(x, self.weight, self.bias),
            kind=self.kind,
            eps=config.eps,
            unit_offset=config.unit_offset,
        )

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.config.eps:g}"


class LayerNorm(Norm):
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias."""

    kind = "layernorm"


class RMSNorm(Norm):
    """x / sqrt(mean(x ** 2) + eps) * weight."""

    kind = "rmsnorm"


NORMS: dict[str, type[Norm]] = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}


def build_norm(config: NormConfig, width: int) -> Norm:
    """A new norm over vectors of `width` numbers, without scaling at first."""
    return pick(NORMS, config.kind, "norm")(config, width)
