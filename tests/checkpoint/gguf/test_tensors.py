"""`GGUFSource`: tensors of a file as float32."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize

from weft.checkpoint.gguf import tensors
from weft.checkpoint.gguf.header import read_header
from weft.checkpoint.gguf.tensors import GGUFSource
from weft.checkpoint.tensor_source import TensorSource
from weft.core.errors import DataError

from .material import gguf_bytes, info, write

KINDS = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "TQ2_0")


def library_file(path: Path) -> dict[str, np.ndarray]:
    """A file with one tensor of each kind that the library can write, and what it reads back."""
    rng = np.random.default_rng(1)
    writer, expected = gguf.GGUFWriter(path, "llama"), {}
    for kind in KINDS:
        packed = quantize(
            rng.normal(size=(3, 5, 256)).astype(np.float32), GGMLQuantizationType[kind]
        )
        raw = None if kind in ("F32", "F16") else GGMLQuantizationType[kind]
        writer.add_tensor(kind, packed, raw_dtype=raw)
        expected[kind] = gguf.quants.dequantize(packed, GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected


@pytest.mark.parametrize("piece", [1 << 20, 700])
def test_tensors_are_read_as_the_library_reads_them(
    piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "CHUNK_NUMBERS", piece)
    expected = library_file(tmp_path / "x.gguf")
    source: TensorSource = GGUFSource(read_header(tmp_path / "x.gguf"))
    assert source.shapes == dict.fromkeys(KINDS, (3, 5, 256))
    for kind in KINDS:
        result = source.read(kind)
        assert result.dtype == torch.float32 and result.is_contiguous()
        assert np.array_equal(result.numpy(), expected[kind].reshape(3, 5, 256)), kind


def test_a_part_is_one_entry_of_the_first_dimension(tmp_path: Path) -> None:
    library_file(tmp_path / "x.gguf")
    source = GGUFSource(read_header(tmp_path / "x.gguf"))
    for kind in KINDS:
        whole = source.read(kind)
        for index in range(3):
            assert torch.equal(source.read_part(kind, index), whole[index]), kind


def test_what_is_read_stays_when_more_is_read(tmp_path: Path) -> None:
    library_file(tmp_path / "x.gguf")
    source = GGUFSource(read_header(tmp_path / "x.gguf"))
    first = source.read("Q8_0")
    kept = first.clone()
    for kind in KINDS:
        source.read(kind)
    assert torch.equal(first, kept)


def test_a_type_without_a_reader_is_named(tmp_path: Path) -> None:
    data = gguf_bytes({}, [info("steps", [4], 26, 0)], bytes(32))
    source = GGUFSource(read_header(write(tmp_path, data)))
    with pytest.raises(DataError, match="tensor steps is of type I32: Weft reads F32, F64, F16"):
        source.read("steps")


def test_a_file_that_was_cut_after_it_was_opened_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, gguf_bytes({}, [info("t", [64], 0, 0)], bytes(256)))
    source = GGUFSource(read_header(path))
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(DataError, match="ends inside tensor t"):
        source.read("t")


def test_the_file_is_closed_when_the_source_goes(tmp_path: Path) -> None:
    path = write(tmp_path, gguf_bytes({}, [info("t", [8], 0, 0)], bytes(32)))
    source = GGUFSource(read_header(path))
    handle = source.file.handle
    os.fstat(handle)
    del source
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(handle)
