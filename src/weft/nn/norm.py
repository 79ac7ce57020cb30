"""Normalization of each token's vector: x -> x over its last dimension, D.

    layernorm  (x - mean(x)) / sqrt(var(x) + eps) * weight + bias      Ba 2016
    rmsnorm    x / sqrt(mean(x ** 2) + eps) * weight                   Zhang 2019

eps is inside the root and the variance is divided by D, as in the papers and in trained models.
Statistics are float32 at least, whatever the dtype of x. native/kernels.py chooses between torch
and the compiled kernel, which is used on a CPU where no gradient is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from weft.core.config import Config
from weft.core.errors import Problem
from weft.core.registry import pick
from weft.native.kernels import norm


class NormConfig(Config):
    """Which norm, and where it is placed."""

    kind: Literal["layernorm", "rmsnorm"] = "layernorm"
    eps: float = Field(1e-5, gt=0)
    """Added to the variance, so that a vector of equal numbers is not divided by zero."""
    bias: bool | None = None
    """Whether a layernorm has an additive term. None: yes. An rmsnorm never has one."""
    placement: Literal["before", "after", "both"] = "before"
    """before: x + f(norm(x)). after: norm(x + f(x)), as Vaswani 2017. both: x + norm(f(norm(x))),
    as Gemma 2."""
    unit_offset: bool = False
    """True: the stored weight is the real one minus 1 (Gemma)."""

    @property
    def has_bias(self) -> bool:
        return self.kind == "layernorm" and self.bias is not False

    def for_heads(self, eps: float | None = None) -> NormConfig:
        """An rmsnorm with the same settings, for the heads or latent rows inside attention."""
        return NormConfig(kind="rmsnorm", eps=eps or self.eps, unit_offset=self.unit_offset)

    def cross_checks(self) -> Iterable[Problem]:
        if self.kind == "rmsnorm" and self.bias:
            yield Problem(
                "bias is True but kind is rmsnorm: only a layernorm has a bias. "
                "Leave bias out, or set kind = layernorm.",
                ("bias", "kind"),
            )


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
