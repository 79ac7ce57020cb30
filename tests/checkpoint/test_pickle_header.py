"""Shapes in files of torch.save without torch: those that torch reads, or none."""

from __future__ import annotations

import argparse
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.soak.checkpoint_bases import base_folder
from weft.checkpoint.pickle_files import open_pickles
from weft.checkpoint.pickle_header import BIN_FILE, read_pickle_shapes, read_values, shapes_of


@pytest.mark.parametrize("name", ["gpt2 bin", "t5 bin", "bert bin shards", "bart bin legacy"])
def test_shapes_are_those_that_torch_reads(name: str) -> None:
    folder = base_folder(name)
    source = open_pickles(folder)
    assert source is not None
    assert read_pickle_shapes(folder) == (source.shapes, source.path)


def saved(tmp_path: Path, values: object, is_zip: bool = True) -> Path:
    torch.save(values, tmp_path / BIN_FILE, _use_new_zipfile_serialization=is_zip)
    return tmp_path


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool],
)
def test_number_formats_views_and_parameters_are_read(
    dtype: torch.dtype, is_zip: bool, tmp_path: Path
) -> None:
    whole = torch.zeros(6, 4, dtype=dtype)
    values = {"whole": whole, "part": whole[2:4, 1:], "turned": whole.T, "one": whole[0, 0]}
    if dtype.is_floating_point:
        values["parameter"] = nn.Parameter(torch.zeros(3, dtype=dtype))
    values["empty"] = torch.zeros(0, 5, dtype=dtype)
    expected = {name: tuple(tensor.shape) for name, tensor in values.items()}
    folder = saved(tmp_path, values, is_zip)
    assert read_pickle_shapes(folder) == (expected, tmp_path / BIN_FILE)
    assert open_pickles(tmp_path).shapes == expected  # type: ignore[union-attr]


OTHERS: dict[str, Callable[[], Any]] = {
    "a tensor": lambda: torch.zeros(3),
    "nothing": dict,
    "a number": lambda: {"a": torch.zeros(3), "b": 3},
    "other keys": lambda: {1: torch.zeros(3)},
    "sparse": lambda: {"a": torch.eye(3).to_sparse()},
    "a stride of 0": lambda: {"a": torch.zeros(1).expand(1 << 40)},
    "another class": lambda: {"a": Path("x")},
}


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("name", OTHERS)
def test_other_contents_are_left_to_torch(name: str, is_zip: bool, tmp_path: Path) -> None:
    assert read_pickle_shapes(saved(tmp_path, OTHERS[name](), is_zip)) is None


def test_no_global_of_a_file_is_called(tmp_path: Path) -> None:
    class Opens:
        def __reduce__(self) -> tuple[Any, ...]:
            return open, (str(tmp_path / "made"), "w")

    torch.save({"a": Opens()}, tmp_path / BIN_FILE)
    assert read_pickle_shapes(tmp_path) is None
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("state", [b"}X\x01\x00\x00\x00aK\x01s", b"N}X\x01\x00\x00\x00aK\x01s\x86"])
@pytest.mark.parametrize("name", [b"argparse\nNamespace", b"collections\nOrderedDict"])
def test_no_class_is_given_a_state(name: bytes, state: bytes, tmp_path: Path) -> None:
    data = b"\x80\x02c" + name + b"\n" + state + b"b."
    path = changed(saved(tmp_path, {"a": torch.zeros(3)}) / BIN_FILE, "data.pkl", lambda _: data)
    assert read_values(path, {"fairseq"}) is None
    assert not hasattr(argparse.Namespace, "a")


def changed(path: Path, name: str, content: Callable[[bytes], bytes], method: int = 0) -> Path:
    """The file with another content of one record."""
    with zipfile.ZipFile(path) as archive:
        records = {record: archive.read(record) for record in archive.namelist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for record, data in records.items():
            archive.writestr(record, content(data) if record.endswith(name) else data)
    return path


def test_damaged_files_are_left_to_torch(tmp_path: Path) -> None:
    tensors: dict[str, Tensor] = {"a": torch.zeros(3, 4)}
    path = saved(tmp_path, tensors) / BIN_FILE
    good = path.read_bytes()
    assert shapes_of(path) == {"a": (3, 4)}
    edits: list[tuple[str, Callable[[bytes], bytes], int]] = [
        ("data/0", lambda data: data[:-4], zipfile.ZIP_STORED),
        ("data/0", lambda data: data, zipfile.ZIP_DEFLATED),
        ("data.pkl", lambda data: data[:-20], zipfile.ZIP_STORED),
        ("data.pkl", lambda data: data.replace(b"K\x03K\x04", b"K\x05K\x04"), zipfile.ZIP_STORED),
        # a memo of 2 ** 31 entries
        ("data.pkl", lambda data: b"\x80\x02Nr\xff\xff\xff\x7f.", zipfile.ZIP_STORED),
        ("data.pkl", lambda data: pickle.dumps({"a": "b"}), zipfile.ZIP_STORED),
    ]
    for edit in edits:
        path.write_bytes(good)
        assert shapes_of(changed(path, *edit)) is None
    for size in (0, 1, 10, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:size])
        assert shapes_of(path) is None


def test_damaged_legacy_files_are_left_to_torch(tmp_path: Path) -> None:
    tensors: dict[str, Tensor] = {"a": torch.zeros(3, 4), "b": torch.ones(2)}
    path = saved(tmp_path, tensors, is_zip=False) / BIN_FILE
    good = path.read_bytes()
    assert shapes_of(path) == {"a": (3, 4), "b": (2,)}
    size_of_a = good.index(struct.pack("<q", 12))
    edits = [
        good.replace(b"\x6c\xfc\x9c\x46", b"\x6c\xfc\x9c\x47"),  # the magic number
        good.replace(b"M\xe9\x03", b"M\xea\x03"),  # the version
        good.replace(b"little_endian\x94\x88", b"little_endian\x94\x89"),
        good.replace(b"little_endianq\x02\x88", b"little_endianq\x02\x89"),
        good.replace(b"K\x03K\x04", b"K\x05K\x04"),
        good[:size_of_a] + struct.pack("<q", 11) + good[size_of_a + 8 :],
        *(good[:size] for size in (size_of_a, size_of_a + 4, len(good) - 1)),
    ]
    assert sum(edit != good for edit in edits) == len(edits) - 1, "one form of the flag occurs"
    for edit in edits:
        path.write_bytes(edit)
        assert (shapes_of(path) is None) == (edit != good)
