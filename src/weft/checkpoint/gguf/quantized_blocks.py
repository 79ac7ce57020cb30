"""Blocks of Q8_0, Q4_0 and Q4_1 -> the words and scales of a `QuantizedMatrix`, never as floats.

    Q8_0    scale, 32 bytes                      4 neighbors already form a word
    Q4_0    scale, 16 bytes                      a byte has numbers j and j + 16; a word of
    Q4_1    scale, minimum, 16 bytes             QuantizedMatrix has 8 neighbors: repacked

Q4_0's numbers are (q - 8) * scale, which is q * scale + minimum with the minimum -8 scale.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weft.checkpoint.gguf.dequantize import aligned
from weft.core.quantized import QuantizedMatrix

RepackFn = Callable[[Tensor, QuantizedMatrix], None]
"""Blocks as bytes [n, block_bytes] -> words, scales and minima, written into a QuantizedMatrix of
n rows."""

LOW_NIBBLES = 0x0F0F0F0F0F0F0F0F
EVEN_BYTES = 0x00FF00FF00FF00FF
EVEN_PAIRS = 0x0000FFFF0000FFFF


def repack_q8_0(blocks: Tensor, out: QuantizedMatrix) -> None:
    halves = blocks.view(torch.int16)
    out.scales.view(torch.int16).copy_(halves[:, :1])
    out.words.view(torch.int16).copy_(halves[:, 1:])


def repack_q4_0(blocks: Tensor, out: QuantizedMatrix) -> None:
    assert out.minima is not None, "4-bit types have minima"
    out.scales.view(torch.int16).copy_(blocks.view(torch.int16)[:, :1])
    # in float16: a product by 8 is exact, unless it overflows
    out.minima.copy_(out.scales).mul_(-8)
    out.words.copy_(neighbor_words(blocks[:, 2:]))


def repack_q4_1(blocks: Tensor, out: QuantizedMatrix) -> None:
    assert out.minima is not None, "4-bit types have minima"
    halves = blocks.view(torch.int16)
    out.scales.view(torch.int16).copy_(halves[:, :1])
    out.minima.view(torch.int16).copy_(halves[:, 1:2])
    out.words.copy_(neighbor_words(blocks[:, 4:]))


def neighbor_words(quants: Tensor) -> Tensor:
    """[n, 16] bytes, lower halves first -> [n, 4] words of 8 neighbors, the first lowest."""
    eights = aligned(quants).view(torch.int64)
    low, high = eights & LOW_NIBBLES, (eights >> 4) & LOW_NIBBLES
    return torch.cat([squeeze_nibbles(low), squeeze_nibbles(high)], 1)


def squeeze_nibbles(eights: Tensor) -> Tensor:
    """The lower halves of eight bytes -> one word."""
    eights = (eights | (eights >> 4)) & EVEN_BYTES
    eights = (eights | (eights >> 8)) & EVEN_PAIRS
    return (eights | (eights >> 16)).view(torch.int32)[:, ::2]


REPACK: dict[str, RepackFn] = {"Q8_0": repack_q8_0, "Q4_0": repack_q4_0, "Q4_1": repack_q4_1}
"""Types that stay quantized where a packed module can multiply by them."""


def empty_blocks(name: str, count: int) -> QuantizedMatrix:
    """Uninitialized memory for `count` blocks of a type, one per row."""
    scales, words = torch.empty(count, 1, dtype=torch.half), 8 if name == "Q8_0" else 4
    minima = None if name == "Q8_0" else torch.empty_like(scales)
    return QuantizedMatrix(torch.empty(count, words, dtype=torch.int32), scales, minima)


def block_range(matrix: QuantizedMatrix, start: int, end: int) -> QuantizedMatrix:
    """A view of some rows."""
    minima = None if matrix.minima is None else matrix.minima[start:end]
    return QuantizedMatrix(matrix.words[start:end], matrix.scales[start:end], minima)


def blocks_as_rows(blocks: QuantizedMatrix, count: int) -> QuantizedMatrix | None:
    """Consecutive blocks as a matrix of `count` rows; None if a scale or minimum is NaN or
    infinite in float16: computed in float32 it would be another value."""
    parts = (blocks.scales,) if blocks.minima is None else (blocks.scales, blocks.minima)
    if not all(bool(part.isfinite().all()) for part in parts):
        return None
    minima = None if blocks.minima is None else blocks.minima.view(count, -1)
    return QuantizedMatrix(blocks.words.view(count, -1), blocks.scales.view(count, -1), minima)
