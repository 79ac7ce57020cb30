"""Tensors of a single block, whose columns are contiguous in memory but not aligned."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from weft.checkpoint.gguf.dequantize import DEQUANTIZE, dequantize_fn
from weft.checkpoint.gguf.header import TENSOR_TYPES
from weft.checkpoint.gguf.quantized_blocks import REPACK, blocks_as_rows, empty_blocks

TYPES = {kind.name: kind for kind in TENSOR_TYPES.values()}


@pytest.mark.parametrize("name", DEQUANTIZE)
def test_a_single_block_is_dequantized_like_one_of_many(name: str) -> None:
    kind = TYPES[name]
    data = np.random.default_rng(0).integers(0, 60, (3, kind.block_bytes), dtype=np.uint8)
    blocks, together = torch.from_numpy(data), torch.empty(3, kind.block_len)
    dequantize_fn(kind)(blocks, together)
    for row in range(3):
        alone = torch.empty(1, kind.block_len)
        dequantize_fn(kind)(blocks[row : row + 1].clone(), alone)
        assert torch.equal(alone[0], together[row])
    if name not in ("Q8_K", "F64"):  # which the library does not have
        theirs = gguf.quants.dequantize(data, gguf.GGMLQuantizationType(kind.number))
        assert np.array_equal(together.numpy(), theirs.astype(np.float32))


@pytest.mark.parametrize("name", REPACK)
def test_a_single_block_is_repacked_like_one_of_many(name: str) -> None:
    data = np.random.default_rng(0).integers(0, 60, (3, TYPES[name].block_bytes), dtype=np.uint8)
    blocks, together = torch.from_numpy(data), empty_blocks(name, 3)
    REPACK[name](blocks, together)
    for row in range(3):
        alone = empty_blocks(name, 1)
        REPACK[name](blocks[row : row + 1].clone(), alone)
        assert torch.equal(alone.words[0], together.words[row])
        assert blocks_as_rows(alone, 1) is not None
