"""`PackedMatrix`: a weight W_OI in the order in which the compiled matrix product reads it.

    panel 0: outputs 0..15     W[0..15, 0]  W[0..15, 1]  W[0..15, 2] ...     one input after another
    panel 1: outputs 16..31    ...                           (the width of a panel is the library's)

Kinds: f32; q8 and q4, whose words, scales and minima are arranged likewise (core/quantized.py). The
numbers of q8 are stored plus 128, as unsigned bytes. A product with a quantized matrix has the bits
of the product with the dequantized one, unless `int8_activations` is set. Without the compiled
library a PackedMatrix holds W_OI itself, without a copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from weft.core.errors import UsageError
from weft.core.quantized import (
    BITS,
    GROUP,
    Kind,
    QuantizedMatrix,
    dequantize_blocks,
    fits_half,
    words_of,
)
from weft.native.library import address, native

PLUS_128 = -0x7F7F7F80
"""XOR flips the highest bit of each byte of a word: -128..127 become 0..255, and back."""


@dataclass(frozen=True, eq=False)
class PackedMatrix:
    """A matrix that `kernels.linear` multiplies by and `kernels.embedding_rows` reads rows of."""

    kind: Kind
    outputs: int
    inputs: int
    data: Tensor
    """Panels [outputs / width, inputs or words, width]; W_OI itself where there is no library."""
    scales: Tensor | None = None
    """[outputs / width, inputs / 32, width], half floats."""
    minima: Tensor | None = None
    is_native: bool = True
    """False: made where there is no library; torch multiplies."""
    int8_activations: bool = False
    """q8, q4: inputs are quantized to 8 bits before they are multiplied. About half a percent of
    the largest result off, two to three times as fast."""

    @property
    def tensors(self) -> list[Tensor]:
        parts = (self.data, self.scales, self.minima)
        return [part for part in parts if part is not None]

    @property
    def num_bytes(self) -> int:
        return sum(part.numel() * part.element_size() for part in self.tensors)

    @cached_property
    def struct(self) -> Any:
        """The WeftPackedMatrix that the library reads; valid while this object lives."""
        library = native()
        assert self.is_native, "the library cannot read a matrix that was packed without it"
        assert library is not None, "the matrix was packed for a library that is not there"
        sizes = (BITS[self.kind], self.inputs, self.outputs)
        addresses = (address(self.data), address(self.scales), address(self.minima))
        return library.new("WeftPackedMatrix*", (*sizes, *addresses, self.int8_activations))

    def __reduce__(self) -> tuple[Any, ...]:
        # `struct` holds addresses of tensors: a copy has its own tensors and makes its own
        parts = (self.kind, self.outputs, self.inputs, self.data, self.scales, self.minima)
        return PackedMatrix, (*parts, self.is_native, self.int8_activations)


def pack(weight_OI: Tensor) -> PackedMatrix:
    """A float32 weight on the CPU, as panels. Later changes of the weight do not reach them."""
    if weight_OI.dtype != torch.float32 or weight_OI.device.type != "cpu":
        raise UsageError(
            f"a weight of {weight_OI.dtype} on {weight_OI.device} cannot be packed: only float32 "
            "on the CPU can. Use model.float().cpu() first."
        )
    outputs, inputs = weight_OI.shape
    weight_OI = weight_OI.detach()
    if (library := native()) is None:
        return PackedMatrix("f32", outputs, inputs, weight_OI.contiguous(), is_native=False)
    return PackedMatrix("f32", outputs, inputs, panels(weight_OI, library.panel_width))


def pack_quantized(matrix: QuantizedMatrix) -> PackedMatrix:
    """A quantized matrix, or a stack of them as one, as panels. Without the library it is f32."""
    if (library := native()) is None:
        return pack(matrix.numbers().flatten(0, -2))
    width = library.panel_width
    words, scales = (panels(part.flatten(0, -2), width) for part in (matrix.words, matrix.scales))
    minima = None if matrix.minima is None else panels(matrix.minima.flatten(0, -2), width)
    if matrix.kind == "q8":
        words ^= PLUS_128
    outputs = matrix.scales.shape[:-1].numel()
    return PackedMatrix(matrix.kind, outputs, matrix.inputs, words, scales, minima)


def pack_blocks(quants_OI: Tensor, scales: Tensor, minima: Tensor | None = None) -> PackedMatrix:
    """`pack_quantized` of separate quants. quants_OI: int8, 8 bits each; with `minima` 0..15, 4
    bits each. Scales and minima [O, I / 32] must fit half floats exactly, else the matrix is f32.
    """
    outputs, inputs = quants_OI.shape
    if inputs % GROUP or scales.shape != (outputs, inputs // GROUP):
        raise UsageError(
            f"quants are {tuple(quants_OI.shape)} and scales {tuple(scales.shape)}: each {GROUP} "
            f"inputs share a scale. Use scales of [outputs, inputs / {GROUP}]."
        )
    if not (fits_half(scales) and (minima is None or fits_half(minima))):
        return pack(dequantize_blocks(quants_OI, scales, minima))
    words = words_of(quants_OI, 8 if minima is None else 4)
    half_minima = None if minima is None else minima.half()
    return pack_quantized(QuantizedMatrix(words, scales.half(), half_minima))


def dequantize(matrix: PackedMatrix) -> Tensor:
    """W_OI in float32, bit for bit what was packed, in new memory; without the library the tensor
    that was packed, itself."""
    if not matrix.is_native:
        return matrix.data
    data_OI = panels_to_rows(matrix.data, matrix.outputs)
    if matrix.scales is None:
        return data_OI
    words = data_OI ^ PLUS_128 if matrix.kind == "q8" else data_OI
    minima = None if matrix.minima is None else panels_to_rows(matrix.minima, matrix.outputs)
    return QuantizedMatrix(words, panels_to_rows(matrix.scales, matrix.outputs), minima).numbers()


def panels(rows_OI: Tensor, width: int) -> Tensor:
    """[O, I] -> [O / width, I, width], with zeros for the outputs that the last panel lacks."""
    missing = -rows_OI.shape[0] % width
    padded = F.pad(rows_OI, (0, 0, 0, missing)) if missing else rows_OI
    return padded.unflatten(0, (-1, width)).transpose(1, 2).contiguous()


def panels_to_rows(panels: Tensor, outputs: int) -> Tensor:
    """[O / width, I, width] -> [O, I]: the inverse of `panels`."""
    width = panels.shape[2]
    rows_OI = panels.new_empty(outputs, panels.shape[1])
    full = outputs // width
    rows_OI[: full * width].unflatten(0, (full, width)).copy_(panels[:full].transpose(1, 2))
    if outputs % width:
        rows_OI[full * width :] = panels[full].T[: outputs % width]
    return rows_OI
