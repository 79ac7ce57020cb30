"""Attention patterns from the literature: a few numbers -> a mask. Add `& Causal()` for a decoder.

window(3)          dilated(3, 2)       strided(3)          global_tokens(1) | window(2)
x x x . . .        x . x . x .         x x x x . .         x x x x x x
x x x x . .        . x . x . x         x x x x x .         x x x . . .
x x x x x .        x . x . x .         x x x x x x         x x x x . .
. x x x x x        . x . x . x         x x x x x x         x . x x x .
"""

from __future__ import annotations

import torch
from torch import Tensor

from weft.nn.attention.masks.algebra import MaskBase
from weft.nn.attention.masks.kinds import Blocks, Causal, Global, Prefix, Strided, Window


def window(size: int) -> MaskBase:
    """Keys nearer than `size`, on both sides (Beltagy 2020)."""
    return Window(size)


def dilated(size: int, step: int) -> MaskBase:
    """A window of `size` keys on each side with gaps of `step`: it reaches `step` times as far
    (Beltagy 2020)."""
    return Window(size * step) & Strided(step)


def strided(stride: int) -> MaskBase:
    """The near keys, and every stride-th one farther away (Child 2019, "strided")."""
    return Window(stride) | Strided(stride)


def global_tokens(tokens: int | tuple[int, ...]) -> MaskBase:
    """The first n slots, or the listed slots, attend to all and are attended to by all (Beltagy
    2020)."""
    return Global(tokens)


def prefix(lengths_B: Tensor) -> MaskBase:
    """Prefix language model: bidirectional in the prefix, causal after it (Raffel 2020)."""
    return Causal() | Prefix(lengths_B)


def random_blocks(num_blocks: int, size: int, keys: int, generator: torch.Generator) -> MaskBase:
    """Each block of queries attends to itself and to `keys` random blocks (Zaheer 2020)."""
    order = torch.rand(num_blocks, num_blocks, generator=generator).argsort(dim=1)
    pattern = (order < keys) | torch.eye(num_blocks, dtype=torch.bool)
    return Blocks(pattern, size)
