"""`QuantizedMatrix`: a matrix in 8 or 4 bits per number, in rows as in files -> float32 numbers.

    8 bits    scale * q               q in -128..127    GGUF's Q8_0
    4 bits    scale * q + minimum     q in 0..15        Q4_1; Q4_0 with the minimum -8 scale

Scale and minimum belong to 32 neighboring inputs of one output. A 32-bit word holds 4 or 8
neighboring inputs, the first in its lowest bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Kind = Literal["f32", "q8", "q4"]
BITS: dict[Kind, int] = {"f32": 32, "q8": 8, "q4": 4}
GROUP = 32
"""Inputs that share a scale."""


@dataclass(frozen=True, eq=False)
class QuantizedMatrix:
    """Words [..., I bits / 32] (int32), scales and minima [..., I / 32] (half floats)."""

    words: Tensor
    scales: Tensor
    minima: Tensor | None = None
    """None: 8 bits; else 4."""

    @property
    def kind(self) -> Kind:
        return "q8" if self.minima is None else "q4"

    @property
    def inputs(self) -> int:
        return self.scales.shape[-1] * GROUP

    def numbers(self) -> Tensor:
        """The float32 numbers, [..., I]."""
        return dequantize_blocks(fields_of(self.words, BITS[self.kind]), self.scales, self.minima)


def words_of(quants: Tensor, bits: int) -> Tensor:
    """[..., I] small numbers -> [..., I bits / 32] words."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    fields = (quants.int() & (2**bits - 1)).unflatten(-1, (-1, 32 // bits))
    return (fields << shifts).sum(-1, dtype=torch.int32)


def fields_of(words: Tensor, bits: int) -> Tensor:
    """The way back: [..., words] -> [..., I], as signed bytes or, of 4 bits, as 0..15."""
    if bits == 8:
        return words.contiguous().view(torch.int8)
    pairs = words.contiguous().view(torch.uint8)
    return torch.stack((pairs & 15, pairs >> 4), dim=-1).flatten(-2)


def dequantize_blocks(quants: Tensor, scales: Tensor, minima: Tensor | None) -> Tensor:
    """scale * q + minimum in float32, with the rounding of checkpoint/gguf/dequantize.py. quants:
    [..., I]; scales and minima: [..., I / 32]."""
    weight = quants.float().unflatten(-1, (-1, GROUP))
    scale = scales.float()[..., None]
    if minima is None:
        return weight.mul_(scale).flatten(-2)
    minimum = minima.float()[..., None]
    # Q4_0's own formula is (q - 8) * scale: with q = 8 and a negative scale -0, where a sum gives 0
    is_even = (minimum == -8 * scale) & scale.signbit()
    weight.sub_(8.0 * is_even).mul_(scale)
    return weight.add_(torch.where(is_even, -0.0, minimum)).flatten(-2)


def fits_half(numbers: Tensor) -> bool:
    """Whether half floats hold them exactly, and none is infinite."""
    halves = numbers.half()
    return bool(((halves.float() == numbers.float()) & halves.isfinite()).all())
