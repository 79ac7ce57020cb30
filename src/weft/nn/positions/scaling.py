"""Scaling rules of rotary positions: base and size -> the speed of each pair, in radians a token.

    none     s_i = base ** (-2i / O)                                         Su 2021
    linear   s_i / factor                                                    Chen 2023
    dynamic  a larger base once a sequence outgrows the original length      "dynamic NTK", 2023
    yarn     slow pairs as linear, fast ones as none, a ramp between         Peng 2023
    llama3   the same idea with bounds on the wave length                    Llama 3.1, 2024

Formulas and float32 steps are those of Hugging Face's modeling_rope_utils, so that angles far out
agree with the models trained on them.
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


def plain_speeds(base: float, size: int) -> Tensor:
    """base ** (-2i / size) for each of the size / 2 pairs."""
    return 1.0 / base ** (torch.arange(0, size, 2, device="cpu").float() / size)


class Scaling(Config):
    """What every rule answers; by itself, angles as they were trained."""

    def speeds(self, base: float, size: int, length: int) -> Tensor:
        """Radians a token of each of the size / 2 pairs. Only `dynamic` reads the length."""
        return plain_speeds(base, size)

    @property
    def magnitude(self) -> float:
        """Cosine and sine are multiplied by this."""
        return 1.0

    @property
    def score_factor(self) -> float:
        """DeepSeek's latent attention multiplies its scale by this; no other model does."""
        return 1.0


class NoScaling(Scaling):
    """Angles as they were trained."""

    kind: Literal["none"] = "none"


class LinearScaling(Scaling):
    """All angles divided by one factor: position interpolation."""

    kind: Literal["linear"] = "linear"
    factor: float = Field(ge=1)
    """How many times longer than trained a sequence may be."""

    def speeds(self, base: float, size: int, length: int) -> Tensor:
        return plain_speeds(base, size) / self.factor


class DynamicScaling(Scaling):
    """A base that grows with the sequence; below the original length nothing changes.

    Beyond it, earlier outputs change with the length, so rows that a cache keeps of deeper layers
    are those of a shorter text: the rule's own limit, in every implementation.
    """

    kind: Literal["dynamic"] = "dynamic"
    factor: float = Field(ge=1)
    """How strongly the base grows."""
    original_max_len: int = Field(ge=1)
    """Tokens the model was trained on."""

    def speeds(self, base: float, size: int, length: int) -> Tensor:
        ratio = max(length, self.original_max_len) / self.original_max_len
        growth = (self.factor * ratio - (self.factor - 1)) ** (size / (size - 2))
        return plain_speeds(base * growth, size)


class YarnScaling(Scaling):
    """Slow pairs are interpolated, fast ones kept, and attention is sharpened a little."""

    kind: Literal["yarn"] = "yarn"
    factor: float = Field(ge=1)
    """How many times longer than trained a sequence may be."""
    original_max_len: int = Field(ge=1)
    """Tokens the model was trained on."""
    beta_fast: float = Field(32.0, gt=0)
    """Pairs that turn more often than this over the original length are kept."""
    beta_slow: float = Field(1.0, gt=0)
    """Pairs that turn less often than this are divided by the factor."""
    attention_factor: float | None = Field(None, gt=0)
    """Cosine and sine are multiplied by this. None: 0.1 ln(factor) + 1, or the ratio of the same
    with the two mscales where both are given."""
    mscale: float | None = None
    """DeepSeek: weight of ln(factor) in the numerator."""
    mscale_all_dim: float | None = None
    """DeepSeek: weight of ln(factor) in the denominator, and in its attention's scale."""
    truncate: bool = True
    """True: the ramp begins and ends at whole pairs. False: gpt-oss."""

    def cross_checks(self) -> Iterable[Problem]:
        if self.beta_fast < self.beta_slow:
            yield Problem(
                f"beta_fast is {self.beta_fast} but beta_slow is {self.beta_slow}: fast pairs turn "
                f"more often than slow ones. Use a beta_fast of at least {self.beta_slow}.",
                ("beta_fast", "beta_slow"),
            )

    def speeds(self, base: float, size: int, length: int) -> Tensor:
        low, high = self.ramp_ends(base, size)
        ramp = (torch.arange(size // 2, device="cpu").float() - low) / (high - low)
        kept = 1 - ramp.clamp(0, 1)
        power = base ** (torch.arange(0, size, 2, device="cpu").float() / size)
        return 1.0 / (self.factor * power) * (1 - kept) + 1.0 / power * kept

    def ramp_ends(self, base: float, size: int) -> tuple[float, float]:
        """Pair at which interpolation begins, and pair from which on it is complete."""
        low = self.pair_that_turns(self.beta_fast, base, size)
        high = self.pair_that_turns(self.beta_slow, base, size)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, size - 1)
        return low, high + 0.001 if low == high else high

    def pair_that_turns(self, times: float, base: float, size: int) -> float:
        """Number of the pair that makes this many turns over the original length."""
        turns = self.original_max_len / (times * 2 * math.pi)
        return size * math.log(turns) / (2 * math.log(base))

    @property
    def magnitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self.sharpness(self.mscale) / self.sharpness(self.mscale_all_dim)
        return self.sharpness(1.0)

    @property
    def score_factor(self) -> float:
        return self.sharpness(self.mscale_all_dim) ** 2 if self.mscale_all_dim else 1.0

    def sharpness(self, weight: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * weight * math.log(self.factor) + 1.0


class Llama3Scaling(Scaling):
    """Long waves are interpolated, short ones kept, a ramp between."""

    kind: Literal["llama3"] = "llama3"
    factor: float = Field(8.0, ge=1)
    """How many times longer than trained a sequence may be."""
    low_frequency_factor: float = Field(1.0, gt=0)
    """Waves longer than original_max_len / this are divided by the factor."""
    high_frequency_factor: float = Field(4.0, gt=0)
    """Waves shorter than original_max_len / this are kept."""
    original_max_len: int = Field(8192, ge=1)
    """Tokens the model was trained on."""

    def cross_checks(self) -> Iterable[Problem]:
        low, high = self.low_frequency_factor, self.high_frequency_factor
        if high <= low:
            yield Problem(
                f"high_frequency_factor is {high} but low_frequency_factor is {low}: the high one "
                f"must be larger. Use a high_frequency_factor above {low}.",
                ("high_frequency_factor", "low_frequency_factor"),
            )

    def speeds(self, base: float, size: int, length: int) -> Tensor:
        low, high = self.low_frequency_factor, self.high_frequency_factor
        plain = plain_speeds(base, size)
        wave = 2 * math.pi / plain
        smooth = (self.original_max_len / wave - low) / (high - low)
        ramp = (1 - smooth) * plain / self.factor + smooth * plain
        long = torch.where(wave > self.original_max_len / low, plain / self.factor, ramp)
        return torch.where(wave < self.original_max_len / high, plain, long)


RotaryScaling = Annotated[
    NoScaling | LinearScaling | DynamicScaling | YarnScaling | Llama3Scaling,
    Field(discriminator="kind"),
]
