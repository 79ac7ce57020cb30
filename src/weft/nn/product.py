"""y = x W^T + bias with rows that do not know each other: x [..., I] -> y [..., O].

A packed weight gives each row the same bits alone, among others, and on any number of threads. It
does so by the compiled product (native/csrc/linear.cpp), or without it by torch's product on
tiles of
exactly 16 rows, and of one row where a try shows that the place in the tile matters. Both are
within 2e-6 of the largest result of an exact product, but not equal to each other.
"""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.native.library import native
from weft.native.packed import PackedWeight

TILE = 16
"""Rows of each product by torch, which rounds differently for other numbers of rows."""


def is_plain(x: Tensor) -> bool:
    """Whether the packed product can take this input."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and not torch.is_grad_enabled()


def linear(
    x: Tensor, weight: PackedWeight, bias_O: Tensor | None = None, outputs: slice | None = None
) -> Tensor:
    """x times the packed weight, or times some of its outputs; float32 on the CPU."""
    begin, end, _ = (outputs or slice(None)).indices(weight.outputs)
    assert x.shape[-1] == weight.inputs, f"{x.shape[-1]} inputs, the weight has {weight.inputs}"
    if weight.is_native:
        return native_linear(x, weight, bias_O, begin, end)
    # all outputs, even where some are asked for: another number of them rounds differently
    y_NO = tiled_linear(x.reshape(-1, weight.inputs), weight.data, bias_O)
    return y_NO[:, begin:end].reshape(*x.shape[:-1], end - begin)


def linear_part(x: Tensor, weight: PackedWeight, outputs: slice) -> Tensor:
    """As `linear`, for outputs that are always asked for in the same company, as an expert's or a
    head's are: without the library the others are not computed."""
    if weight.is_native:
        return linear(x, weight, None, outputs)
    y_NO = tiled_linear(x.reshape(-1, weight.inputs), weight.data[outputs], None)
    return y_NO.reshape(*x.shape[:-1], -1)


def native_linear(
    x: Tensor, weight: PackedWeight, bias_O: Tensor | None, begin: int, end: int
) -> Tensor:
    """By the library: outputs begin to end. No tensor is made but the result: each costs as much as
    a small product."""
    library = native()
    assert library is not None, "the weight was packed for a library that is not there"
    assert x.dtype == torch.float32, f"x is {x.dtype}, the packed product takes float32"
    inputs, width = weight.inputs, end - begin
    if x.dim() != 2 or x.stride(1) != 1:
        x = x.contiguous()
    stride = x.stride(0) if x.dim() == 2 else inputs
    y = x.new_empty((*x.shape[:-1], width))
    bias = None if bias_O is None else bias_O.data_ptr()
    sizes = (x.numel() // inputs, stride, width, begin, end, torch.get_num_threads())
    library.linear(weight.address, x.data_ptr(), bias, y.data_ptr(), *sizes)
    return y


def tiled_linear(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """By torch, some rows at a time; the last tile is filled up with zeros."""
    rows = tile_rows(*weight_OI.shape, torch.get_num_threads())
    tiles = F.pad(x_NI, (0, 0, 0, -x_NI.shape[0] % rows)).split(rows)
    # each tile at an address of its own: the routine may look at how its input is aligned
    results = [F.linear(tile.clone(), weight_OI, bias_O) for tile in tiles if len(tile)]
    return torch.cat(results)[: x_NI.shape[0]] if results else x_NI.new_zeros(0, len(weight_OI))


@functools.cache
def tile_rows(outputs: int, inputs: int, threads: int) -> int:
    """16 if torch gives a row the same bits at each of 16 places in a product of this size."""
    source = torch.Generator().manual_seed(0)
    x_1I, weight_OI = (torch.randn(n, inputs, generator=source) for n in (1, outputs))
    y_NO = F.linear(x_1I.repeat(TILE, 1), weight_OI)
    return TILE if bool((y_NO == y_NO[0]).all()) else 1
