"""y = x W^T + bias with rows that do not know each other: x [..., I] -> y [..., O].

A packed layer gives each row the same bits alone, among others, and on any number of threads. It
does so by the compiled product (native/linear.cpp), or without it by torch's product on tiles of
exactly 16 rows, and of one row where a try shows that the place in the tile matters. Both are
within 2e-6 of the largest result of an exact product, but not equal to each other. Training, other
dtypes and devices take F.linear as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn.native.library import native
from weft.nn.native.packed import PackedWeight, pack

TILE = 16
"""Rows of each product by torch, which rounds differently for other numbers of rows."""


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
    y = torch.empty((*x.shape[:-1], width))
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


class Packable(nn.Module):
    """A layer whose `weight` (and `bias`) can be packed. Training, moving or loading unpacks."""

    weight: Tensor
    bias: Any
    packed: PackedWeight | None = None

    def pack(self, packed: PackedWeight | None = None) -> None:
        """Use this packed weight from now on where no gradients are asked for; None: make it."""
        packed = packed or pack(self.weight)
        found, own = (packed.outputs, packed.inputs), tuple(self.weight.shape)
        assert found == own, f"a packed weight of {found} for a layer of {own}"
        self.packed = packed

    def unpack(self) -> None:
        self.packed = None

    def packs(self, x: Tensor) -> bool:
        """Whether the packed weight is used for this input."""
        return self.packed is not None and is_plain(x)

    def product(self, x: Tensor, outputs: slice | None = None) -> Tensor:
        """x W^T + bias, or some outputs of it."""
        if self.packed is not None and is_plain(x):
            return linear(x, self.packed, self.bias, outputs)
        if outputs is None:
            return F.linear(x, self.weight, self.bias)
        bias = None if self.bias is None else self.bias[outputs]
        return F.linear(x, self.weight[outputs], bias)

    def train(self, mode: bool = True) -> Any:
        if mode:
            self.unpack()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        self.unpack()
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.unpack()
        super()._load_from_state_dict(*args, **kwargs)


def is_plain(x: Tensor) -> bool:
    """Whether the packed product can take this input."""
    return x.dtype == torch.float32 and x.device.type == "cpu" and not torch.is_grad_enabled()


class Linear(Packable, nn.Linear):
    """nn.Linear that can be packed."""

    def forward(self, input: Tensor) -> Tensor:
        return self.product(input)


def pack_model(model: nn.Module, given: Mapping[str, PackedWeight] | None = None) -> nn.Module:
    """Pack every layer that can be; a plain nn.Linear becomes a Linear. `given`: weights that are
    packed already (of few bits), by the layer's name. Layers with one weight share its packed
    form."""
    given, made = given or {}, dict[int, PackedWeight]()
    for name, layer in model.named_modules():
        if type(layer) is nn.Linear:
            layer.__class__ = Linear
        if isinstance(layer, Packable):
            key = id(layer.weight)
            made[key] = given.get(name) or made.get(key) or pack(layer.weight)
            layer.pack(made[key])
    return model


def unpack_model(model: nn.Module) -> nn.Module:
    """Let go of every packed weight."""
    for layer in model.modules():
        if isinstance(layer, Packable):
            layer.unpack()
    return model
