"""RoPE scaling rules: base and size -> inv_freq of each pair, in radians per token.

    none     f_i = base ** (-2i / O)                                             Su 2021
    linear   f_i / factor                                                        Chen 2023
    dynamic  a larger base once a sequence is longer than the original length    "dynamic NTK", 2023
    yarn     low frequencies as linear, high ones as none, a ramp between        Peng 2023
    llama3   the same with bounds on the wavelength                              Llama 3.1, 2024

Formulas and float32 steps are those of Hugging Face's modeling_rope_utils, so that angles at large
positions agree with the models trained on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from weft.core.config import Config
from weft.core.errors import Problem


def default_inv_freq(base: float, size: int) -> Tensor:
    """base ** (-2i / size) for each of the size / 2 pairs."""
    return 1.0 / base ** (torch.arange(0, size, 2, device="cpu").float() / size)


class ScalingBase(Config):
    """Base of the rules; by itself, angles as trained."""

    def inv_freq(self, base: float, size: int, length: int) -> Tensor:
        """Radians per token of each of the size / 2 pairs. Only `dynamic` reads the length."""
        return default_inv_freq(base, size)

    @property
    def attention_scaling(self) -> float:
        """Factor on cosine and sine (transformers: attention_factor)."""
        return 1.0

    @property
    def softmax_factor(self) -> float:
        """Factor on the softmax scale of DeepSeek's latent attention; other models have none."""
        return 1.0


class NoScaling(ScalingBase):
    """Angles as trained."""

    kind: Literal["none"] = "none"


class LinearScaling(ScalingBase):
    """All angles divided by one factor: position interpolation."""

    kind: Literal["linear"] = "linear"
    factor: float = Field(ge=1)
    """How many times longer than in training a sequence may be."""

    def inv_freq(self, base: float, size: int, length: int) -> Tensor:
        return default_inv_freq(base, size) / self.factor


class DynamicScaling(ScalingBase):
    """A base that grows with the sequence; up to the original length it is plain RoPE.

    Beyond it, the angles of all earlier tokens change with every new token, so that cached keys
    would be wrong: such sequences run without a KV cache only.
    """

    kind: Literal["dynamic"] = "dynamic"
    factor: float = Field(ge=1)
    """Growth of the base with the length."""
    original_max_len: int = Field(ge=1)
    """Length of the sequences in training."""

    def inv_freq(self, base: float, size: int, length: int) -> Tensor:
        ratio = max(length, self.original_max_len) / self.original_max_len
        growth = (self.factor * ratio - (self.factor - 1)) ** (size / (size - 2))
        return default_inv_freq(base * growth, size)


class YarnScaling(ScalingBase):
    """Low frequencies are interpolated, high ones kept, and the softmax is sharpened slightly."""

    kind: Literal["yarn"] = "yarn"
    factor: float = Field(ge=1)
    """How many times longer than in training a sequence may be."""
    original_max_len: int = Field(ge=1)
    """Length of the sequences in training."""
    beta_fast: float = Field(32.0, gt=0)
    """Pairs with more rotations than this over the original length are kept."""
    beta_slow: float = Field(1.0, gt=0)
    """Pairs with fewer rotations than this are divided by the factor."""
    attention_factor: float | None = Field(None, gt=0)
    """Factor on cosine and sine. None: 0.1 ln(factor) + 1, or the ratio of the same with the two
    mscales if both are set."""
    mscale: float | None = None
    """DeepSeek: weight of ln(factor) in the numerator."""
    mscale_all_dim: float | None = None
    """DeepSeek: weight of ln(factor) in the denominator, and in its softmax scale."""
    truncate: bool = True
    """True: the ramp begins and ends at whole pairs. False: gpt-oss."""

    def cross_checks(self) -> Iterable[Problem]:
        if self.beta_fast < self.beta_slow:
            yield Problem(
                f"beta_fast is {self.beta_fast} but beta_slow is {self.beta_slow}: it counts the "
                f"rotations of faster pairs. Use a beta_fast of at least {self.beta_slow}.",
                ("beta_fast", "beta_slow"),
            )

    def inv_freq(self, base: float, size: int, length: int) -> Tensor:
        low, high = self.correction_range(base, size)
        ramp = (torch.arange(size // 2, device="cpu").float() - low) / (high - low)
        kept = 1 - ramp.clamp(0, 1)
        power = base ** (torch.arange(0, size, 2, device="cpu").float() / size)
        return 1.0 / (self.factor * power) * (1 - kept) + 1.0 / power * kept

    def correction_range(self, base: float, size: int) -> tuple[float, float]:
        """Pair at which interpolation begins, and pair from which on it is complete."""
        low = self.correction_dim(self.beta_fast, base, size)
        high = self.correction_dim(self.beta_slow, base, size)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        return low, high + 0.001 if low == high else high

    def correction_dim(self, num_rotations: float, base: float, size: int) -> float:
        """Number of the pair that makes this many rotations over the original length."""
        wavelength = self.original_max_len / (num_rotations * 2 * math.pi)
        return size * math.log(wavelength) / (2 * math.log(base))

    @property
    def attention_scaling(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self.mscale_of(self.mscale) / self.mscale_of(self.mscale_all_dim)
        return self.mscale_of(1.0)

    @property
    def softmax_factor(self) -> float:
        return self.mscale_of(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def mscale_of(self, weight: float) -> float:
        """0.1 weight ln(factor) + 1 (transformers: get_mscale)."""
        return 1.0 if self.factor <= 1 else 0.1 * weight * math.log(self.factor) + 1.0


class Llama3Scaling(ScalingBase):
    """Long wavelengths are interpolated, short ones kept, a ramp between."""

    kind: Literal["llama3"] = "llama3"
    factor: float = Field(8.0, ge=1)
    """How many times longer than in training a sequence may be."""
    low_frequency_factor: float = Field(1.0, gt=0)
    """Frequencies with a wavelength above original_max_len / this are divided by the factor."""
    high_frequency_factor: float = Field(4.0, gt=0)
    """Frequencies with a wavelength below original_max_len / this are kept."""
    original_max_len: int = Field(8192, ge=1)
    """Length of the sequences in training."""

    def cross_checks(self) -> Iterable[Problem]:
        low, high = self.low_frequency_factor, self.high_frequency_factor
        if high <= low:
            yield Problem(
                f"high_frequency_factor is {high} but low_frequency_factor is {low}: the high one "
                f"must be larger. Use a high_frequency_factor above {low}.",
                ("high_frequency_factor", "low_frequency_factor"),
            )

    def inv_freq(self, base: float, size: int, length: int) -> Tensor:
        low, high = self.low_frequency_factor, self.high_frequency_factor
        plain = default_inv_freq(base, size)
        wavelength = 2 * math.pi / plain
        smooth = (self.original_max_len / wavelength - low) / (high - low)
        ramp = (1 - smooth) * plain / self.factor + smooth * plain
        long = torch.where(wavelength > self.original_max_len / low, plain / self.factor, ramp)
        return torch.where(wavelength < self.original_max_len / high, plain, long)


RopeScaling = Annotated[
    NoScaling | LinearScaling | DynamicScaling | YarnScaling | Llama3Scaling,
    Field(discriminator="kind"),
]
