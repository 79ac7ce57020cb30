"""The Parameter of a packed weight: identity and shape without memory.

    memoryless(shape)      a stride-0 view of one NaN
    Dequantize             autograd function: dequantized weight; its gradient is the Parameter's

The values are in a PackedMatrix (packed_modules.py). A product with such a Parameter by mistake is
NaN.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.native.packed import PackedMatrix, dequantize


def memoryless(shape: torch.Size) -> Tensor:
    """A tensor of this shape that holds one NaN: a product with it by mistake is NaN."""
    return torch.full((), torch.nan).as_strided(shape, (0,) * len(shape))


def is_memoryless(weight: Tensor) -> bool:
    """No matrix with memory of its own has such strides."""
    strides = weight.stride()
    return len(strides) > 1 and not any(strides)


def check_unwritten(parameter: Tensor) -> None:
    """torch refuses most ways to write into the parameter of a packed weight; fill_ is not one."""
    value = float(parameter.detach()[(0,) * parameter.dim()])
    assert value != value, f"{value:g} was written into a packed weight: unpack the model before"


class Dequantize(torch.autograd.Function):
    """A parameter without memory and its matrix -> the weight, whose gradient is the
    parameter's."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, matrix: PackedMatrix) -> Tensor:
        return dequantize(matrix).view(parameter.shape)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None
