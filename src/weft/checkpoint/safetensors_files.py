"""Safetensors files: one file, or shards with an index, as a `TensorSource`; and writing them.

    model.safetensors                   all tensors
    model-00001-of-00002.safetensors    as many tensors as fit, in their order
    model.safetensors.index.json        which tensor is in which shard

Names, order and size limit are those of `transformers`. A tensor is never divided: one that is
larger than the limit has a file of its own. Headers are read by safetensors_header.py. Tensors are
read into our own memory (`FileReader`): the `safetensors` library maps them, and mapped pages count
as memory of the process beside the weights made from them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from weft.checkpoint.safetensors_header import (
    INDEX_FILE,
    WEIGHTS_FILE,
    SafetensorsHeader,
    open_safetensors_header,
)
from weft.checkpoint.tensor_source import FileReader
from weft.core.errors import DataError, UsageError

MAX_SHARD_BYTES = 5 * 10**9
"""Default size limit of a file."""
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
"""Number formats by their names in the header."""
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


class SafetensorsSource(SafetensorsHeader):
    """Tensors of one or more files. Only headers are read until `read` is called."""

    is_mapped = False

    def __init__(self, path: Path, files: Mapping[Path, Any]) -> None:
        super().__init__(path, files)
        self.readers = {file: FileReader(file) for file in files}

    @cached_property
    def offsets(self) -> dict[str, tuple[int, int]]:
        """First byte of each tensor in its file, and the byte after its last."""
        return {
            name: offsets
            for reader in self.readers.values()
            for name, offsets in read_offsets(reader).items()
        }

    def read(self, name: str) -> Tensor:
        """A tensor in memory of its own."""
        file, shape, dtype_name = self.file_of[name], self.shapes[name], self.dtypes[name]
        if dtype_name not in DTYPES:
            known = ", ".join(DTYPES)
            raise DataError(
                f"{name} is of type {dtype_name}: Weft reads {known}. Convert the weights to one "
                "of these.",
                file,
            )
        dtype, (start, end) = DTYPES[dtype_name], self.offsets[name]
        num_bytes = prod(shape) * dtype.itemsize
        if end - start != num_bytes:
            raise DataError(
                f"{name} has {end - start} bytes, but its shape needs {num_bytes}. Copy the file "
                "again.",
                file,
            )
        return self.readers[file].read(start, num_bytes, name).view(dtype).view(shape)


def read_offsets(reader: FileReader) -> dict[str, tuple[int, int]]:
    """Offsets of each tensor in a file with a valid header: 8 bytes with the size of the header,
    the header, then the data, to which the offsets in the header are relative."""
    size = int(reader.read(0, 8, "header").view(torch.int64))
    header = json.loads(bytes(reader.read(8, size, "header").numpy()))
    header.pop("__metadata__", None)
    relative = {name: entry["data_offsets"] for name, entry in header.items()}
    return {name: (8 + size + start, 8 + size + end) for name, (start, end) in relative.items()}


def open_safetensors(folder: Path) -> SafetensorsSource | None:
    """The tensors of a folder; None if it has no safetensors file."""
    header = open_safetensors_header(folder)
    return None if header is None else SafetensorsSource(header.path, header.files)


def save_shards(
    state: Mapping[str, Tensor], folder: Path, max_bytes: int = MAX_SHARD_BYTES
) -> list[str]:
    """Write model.safetensors, or shards and an index; returns the file names."""
    sizes = {name: tensor.nbytes for name, tensor in state.items()}
    shards = plan_shards(sizes, max_bytes)
    if len(shards) == 1:
        write_shard(state, folder / WEIGHTS_FILE)
        return [WEIGHTS_FILE]
    files = {
        f"model-{number:05d}-of-{len(shards):05d}.safetensors": names
        for number, names in enumerate(shards, 1)
    }
    for file, names in files.items():
        write_shard({name: state[name] for name in names}, folder / file)
    weight_map = {name: file for file, names in files.items() for name in names}
    index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return [*files, INDEX_FILE]


def write_shard(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Write one file with the permissions of other new files (the library's are 0600)."""
    path.touch()
    mode = path.stat().st_mode
    save_file(dict(tensors), path, metadata={"format": "pt"})
    path.chmod(mode)


def plan_shards(sizes: Mapping[str, int], max_bytes: int) -> list[list[str]]:
    """Names by file: each file is filled in order until the next tensor does not fit."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def parse_size(text: str) -> int:
    """'5GB' -> bytes. KB, MB and GB are powers of 1,000; KiB, MiB and GiB of 1,024."""
    match = SIZE.fullmatch(text.strip())
    unit = UNITS.get(match[2].upper()) if match else None
    size = int(float(match[1]) * unit) if match and unit else 0
    if size < 1:
        raise UsageError(f"'{text}' is not a file size. Write it like 5GB, 500MB or 2GiB.")
    return size
