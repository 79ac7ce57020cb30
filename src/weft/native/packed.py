"""A weight W_OI -> a PackedWeight: the same numbers in the order in which the product reads them.

    panel 0: outputs 0..15     W[0..15, 0]  W[0..15, 1]  W[0..15, 2] ...     inputs one by one
    panel 1: outputs 16..31    ...                                           (16 is the library's)

Kinds: f32; q8 and q4, whose words, scales and minima lie likewise (core/quantized.py);
the numbers of q8
are stored plus 128, from 0 on. A product with few bits has the bits of the product with the
dequantised weight, unless its inputs are to be rounded. unpacked.py is the way back.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.core.errors import UsageError
from weft.core.quantized import BITS, GROUP, Kind, QuantizedMatrix, dequantised, fits_half, words_of
from weft.native.library import native
from weft.native.structs import PackedStruct

PLUS_128 = -0x7F7F7F80
"""Turns the highest bit of each byte of a word: -128..127 become 0..255, and back."""


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A weight that `linear` of nn/product.py multiplies by."""

    kind: Kind
    outputs: int
    inputs: int
    data: Tensor
    """Panels [outputs / width, inputs or words, width]; W_OI itself where there is no library."""
    scales: Tensor | None = None
    """[outputs / width, inputs / 32, width], half floats."""
    minima: Tensor | None = None
    is_native: bool = True
    is_rounded: bool = False
    """q8, q4: inputs are rounded to 8 bits before they are multiplied (rounded.h)."""

    @property
    def num_bytes(self) -> int:
        parts = (self.data, self.scales, self.minima)
        return sum(part.numel() * part.element_size() for part in parts if part is not None)

    @cached_property
    def struct(self) -> PackedStruct:
        """What the library reads."""
        assert self.is_native, "a weight for torch has no place in the library"
        pointers = (None if x is None else x.data_ptr() for x in (self.scales, self.minima))
        sizes = (BITS[self.kind], self.inputs, self.outputs)
        return PackedStruct(*sizes, self.data.data_ptr(), *pointers, self.is_rounded)

    @cached_property
    def address(self) -> int:
        return ctypes.addressof(self.struct)

    def __reduce__(self) -> tuple[Any, ...]:
        # a copy has tensors of its own, and so needs a structure of its own
        parts = (self.kind, self.outputs, self.inputs, self.data, self.scales, self.minima)
        return PackedWeight, (*parts, self.is_native, self.is_rounded)


def pack(weight_OI: Tensor) -> PackedWeight:
    """A float32 weight on the CPU, as panels. Later changes of the weight do not reach it."""
    if weight_OI.dtype != torch.float32 or weight_OI.device.type != "cpu":
        raise UsageError(
            f"a weight of {weight_OI.dtype} on {weight_OI.device} cannot be packed: only float32 "
            "on the CPU can. Use model.float().cpu() first."
        )
    outputs, inputs = weight_OI.shape
    weight_OI = weight_OI.detach()
    if (library := native()) is None:
        return PackedWeight("f32", outputs, inputs, weight_OI.contiguous(), is_native=False)
    return PackedWeight("f32", outputs, inputs, panels(weight_OI, library.panel_width))


def pack_blocks(quants_OI: Tensor, scales: Tensor, minima: Tensor | None = None) -> PackedWeight:
    """A weight of few bits. quants_OI: int8, 8 bits each; with `minima` 0..15, 4 bits each. Scales
    and minima: [O, I / 32], in half floats exactly; where they are not, the weight becomes f32."""
    outputs, inputs = quants_OI.shape
    if inputs % GROUP or scales.shape != (outputs, inputs // GROUP):
        raise UsageError(
            f"quants are {tuple(quants_OI.shape)} and scales {tuple(scales.shape)}: each {GROUP} "
            f"inputs share a scale. Use scales of [outputs, inputs / {GROUP}]."
        )
    if not (fits_half(scales) and (minima is None or fits_half(minima))):
        return pack(dequantised(quants_OI, scales, minima))
    words = words_of(quants_OI, 8 if minima is None else 4)
    return pack_rows(
        QuantizedMatrix(words, scales.half(), None if minima is None else minima.half())
    )


def pack_rows(few: QuantizedMatrix) -> PackedWeight:
    """A matrix of few bits as panels, or a stack of them as one; without a library it is f32."""
    if (library := native()) is None:
        return pack(few.numbers().flatten(0, -2))
    width = library.panel_width
    words, scales = (panels(part.flatten(0, -2), width) for part in (few.words, few.scales))
    minima = None if few.minima is None else panels(few.minima.flatten(0, -2), width)
    if few.kind == "q8":
        words ^= PLUS_128
    outputs = few.scales.shape[:-1].numel()
    return PackedWeight(few.kind, outputs, few.inputs, words, scales, minima)


def panels(rows_OI: Tensor, width: int) -> Tensor:
    """[O, I] -> [O / width, I, width], with zeros for the outputs that the last panel lacks."""
    missing = -rows_OI.shape[0] % width
    padded = F.pad(rows_OI, (0, 0, 0, missing)) if missing else rows_OI
    return padded.unflatten(0, (-1, width)).transpose(1, 2).contiguous()
