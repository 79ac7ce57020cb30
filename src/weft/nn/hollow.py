"""A weight whose numbers live in a packed form alone: a parameter without memory of its own.

It is one NaN that all places share. Shape, size, dtype, identity and so the ties between layers
stay those of the real weight; a product with it is NaN. Most ways to write into it are errors of
torch's; of the others `check_unwritten` tells when the numbers are asked for.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.native.packed import PackedMatrix, dequantize


def hollow(shape: torch.Size) -> Tensor:
    """A tensor of this shape that holds one NaN."""
    return torch.full((), torch.nan).as_strided(shape, (0,) * len(shape))


def is_hollow(weight: Tensor | None) -> bool:
    """Whether a weight is without numbers. No matrix with memory of its own has such strides."""
    strides = () if weight is None else weight.stride()
    return len(strides) > 1 and not any(strides)


def check_unwritten(weight: Tensor) -> None:
    """What is written into a hollow weight would be lost: its numbers are elsewhere."""
    value = float(weight.detach()[(0,) * weight.dim()])
    assert value != value, f"{value:g} was written into a packed weight: unpack its layer before"


def hollow_out(weight: Tensor) -> None:
    """Let go of a weight's numbers, which must be in its packed form by now."""
    with torch.inference_mode(False):
        weight.data = hollow(weight.shape)


def refill(weight: Tensor, packed: PackedMatrix) -> None:
    """Give a hollow weight its numbers back."""
    # outside of inference mode, whose tensors could never be trained
    with torch.inference_mode(False), torch.no_grad():
        weight.data = dequantize(packed).view(weight.shape)


class Whole(torch.autograd.Function):
    """A hollow weight and its packed form -> the numbers, whose gradient is the weight's."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, packed: PackedMatrix) -> Tensor:
        return dequantize(packed).view(weight.shape)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None
