"""Blocks of a quantized tensor -> float32, bit for bit as the `gguf` library computes them.

Common types have a function here, 3 to 10 times as fast as the library's (a block is processed in
words of 16 or 32 bits instead of bytes); all others are left to the library. d is a block's scale
and m its minimum:

    Q4_0, Q5_0, Q8_0, Q8_K    w = d * q
    Q4_1, Q5_1                w = d * q + m
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from weft.checkpoint.gguf.header import TensorType

DequantizeFn = Callable[[Tensor, Tensor], None]
"""Blocks as bytes [n, block_bytes] -> numbers, written into [n, block_len]."""

LOW_NIBBLES = 0x0F0F0F0F
"""The lower four bits of each byte of a word."""


def dequantize_f32(blocks: Tensor, out: Tensor) -> None:
    out.copy_(blocks.view(torch.float32))


def dequantize_f64(blocks: Tensor, out: Tensor) -> None:
    out.copy_(blocks.view(torch.float64))


def dequantize_f16(blocks: Tensor, out: Tensor) -> None:
    out.copy_(blocks.view(torch.float16))


def dequantize_bf16(blocks: Tensor, out: Tensor) -> None:
    out.copy_(blocks.view(torch.bfloat16))


def dequantize_q4_0(blocks: Tensor, out: Tensor) -> None:
    words = blocks.view(torch.int16)
    out.copy_(nibbles(words[:, 1:])).sub_(8).mul_(half_floats(words[:, :1]))


def dequantize_q4_1(blocks: Tensor, out: Tensor) -> None:
    words = blocks.view(torch.int32)
    scales = half_floats(words[:, :1])
    out.copy_(nibbles(words[:, 1:])).mul_(scales[:, :1]).add_(scales[:, 1:])


def dequantize_q5_0(blocks: Tensor, out: Tensor) -> None:
    words = blocks.view(torch.int16)
    out.copy_(nibbles(words[:, 3:]) | fifth_bits(words[:, 1:3]))
    out.sub_(16).mul_(half_floats(words[:, :1]))


def dequantize_q5_1(blocks: Tensor, out: Tensor) -> None:
    words = blocks.view(torch.int32)
    scales = half_floats(words[:, :1])
    out.copy_(nibbles(words[:, 2:]) | fifth_bits(words[:, 1:2]))
    out.mul_(scales[:, :1]).add_(scales[:, 1:])


def dequantize_q8_0(blocks: Tensor, out: Tensor) -> None:
    words = blocks.view(torch.int16)
    out.copy_(words[:, 1:].contiguous().view(torch.int8)).mul_(half_floats(words[:, :1]))


def dequantize_q8_k(blocks: Tensor, out: Tensor) -> None:
    """The sums at the end of a block serve matrix products and are not needed."""
    words = blocks.view(torch.int32)
    scale = words[:, :1].contiguous().view(torch.float32)
    out.copy_(words[:, 1:65].contiguous().view(torch.int8)).mul_(scale)


def half_floats(words: Tensor) -> Tensor:
    """The 16-bit floats in the first columns of the blocks, as float32."""
    return aligned(words).view(torch.float16).float()


def aligned(words: Tensor) -> Tensor:
    """A copy that can be viewed in larger words. `contiguous` would not copy columns of a single
    row, whose first may be at an odd position."""
    return words.clone(memory_format=torch.contiguous_format)


def nibbles(words: Tensor) -> Tensor:
    """Two 4-bit numbers from each byte: the lower halves of all bytes, then the upper ones."""
    pairs = aligned(words).view(torch.int32)
    return torch.cat([pairs & LOW_NIBBLES, (pairs >> 4) & LOW_NIBBLES], 1).view(torch.uint8)


def fifth_bits(words: Tensor) -> Tensor:
    """One bit for each of 32 numbers -> 0 or 16."""
    bits = aligned(words).view(torch.uint8).unsqueeze(-1)
    shifts = torch.arange(8, dtype=torch.uint8)
    return ((bits >> shifts) & 1).flatten(1) << 4


DEQUANTIZE: dict[str, DequantizeFn] = {
    "F32": dequantize_f32,
    "F64": dequantize_f64,
    "F16": dequantize_f16,
    "BF16": dequantize_bf16,
    "Q4_0": dequantize_q4_0,
    "Q4_1": dequantize_q4_1,
    "Q5_0": dequantize_q5_0,
    "Q5_1": dequantize_q5_1,
    "Q8_0": dequantize_q8_0,
    "Q8_K": dequantize_q8_k,
}
LIBRARY_TYPES = (
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S"),
    *("IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4"),
)
"""Types that the `gguf` library dequantizes."""
READABLE_TYPES = (*DEQUANTIZE, *LIBRARY_TYPES)


def dequantize_with_library(kind: TensorType, blocks: Tensor, out: Tensor) -> None:
    """As the functions above, by the `gguf` library: slower, and correct by definition."""
    # imported here: it takes a quarter of a second that most files do not need
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    # one long row: the library loops over rows
    rows = blocks.numpy().reshape(1, -1)
    numbers = dequantize(rows, GGMLQuantizationType(kind.number))
    out.copy_(torch.from_numpy(numbers).view(-1, kind.block_len))


def dequantize_fn(kind: TensorType) -> DequantizeFn:
    """The function for a type of READABLE_TYPES."""
    if kind.name in DEQUANTIZE:
        return DEQUANTIZE[kind.name]
    return lambda blocks, out: dequantize_with_library(kind, blocks, out)
