"""RoPE scaling rules: base and size -> inv_freq of each pair, in radians per token.

    none     f_i = base ** (-2i / O)                                             Su 2021
    linear   f_i / factor                                                        Chen 2023
    dynamic  a larger base once a sequence is longer than the original length    "dynamic NTK", 2023
    yarn     low frequencies as linear, high ones as none, a ramp between        Peng 2023
    llama3   the same with bounds on the wavelength                              Llama 3.1, 2024

Formulas and float32 steps are those of Hugging Face's modeling_rope_utils, so that angles at large
positions agree with the models trained on them. The settings of the rules are in config.py.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from weft.nn.positions.config import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    RopeScaling,
    YarnScaling,
)


def inv_freq(scaling: RopeScaling, base: float, size: int, length: int) -> Tensor:
    """Radians per token of each of the size / 2 pairs. Only `dynamic` reads the length."""
    if isinstance(scaling, LinearScaling):
        return default_inv_freq(base, size) / scaling.factor
    if isinstance(scaling, DynamicScaling):
        return dynamic_inv_freq(scaling, base, size, length)
    if isinstance(scaling, YarnScaling):
        return yarn_inv_freq(scaling, base, size)
    if isinstance(scaling, Llama3Scaling):
        return llama3_inv_freq(scaling, base, size)
    return default_inv_freq(base, size)


def default_inv_freq(base: float, size: int) -> Tensor:
    """base ** (-2i / size) for each of the size / 2 pairs."""
    return 1.0 / base ** (torch.arange(0, size, 2, device="cpu").float() / size)


def dynamic_inv_freq(scaling: DynamicScaling, base: float, size: int, length: int) -> Tensor:
    ratio = max(length, scaling.original_max_len) / scaling.original_max_len
    growth = (scaling.factor * ratio - (scaling.factor - 1)) ** (size / (size - 2))
    return default_inv_freq(base * growth, size)


def yarn_inv_freq(scaling: YarnScaling, base: float, size: int) -> Tensor:
    low, high = correction_range(scaling, base, size)
    ramp = (torch.arange(size // 2, device="cpu").float() - low) / (high - low)
    kept = 1 - ramp.clamp(0, 1)
    power = base ** (torch.arange(0, size, 2, device="cpu").float() / size)
    return 1.0 / (scaling.factor * power) * (1 - kept) + 1.0 / power * kept


def correction_range(scaling: YarnScaling, base: float, size: int) -> tuple[float, float]:
    """Pair at which interpolation begins, and pair from which on it is complete."""
    low = correction_dim(scaling, scaling.beta_fast, base, size)
    high = correction_dim(scaling, scaling.beta_slow, base, size)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    return low, high + 0.001 if low == high else high


def correction_dim(scaling: YarnScaling, num_rotations: float, base: float, size: int) -> float:
    """Number of the pair that makes this many rotations over the original length."""
    wavelength = scaling.original_max_len / (num_rotations * 2 * math.pi)
    return size * math.log(wavelength) / (2 * math.log(base))


def llama3_inv_freq(scaling: Llama3Scaling, base: float, size: int) -> Tensor:
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    plain = default_inv_freq(base, size)
    wavelength = 2 * math.pi / plain
    smooth = (scaling.original_max_len / wavelength - low) / (high - low)
    ramp = (1 - smooth) * plain / scaling.factor + smooth * plain
    long = torch.where(wavelength > scaling.original_max_len / low, plain / scaling.factor, ramp)
    return torch.where(wavelength < scaling.original_max_len / high, plain, long)
