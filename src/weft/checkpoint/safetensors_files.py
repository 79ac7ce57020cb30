"""Safetensors files as a `TensorSource`: one file, or the shards that an index names.

The library checks the headers; here its errors become sentences, and the index of a sharded
checkpoint may name only files that lie beside it. Tensors are read by us (reading.py): the library
would map them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from weft.checkpoint.reading import FileReader
from weft.core.config import read_settings
from weft.core.errors import DataError

ONE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Number formats by the names that files have for them."""


class SafetensorsSource:
    """Tensors of one or more files. Only headers are read until a tensor is asked for."""

    is_mapped = False

    def __init__(self, path: Path, files: Mapping[Path, Any]) -> None:
        self.path, self.files = path, files
        self.file_of = {name: file for file, opened in files.items() for name in opened.keys()}  # noqa: SIM118
        self.bytes = {file: FileReader(file) for file in files}

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            name: tuple(self.files[file].get_slice(name).get_shape())
            for name, file in self.file_of.items()
        }

    @cached_property
    def dtypes(self) -> dict[str, str]:
        """The stored number formats, as the file names them: F32, BF16, ..."""
        return {
            name: str(self.files[file].get_slice(name).get_dtype())
            for name, file in self.file_of.items()
        }

    @cached_property
    def places(self) -> dict[str, tuple[int, int]]:
        """Where each tensor begins and ends in its file."""
        return {name: place for file in self.bytes.values() for name, place in places(file).items()}

    def read(self, name: str) -> Tensor:
        """A tensor in memory of its own."""
        file, shape, kind = self.file_of[name], self.shapes[name], self.dtypes[name]
        if kind not in DTYPES:
            known = ", ".join(DTYPES)
            raise DataError(f"{name} is of type {kind}: Weft reads {known}.", file)
        dtype, (start, end) = DTYPES[kind], self.places[name]
        count = prod(shape) * dtype.itemsize
        if end - start != count:
            told = f"has {end - start} bytes where its shape makes it {count}"
            raise DataError(f"{name} {told}. Copy the file again.", file)
        return self.bytes[file].at(start, count, name).view(dtype).view(shape)


def places(file: FileReader) -> dict[str, tuple[int, int]]:
    """Of each tensor in a file whose header is known to be right: the header's size in 8 bytes, the
    header, then the data, from where it counts."""
    size = int(file.at(0, 8, "header").view(torch.int64))
    header = json.loads(bytes(file.at(8, size, "header").numpy()))
    header.pop("__metadata__", None)
    ends = {name: told["data_offsets"] for name, told in header.items()}
    return {name: (8 + size + start, 8 + size + end) for name, (start, end) in ends.items()}


def open_safetensors(folder: Path) -> SafetensorsSource | None:
    """The tensors of a folder; None where it has no such file."""
    if (folder / INDEX).is_file():
        return SafetensorsSource(folder / INDEX, open_shards(folder))
    if (folder / ONE).is_file():
        return SafetensorsSource(folder / ONE, {folder / ONE: open_file(folder / ONE)})
    return None


def open_file(path: Path) -> Any:
    """A mapped file with a checked header."""
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise DataError("there is no such file. Copy the whole model folder.", path) from None
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"is not a whole safetensors file ({error}). Copy it again.", path
        ) from None


def open_shards(folder: Path) -> dict[Path, Any]:
    """The files of an index; each must hold just what the index says of it."""
    index = folder / INDEX
    weight_map = read_settings(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise DataError("has no weight_map: it does not say where tensors are.", index)
    shards: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise DataError(f"puts {name} into {file!r}: it must be a file beside it.", index)
        shards.setdefault(file, set()).add(name)
    opened = {folder / file: open_file(folder / file) for file in sorted(shards)}
    for path, found in opened.items():
        names = set(found.keys())
        wrong = sorted(names ^ shards[path.name])
        if wrong:
            raise DataError(
                f"and {index.name} differ in {wrong[0]} and {len(wrong) - 1} more. "
                "Use the files of one model.",
                path,
            )
    return opened
