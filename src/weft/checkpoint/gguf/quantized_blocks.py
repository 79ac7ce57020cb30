"""Blocks of Q8_0, Q4_0 and Q4_1 -> the words and scales of a `QuantizedMatrix`, never as floats.

    Q8_0    scale, 32 bytes                      4 neighbours already make a word
    Q4_0    scale, 16 bytes                      a byte holds numbers j and j + 16, a word of ours
    Q4_1    scale, minimum, 16 bytes             8 neighbours: halves of bytes are put together

Q4_0's numbers are (q - 8) * scale, which is q * scale + minimum with the minimum -8 scale.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weft.core.quantized import QuantizedMatrix

RepackFn = Callable[[Tensor, QuantizedMatrix], None]
"""Blocks as bytes [n, block_bytes] -> words, scales and minima, written into a
QuantizedMatrix of [n, ...]
each."""

LOW_HALVES = 0x0F0F0F0F0F0F0F0F
EVEN_BYTES = 0x00FF00FF00FF00FF
EVEN_PAIRS = 0x0000FFFF0000FFFF


def repack_q8_0(blocks: Tensor, out: QuantizedMatrix) -> None:
    halves = blocks.view(torch.int16)
    out.scales.view(torch.int16).copy_(halves[:, :1])
    out.words.view(torch.int16).copy_(halves[:, 1:])


def repack_q4_0(blocks: Tensor, out: QuantizedMatrix) -> None:
    assert out.minima is not None, "4 bits have minima"
    out.scales.view(torch.int16).copy_(blocks.view(torch.int16)[:, :1])
    # in half floats already: times 8 is exact, unless it is too large for them
    out.minima.copy_(out.scales).mul_(-8)
    out.words.copy_(neighbor_words(blocks[:, 2:]))


def repack_q4_1(blocks: Tensor, out: QuantizedMatrix) -> None:
    assert out.minima is not None, "4 bits have minima"
    halves = blocks.view(torch.int16)
    out.scales.view(torch.int16).copy_(halves[:, :1])
    out.minima.view(torch.int16).copy_(halves[:, 1:2])
    out.words.copy_(neighbor_words(blocks[:, 4:]))


def neighbor_words(quants: Tensor) -> Tensor:
    """[n, 16] bytes, lower halves first -> [n, 4] words of 8 neighbours, the first lowest."""
    eights = quants.contiguous().view(torch.int64)
    return torch.cat(
        [squeeze_nibbles(eights & LOW_HALVES), squeeze_nibbles((eights >> 4) & LOW_HALVES)], 1
    )


def squeeze_nibbles(eights: Tensor) -> Tensor:
    """Eight bytes of which the lower halves are used -> one word without the others."""
    eights = (eights | (eights >> 4)) & EVEN_BYTES
    eights = (eights | (eights >> 8)) & EVEN_PAIRS
    return (eights | (eights >> 16)).view(torch.int32)[:, ::2]


REPACK: dict[str, RepackFn] = {"Q8_0": repack_q8_0, "Q4_0": repack_q4_0, "Q4_1": repack_q4_1}
"""Types that stay as they are where a product can take them so."""


def empty_blocks(name: str, count: int) -> QuantizedMatrix:
    """Room for so many blocks."""
    scales, words = torch.empty(count, 1, dtype=torch.half), 8 if name == "Q8_0" else 4
    minima = None if name == "Q8_0" else torch.empty_like(scales)
    return QuantizedMatrix(torch.empty(count, words, dtype=torch.int32), scales, minima)


def block_range(few: QuantizedMatrix, start: int, end: int) -> QuantizedMatrix:
    minima = None if few.minima is None else few.minima[start:end]
    return QuantizedMatrix(few.words[start:end], few.scales[start:end], minima)


def as_rows(few: QuantizedMatrix, count: int) -> QuantizedMatrix | None:
    """Blocks one behind the other as the rows of a matrix; None where a scale or minimum is no
    number, or too large for a half float: floats make another NaN or infinity of these."""
    numbers = (few.scales,) if few.minima is None else (few.scales, few.minima)
    if not all(bool(part.isfinite().all()) for part in numbers):
        return None
    minima = None if few.minima is None else few.minima.view(count, -1)
    return QuantizedMatrix(few.words.view(count, -1), few.scales.view(count, -1), minima)
