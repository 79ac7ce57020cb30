"""Blocks -> numbers, against the `gguf` library: the same bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from weft.checkpoint.gguf.dequantize import DEQUANTIZE, LIBRARY_TYPES, READABLE_TYPES, dequantize_fn
from weft.checkpoint.gguf.header import TENSOR_TYPES

BY_NAME = {kind.name: kind for kind in TENSOR_TYPES.values()}
SCALES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ1_S": [0],
    "IQ2_XXS": [0],
    "IQ2_XS": [0],
    "IQ2_S": [0],
    "IQ3_XXS": [0],
    "IQ3_S": [0],
    "IQ4_NL": [0],
    "IQ4_XS": [0],
    "TQ1_0": [52],
    "TQ2_0": [64],
}
"""Where the 16-bit scales of a block are; random bytes there would be NaN now and then."""


def random_blocks(name: str, count: int) -> np.ndarray:
    rng, kind = np.random.default_rng(7), BY_NAME[name]
    blocks = rng.integers(0, 256, (count, kind.block_bytes), dtype=np.uint8)
    for place in SCALES.get(name, []):
        numbers = rng.normal(size=(count, 1)).astype(np.float16)
        blocks[:, place : place + 2] = numbers.view(np.uint8)
    return blocks


def unpacked(name: str, blocks: np.ndarray) -> torch.Tensor:
    kind = BY_NAME[name]
    out = torch.full((len(blocks), kind.block_len), torch.nan)
    dequantize_fn(kind)(torch.from_numpy(blocks), out)
    return out


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return one.astype(np.float32).tobytes() == other.astype(np.float32).tobytes()


@pytest.mark.parametrize("name", [n for n in DEQUANTIZE if n not in ("F64", "Q8_K")])
def test_our_functions_give_the_librarys_bits(name: str) -> None:
    if name in ("F32", "F16", "BF16"):
        numbers = np.random.default_rng(3).normal(size=(50, 32)).astype(np.float32)
        blocks = quantize(numbers, GGMLQuantizationType[name]).view(np.uint8).reshape(-1)
        blocks = blocks.reshape(-1, BY_NAME[name].block_bytes)
    else:
        blocks = random_blocks(name, 1001)
    expected = dequantize(blocks.reshape(1, -1), GGMLQuantizationType[name]).reshape(-1)
    assert same_bits(unpacked(name, blocks).flatten().numpy(), expected)


@pytest.mark.parametrize("name", [n for n in LIBRARY_TYPES if n != "IQ1_M"])
def test_the_librarys_functions_are_called_with_the_right_rows(name: str) -> None:
    blocks = random_blocks(name, 6)
    rows = dequantize(blocks.reshape(3, -1), GGMLQuantizationType[name])
    ours = unpacked(name, blocks).view(3, -1).numpy()
    assert np.array_equal(ours, rows, equal_nan=True)


def test_iq1_m_is_read() -> None:
    """Its scale is spread over the block: zeros are the one pattern that is surely a number."""
    blocks = np.zeros((4, BY_NAME["IQ1_M"].block_bytes), dtype=np.uint8)
    assert torch.equal(unpacked("IQ1_M", blocks), torch.zeros(4, 256))


def test_q8_k_is_scale_times_number() -> None:
    rng = np.random.default_rng(5)
    scale = rng.normal(size=(9, 1)).astype(np.float32)
    numbers = rng.integers(-128, 128, (9, 256)).astype(np.int8)
    sums = numbers.reshape(9, 16, 16).sum(-1).astype(np.int16)
    parts = [scale.view(np.uint8), numbers.view(np.uint8), sums.view(np.uint8)]
    blocks = np.concatenate(parts, axis=1)
    assert same_bits(unpacked("Q8_K", blocks).numpy(), scale * numbers.astype(np.float32))


def test_f64_becomes_float32() -> None:
    numbers = np.array([[0.1], [-2.5e10]])
    assert unpacked("F64", numbers.view(np.uint8)).tolist() == [
        [np.float32(0.1).item()],
        [np.float32(-2.5e10).item()],
    ]


def test_every_readable_type_is_a_type() -> None:
    assert set(READABLE_TYPES) < set(BY_NAME)
    assert len(READABLE_TYPES) == len(set(READABLE_TYPES))
    unread = set(BY_NAME) - set(READABLE_TYPES)
    assert unread == {"Q8_1", "I8", "I16", "I32", "I64", "Q1_0"}
