"""Blocks that stay in few bits have the numbers that dequantizing them gives, bit for bit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize

from weft.checkpoint.gguf import tensors
from weft.checkpoint.gguf.header import read_header
from weft.checkpoint.gguf.quantized_blocks import REPACK, blocks_as_rows, empty_blocks
from weft.checkpoint.gguf.tensors import GGUFSource
from weft.core.quantized import QuantizedMatrix

from .test_dequantize import random_blocks, unpacked


def taken(name: str, blocks: np.ndarray, rows: int) -> QuantizedMatrix | None:
    out = empty_blocks(name, len(blocks))
    REPACK[name](torch.from_numpy(blocks), out)
    return blocks_as_rows(out, rows)


@pytest.mark.parametrize("name", REPACK)
def test_random_blocks_have_the_bits_that_dequantizing_gives(name: str) -> None:
    blocks = random_blocks(name, 60)
    blocks[:5, 4:] = 0x88  # the middle of Q4_0, which is -0 where the scale is negative
    few = taken(name, blocks, rows=12)
    assert few is not None and few.inputs == 160
    expected = unpacked(name, blocks).view(12, 160)
    assert few.numbers().view(torch.int32).equal(expected.view(torch.int32))


@pytest.mark.parametrize("name", REPACK)
def test_blocks_of_zeros_are_zeros_of_the_same_sign(name: str) -> None:
    zeros = quantize(np.zeros((2, 64), np.float32), GGMLQuantizationType[name]).reshape(4, -1)
    few = taken(name, zeros, rows=2)
    assert few is not None
    expected = unpacked(name, zeros).view(2, 64)
    assert few.numbers().view(torch.int32).equal(expected.view(torch.int32))


@pytest.mark.parametrize("scale", [8190.0, -65504.0, np.inf, np.nan])
def test_a_minimum_that_half_floats_cannot_hold_is_left_to_floats(scale: float) -> None:
    blocks = random_blocks("Q4_0", 6)
    blocks[3, :2] = np.array([scale], np.float16).view(np.uint8)
    assert taken("Q4_0", blocks, rows=3) is None


KINDS = ("F32", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ2_0")


@pytest.fixture
def source(tmp_path: Path) -> GGUFSource:
    """A file with a matrix of each kind, and one stack of two."""
    rng, writer = np.random.default_rng(1), gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    for name, shape in [*((kind, (70, 256)) for kind in KINDS), ("stack", (2, 3, 32))]:
        kind = GGMLQuantizationType["Q8_0" if name == "stack" else name]
        packed = quantize(rng.normal(size=shape).astype(np.float32), kind)
        writer.add_tensor(name, packed, raw_dtype=None if name in ("F32", "F16") else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return GGUFSource(read_header(tmp_path / "x.gguf"))


@pytest.mark.parametrize("piece", [1 << 20, 700])
def test_matrices_are_read_in_few_bits_where_their_kind_allows(
    source: GGUFSource, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "CHUNK_NUMBERS", piece)
    monkeypatch.setattr(tensors, "MIN_THREADED_NUMBERS", 1000)
    for kind in KINDS:
        few = source.read_quantized(kind)
        assert (few is not None) == (kind in REPACK), kind
        if few is not None:
            assert few.numbers().equal(source.read(kind)), kind
    assert source.read_quantized("stack") is None
