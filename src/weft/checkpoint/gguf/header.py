"""The header of a GGUF file: settings and the places of its tensors, without their contents.

A path enters, a `GGUFHeader` leaves. Tensor data is not read. Layout (little-endian):

    "GGUF" version=2|3 num_tensors num_entries
    entries   key, type, value
    tensors   name, dimensions (fastest first), type, offset
    padding to general.alignment, then the data
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from weft.checkpoint.gguf.cursor import HeaderCursor
from weft.checkpoint.gguf.types import TYPES, TensorType
from weft.core.errors import DataError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
MAX_ENTRIES, MAX_TENSORS = 1 << 20, 1 << 20
ALIGNMENT = 32
"""Where general.alignment is absent."""
ENTRY_BYTES, TENSOR_BYTES = 13, 32
"""What the smallest entry and the smallest description of a tensor take."""


@dataclass(frozen=True)
class TensorInfo:
    """Where a tensor is and what it looks like."""

    name: str
    shape: tuple[int, ...]
    """In the order of torch: the last dimension is the one whose numbers are neighbours."""
    type: TensorType
    start: int
    """First byte, counted from the beginning of the file."""

    @property
    def num_blocks(self) -> int:
        return prod(self.shape) // self.type.block_len

    @property
    def num_bytes(self) -> int:
        return self.num_blocks * self.type.block_bytes


@dataclass(frozen=True)
class GGUFHeader:
    """Everything that a GGUF file says of itself."""

    path: Path
    version: int
    metadata: Mapping[str, Any]
    """Numbers and texts; lists of numbers are numpy arrays, lists of texts are lists."""
    tensors: Mapping[str, TensorInfo]
    """In the order of the file."""


def is_gguf(path: Path) -> bool:
    """Whether a file begins as a GGUF file does."""
    try:
        with path.open("rb") as file:
            return file.read(4) == MAGIC
    except OSError:
        return False


def read_header(path: str | Path) -> GGUFHeader:
    """Parse and check a header; a DataError names what is wrong with it."""
    path = Path(path)
    if not path.is_file():
        raise DataError("there is no such file. Name a .gguf file.", path)
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise DataError("is empty. Copy or download the file again.", path)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            return parse(HeaderCursor(buffer, path))


def parse(cursor: HeaderCursor) -> GGUFHeader:
    version = read_version(cursor)
    num_tensors = cursor.u64("the number of tensors")
    num_entries = cursor.count("entries", ENTRY_BYTES, MAX_ENTRIES)
    if num_tensors * TENSOR_BYTES > cursor.end - cursor.at or num_tensors > MAX_TENSORS:
        cursor.fail(f"says that {num_tensors} tensors follow, more than the file has room for")
    metadata = read_metadata(cursor, num_entries)
    check_not_split(metadata, cursor.path)
    found = [read_tensor(cursor) for _ in range(num_tensors)]
    alignment = read_alignment(metadata, cursor.path)
    data_start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for tensor in found:
        if tensor.name in tensors:
            cursor.fail(f"has two tensors with the name {short(tensor.name)}")
        tensors[tensor.name] = placed(tensor, data_start, alignment, cursor)
    return GGUFHeader(cursor.path, version, metadata, tensors)


def read_version(cursor: HeaderCursor) -> int:
    start = bytes(cursor.buffer[:4])
    if start != MAGIC:
        raise DataError(
            f"begins with {start!r} where a GGUF file begins with {MAGIC!r}. Name a GGUF file.",
            cursor.path,
        )
    cursor.take(4, "the first word")
    version = cursor.u32("the version")
    if version not in VERSIONS:
        if version & 0xFFFF == 0:
            reason = "its numbers are big-endian, and Weft reads little-endian files"
        else:
            reason = f"its version is {version}, and Weft reads {VERSIONS[0]} and {VERSIONS[1]}"
        raise DataError(f"{reason}. Convert the model again.", cursor.path)
    return version


def read_metadata(cursor: HeaderCursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(count):
        key = cursor.text(f"the name of entry {index}")
        if key in metadata:
            cursor.fail(f"has two entries with the name {short(key)}")
        kind = cursor.u32(f"the type of {short(key)}")
        metadata[key] = cursor.value(kind, short(key))
    return metadata


def read_tensor(cursor: HeaderCursor) -> TensorInfo:
    """One description; `start` is still counted from the beginning of the data."""
    name = cursor.text("the name of a tensor")
    what = f"tensor {short(name)}"
    rank = cursor.u32(what)
    if not 1 <= rank <= MAX_DIMENSIONS:
        cursor.fail(f"{what} has {rank} dimensions where 1 to {MAX_DIMENSIONS} are allowed")
    shape = tuple(cursor.u64(what) for _ in range(rank))[::-1]
    number = cursor.u32(what)
    if number not in TYPES:
        known = ", ".join(f"{n} ({t.name})" for n, t in TYPES.items())
        cursor.fail(f"{what} is of type {number}, which is none of {known}")
    kind = TYPES[number]
    if min(shape) < 1 or shape[-1] % kind.block_len:
        cursor.fail(
            f"{what} has shape {shape} where rows of {kind.name} are made of whole blocks of "
            f"{kind.block_len}"
        )
    return TensorInfo(name, shape, kind, cursor.u64(what))


def placed(tensor: TensorInfo, data_start: int, alignment: int, cursor: HeaderCursor) -> TensorInfo:
    """The tensor with its place in the file, which must be inside it."""
    start, room = data_start + tensor.start, cursor.end - data_start
    if tensor.start % alignment or tensor.start + tensor.num_bytes > room:
        raise DataError(
            f"tensor {short(tensor.name)} takes {tensor.num_bytes} bytes from byte {start} on, but "
            f"the file has {cursor.end} bytes and tensors begin at multiples of {alignment}. "
            "Copy or download the file again.",
            cursor.path,
        )
    return TensorInfo(tensor.name, tensor.shape, tensor.type, start)


def read_alignment(metadata: Mapping[str, Any], path: Path) -> int:
    value = metadata.get("general.alignment", ALIGNMENT)
    good = isinstance(value, int) and not isinstance(value, bool) and 8 <= value <= 1 << 30
    if not good or value & (value - 1):
        raise DataError(
            f"general.alignment is {short(str(value))}: it must be a power of two from 8 on. "
            "Convert the model again.",
            path,
        )
    return int(value)


def check_not_split(metadata: Mapping[str, Any], path: Path) -> None:
    count = metadata.get("split.count", 1)
    if isinstance(count, int) and count > 1:
        raise DataError(
            f"is one of {count} parts of a model. Join them first: llama-gguf-split --merge.", path
        )


def short(text: str) -> str:
    """A name for a message, which a forged file may have made very long."""
    return text if len(text) <= 80 else f"{text[:80]}..."
