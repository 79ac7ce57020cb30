"""Normalisation of each token's vector: x -> x over its last dimension, D.

    layernorm  (x - mean(x)) / sqrt(var(x) + eps) * weight + bias      Ba 2016
    rmsnorm    x / sqrt(mean(x ** 2) + eps) * weight                   Zhang 2019

Differs from the article, whose code divides by (std + eps) with Bessel's correction in std: here
eps is inside the root and the variance is divided by D, as in the paper and in every trained model.
Statistics are float32 at least, whatever the dtype of x. Where no gradient is wanted, on a CPU, the
compiled kernel computes them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from weft.core.choices import pick
from weft.core.config import Config
from weft.core.errors import Problem
from weft.native.library import native
from weft.native.norm import norm_struct, normalised
from weft.native.structs import NormStruct
from weft.nn.product import is_plain

WIDE = (torch.float32, torch.float64)


class NormConfig(Config):
    """Which norm, and where it stands."""

    kind: Literal["layernorm", "rmsnorm"] = "layernorm"
    eps: float = Field(1e-5, gt=0)
    """Added to the variance, so that a vector of equal numbers is not divided by zero."""
    bias: bool | None = None
    """Whether a layernorm has an additive term. None: yes. An rmsnorm never has one."""
    placement: Literal["before", "after", "both"] = "before"
    """before: x + f(norm(x)). after: norm(x + f(x)), as the article. both: x + norm(f(norm(x))),
    as Gemma 2."""
    unit_offset: bool = False
    """True: the stored weight is the real one minus 1 (Gemma)."""

    @property
    def has_bias(self) -> bool:
        return self.kind == "layernorm" and self.bias is not False

    def for_heads(self, eps: float | None = None) -> NormConfig:
        """The same as an rmsnorm: what stands inside attention, over a head or a latent row."""
        return NormConfig(kind="rmsnorm", eps=eps or self.eps, unit_offset=self.unit_offset)

    def cross_checks(self) -> Iterable[Problem]:
        if self.kind == "rmsnorm" and self.bias:
            yield Problem(
                "bias is True but kind is rmsnorm: only a layernorm has a bias. "
                "Leave bias out, or set kind = layernorm.",
                ("bias", "kind"),
            )


class Norm(nn.Module):
    """What both kinds keep: a weight, and a bias where the settings ask for one."""

    def __init__(self, config: NormConfig, width: int) -> None:
        super().__init__()
        self.config, self.width = config, width
        self.weight = nn.Parameter(torch.full((width,), 0.0 if config.unit_offset else 1.0))
        self.bias = nn.Parameter(torch.zeros(width)) if config.has_bias else None

    def forward(self, x: Tensor) -> Tensor:
        library = native() if self.can_be_compiled(x) else None
        struct = None if library is None else self.struct()
        if library is not None and struct is not None:
            return normalised(library, struct, x)
        dtype = x.dtype if x.dtype in WIDE else torch.float32
        # the 1 is added in the wide dtype: bfloat16 has 8 bits for 1 + weight
        weight_D = cast(self.weight, dtype)
        weight_D = weight_D + 1 if self.config.unit_offset else weight_D
        bias_D = None if self.bias is None else cast(self.bias, dtype)
        return cast(self.normalise(cast(x, dtype), weight_D, bias_D), x.dtype)

    def can_be_compiled(self, x: Tensor) -> bool:
        """Whether x is plain numbers of the right width: not traced, exported or vmapped, which see
        torch's operations alone."""
        if torch.jit._trace.is_tracing() or torch.compiler.is_compiling() or not is_plain(x):
            return False
        is_fit = x.shape[-1:] == (self.width,) and x.numel() > 0
        return is_fit and not torch._C._functorch.is_functorch_wrapped_tensor(x)

    def struct(self) -> NormStruct | None:
        """For the compiled kernel; None where the weights are not plain numbers for it."""
        weight_D, bias_D = self._parameters["weight"], self._parameters.get("bias")
        parts = (weight_D,) if bias_D is None else (weight_D, bias_D)
        if not all(isinstance(p, Tensor) and is_float_cpu(p) for p in parts):
            return None
        assert weight_D is not None, "a norm has a weight"
        config = self.config
        offset, is_centred = float(config.unit_offset), config.kind == "layernorm"
        return norm_struct(weight_D, bias_D, is_centred=is_centred, eps=config.eps, offset=offset)

    def normalise(self, x: Tensor, weight_D: Tensor, bias_D: Tensor | None) -> Tensor:
        """The formula, on numbers that are wide enough for it."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.config.eps:g}"


class LayerNorm(Norm):
    """(x - mean(x)) / sqrt(var(x) + eps) * weight + bias."""

    def normalise(self, x: Tensor, weight_D: Tensor, bias_D: Tensor | None) -> Tensor:
        return F.layer_norm(x, (self.width,), weight_D, bias_D, self.config.eps)


class RMSNorm(Norm):
    """x / sqrt(mean(x ** 2) + eps) * weight."""

    def normalise(self, x: Tensor, weight_D: Tensor, bias_D: Tensor | None) -> Tensor:
        return F.rms_norm(x, (self.width,), weight_D, self.config.eps)


def is_float_cpu(x: Tensor) -> bool:
    return x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous()


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in another dtype; quicker than x.to where it is that already, as in every decoding step."""
    return x if x.dtype == dtype else x.to(dtype)


NORMS: dict[str, type[Norm]] = {"layernorm": LayerNorm, "rmsnorm": RMSNorm}


def build_norm(config: NormConfig, width: int) -> Norm:
    """A fresh norm over vectors of `width` numbers; at first it only normalises."""
    return pick(NORMS, config.kind, "norm")(config, width)
