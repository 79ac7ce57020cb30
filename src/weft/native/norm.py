"""Norms by the compiled kernel, whose rows do not know each other: x [..., D] -> [..., D].

torch's rmsnorm is a dozen small operations on a CPU, each of which costs as much as a row of
numbers; this is one. Within 1e-6 of torch's result.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from weft.native.library import Native
from weft.native.structs import NormStruct


def norm_struct(
    weight_D: Tensor, bias_D: Tensor | None, *, is_centred: bool, eps: float, offset: float
) -> NormStruct:
    """As the library reads it, while the tensors live. `offset` is added to the weight."""
    bias = None if bias_D is None else bias_D.data_ptr()
    return NormStruct(weight_D.data_ptr(), bias, is_centred, eps, offset)


def normalised(library: Native, norm: NormStruct, x: Tensor) -> Tensor:
    """x, float32 on the CPU, row by row."""
    size = x.shape[-1]
    if x.stride(-1) != 1 or x.dim() != 2:
        x = x.contiguous()
    stride = x.stride(0) if x.dim() == 2 else size
    y = x.new_empty(x.shape)
    sizes = (x.numel() // size, size, stride, torch.get_num_threads())
    library.norm(ctypes.addressof(norm), x.data_ptr(), y.data_ptr(), *sizes)
    return y
