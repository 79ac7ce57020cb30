"""The header of a GGUF file: path -> `GGUFHeader` (metadata and tensor table). Little-endian:

    "GGUF" version=2|3 num_tensors num_entries
    entries   key, type, value
    tensors   name, dimensions (fastest first), type, offset
    padding to general.alignment, then the data

Tensor data is not touched. Why not the `gguf` library: its reader takes 49 times as long (it makes
numpy views of every value; a vocabulary has 100,000), imports for a quarter of a second, and trusts
the sizes in the file. Here every count and length is compared with the remaining bytes before
anything is allocated, so that a forged file fails at once and a truncated one is reported as such.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from weft.checkpoint.gguf.skipped_strings import SkippedStrings, short_strings
from weft.core.errors import DataError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_DIMENSIONS = 4
MAX_ENTRIES, MAX_TENSORS = 1 << 20, 1 << 20
DEFAULT_ALIGNMENT = 32
MIN_ENTRY_BYTES, MIN_TENSOR_BYTES = 13, 32
"""Size of the smallest entry and of the smallest tensor description."""

U32, U64 = struct.Struct("<I"), struct.Struct("<Q")
STRING, ARRAY, BOOL = 8, 9, 7
"""Value types that are handled separately."""
DTYPES: dict[int, np.dtype[Any]] = {
    number: np.dtype(name)
    for number, name in {
        0: "<u1",
        1: "<i1",
        2: "<u2",
        3: "<i2",
        4: "<u4",
        5: "<i4",
        6: "<f4",
        7: "|b1",
        10: "<u8",
        11: "<i8",
        12: "<f8",
    }.items()
}
"""Value types of a fixed size."""
MAX_DEPTH = 4
"""Nesting of arrays; llama.cpp writes none."""
MAX_STRINGS = 1 << 21
"""Strings in one array. The largest vocabularies have a quarter of a million, and twice as many
merges."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Values of tokenizer.ggml.token_type."""
MIN_VALUE_BYTES = {STRING: 8, ARRAY: 12}
"""Size of the smallest string and of the smallest array."""


@dataclass(frozen=True)
class TensorType:
    """A type of tensor. A quantized tensor is a sequence of blocks of `block_len` numbers in
    `block_bytes` bytes each; no block crosses the end of a row."""

    number: int
    """Its number in a file."""
    name: str
    block_len: int
    block_bytes: int


TENSOR_TYPES: dict[int, TensorType] = {
    number: TensorType(number, *sizes)
    for number, sizes in {
        0: ("F32", 1, 4),
        1: ("F16", 1, 2),
        2: ("Q4_0", 32, 18),
        3: ("Q4_1", 32, 20),
        6: ("Q5_0", 32, 22),
        7: ("Q5_1", 32, 24),
        8: ("Q8_0", 32, 34),
        9: ("Q8_1", 32, 40),
        10: ("Q2_K", 256, 84),
        11: ("Q3_K", 256, 110),
        12: ("Q4_K", 256, 144),
        13: ("Q5_K", 256, 176),
        14: ("Q6_K", 256, 210),
        15: ("Q8_K", 256, 292),
        16: ("IQ2_XXS", 256, 66),
        17: ("IQ2_XS", 256, 74),
        18: ("IQ3_XXS", 256, 98),
        19: ("IQ1_S", 256, 50),
        20: ("IQ4_NL", 32, 18),
        21: ("IQ3_S", 256, 110),
        22: ("IQ2_S", 256, 82),
        23: ("IQ4_XS", 256, 136),
        24: ("I8", 1, 1),
        25: ("I16", 1, 2),
        26: ("I32", 1, 4),
        27: ("I64", 1, 8),
        28: ("F64", 1, 8),
        29: ("IQ1_M", 256, 56),
        30: ("BF16", 1, 2),
        34: ("TQ1_0", 256, 54),
        35: ("TQ2_0", 256, 66),
        39: ("MXFP4", 32, 17),
        40: ("NVFP4", 64, 36),
        41: ("Q1_0", 128, 18),
    }.items()
}
"""By number. Missing numbers are types that were withdrawn."""


@dataclass(frozen=True)
class TensorInfo:
    """Position, shape and type of a tensor."""

    name: str
    shape: tuple[int, ...]
    """In torch's order: the last dimension is contiguous."""
    type: TensorType
    start: int
    """Offset of the first byte in the file."""

    @property
    def num_blocks(self) -> int:
        return prod(self.shape) // self.type.block_len

    @property
    def num_bytes(self) -> int:
        return self.num_blocks * self.type.block_bytes


@dataclass(frozen=True)
class GGUFHeader:
    """Everything before the tensor data."""

    path: Path
    version: int
    metadata: Mapping[str, Any]
    """Numbers and strings; arrays of numbers are numpy arrays, arrays of strings are lists."""
    tensors: Mapping[str, TensorInfo]
    """In the order of the file."""


class HeaderCursor:
    """A position in the header that advances as values are read."""

    def __init__(self, buffer: mmap.mmap | bytes, path: Path) -> None:
        self.buffer, self.path = buffer, path
        self.at, self.end = 0, len(buffer)

    def fail(self, text: str) -> NoReturn:
        raise DataError(f"{text}, at byte {self.at}. Copy or download the file again.", self.path)

    def advance(self, count: int, what: str) -> int:
        """Skip `count` bytes; returns the position of the first."""
        if count > self.end - self.at:
            self.fail(f"{what} needs {count} bytes but only {self.end - self.at} are left")
        start = self.at
        self.at += count
        return start

    def u32(self, what: str) -> int:
        return int(U32.unpack_from(self.buffer, self.advance(4, what))[0])

    def u64(self, what: str) -> int:
        return int(U64.unpack_from(self.buffer, self.advance(8, what))[0])

    def count(self, what: str, min_bytes: int, maximum: int) -> int:
        """A number of items, each of at least `min_bytes`."""
        count = self.u64(f"the number of {what}")
        if count * min_bytes > self.end - self.at or count > maximum:
            possible = min(maximum, (self.end - self.at) // min_bytes)
            self.fail(f"claims {count} {what} where at most {possible} are possible")
        return count

    def string(self, what: str) -> str:
        length = self.u64(what)
        start = self.advance(length, what)
        try:
            return str(self.buffer[start : start + length], "utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8 text")

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        """A metadata value: a number, a string, a numpy array or a list."""
        if kind == STRING:
            return self.string(what)
        if kind == ARRAY:
            return self.array(what, depth)
        return self.numbers(kind, 1, what)[0].item()

    def numbers(self, kind: int, count: int, what: str) -> NDArray[Any]:
        """`count` numbers of one type in memory of their own."""
        if kind not in DTYPES:
            known = ", ".join(str(k) for k in sorted([*DTYPES, STRING, ARRAY]))
            self.fail(f"{what} has a value of type {kind}; types are {known}")
        size = count * DTYPES[kind].itemsize
        start = self.advance(size, what)
        data = self.buffer[start : start + size]
        if kind == BOOL and data.strip(b"\0\1"):
            self.fail(f"{what} is neither true (1) nor false (0)")
        return np.frombuffer(data, DTYPES[kind])

    def array(self, what: str, depth: int) -> NDArray[Any] | list[Any]:
        """An array of numbers, or a list of strings or arrays."""
        if depth >= MAX_DEPTH:
            self.fail(f"{what} has arrays nested more than {MAX_DEPTH} deep")
        kind = self.u32(what)
        if kind in DTYPES:
            count = self.count(f"numbers in {what}", DTYPES[kind].itemsize, self.end)
            return self.numbers(kind, count, what)
        count = self.count(f"values in {what}", MIN_VALUE_BYTES.get(kind, 1), MAX_STRINGS)
        if kind == STRING:
            return self.strings(count, what)
        return [self.value(kind, what, depth + 1) for _ in range(count)]

    def strings(self, count: int, what: str) -> list[str]:
        """Many strings; inlined, as a vocabulary has 100,000 of them."""
        buffer, at, end, unpack = self.buffer, self.at, self.end, U64.unpack_from
        strings: list[str] = []
        try:
            for _ in range(count):
                (length,) = unpack(buffer, at)
                at += 8
                if length > end - at:
                    break
                strings.append(str(buffer[at : at + length], "utf-8"))
                at += length
        except (struct.error, UnicodeDecodeError):
            pass
        if len(strings) < count:
            self.fail(f"{what} ends after {len(strings)} of {count} strings")
        self.at = at
        return strings

    def skip_strings(self, what: str) -> SkippedStrings | None:
        """Skip an array of strings; None if the array has other values."""
        if U32.unpack_from(self.buffer, self.advance(4, what))[0] != STRING:
            self.at -= 4
            return None
        count = self.count(f"values in {what}", MIN_VALUE_BYTES[STRING], MAX_STRINGS)
        skipped = short_strings(self.buffer, self.at, count)
        if skipped is None:
            skipped = self.skip_each(count, what)
        self.at += len(skipped.data)
        return skipped

    def skip_each(self, count: int, what: str) -> SkippedStrings:
        """The same, one by one."""
        buffer, at, end, unpack = self.buffer, self.at, self.end, U64.unpack_from
        starts = []
        for index in range(count):
            starts.append(at - self.at)
            at += 8 + (unpack(buffer, at)[0] if at <= end - 8 else 0)
            if at > end:
                self.fail(f"{what} ends after {index} of {count} strings")
        return SkippedStrings(buffer[self.at : at], np.array(starts, np.int64))


def is_gguf(path: Path) -> bool:
    """Whether a file starts with the magic number."""
    try:
        with path.open("rb") as file:
            return file.read(4) == MAGIC
    except OSError:
        return False


def read_header(path: str | Path, skipped: Collection[str] = ()) -> GGUFHeader:
    """Parse and check a header; a DataError says what is wrong with it. Arrays of strings with a
    name in `skipped` are SkippedStrings."""
    path = Path(path)
    if not path.is_file():
        raise DataError("there is no such file. Name a .gguf file.", path)
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise DataError("is empty. Copy or download the file again.", path)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer:
            return parse_header(HeaderCursor(buffer, path), skipped)


def parse_header(cursor: HeaderCursor, skipped: Collection[str] = ()) -> GGUFHeader:
    version = read_version(cursor)
    num_tensors = cursor.u64("the number of tensors")
    num_entries = cursor.count("entries", MIN_ENTRY_BYTES, MAX_ENTRIES)
    if num_tensors * MIN_TENSOR_BYTES > cursor.end - cursor.at or num_tensors > MAX_TENSORS:
        cursor.fail(f"claims {num_tensors} tensors, more than the file can contain")
    metadata = read_metadata(cursor, num_entries, skipped)
    check_not_split(metadata, cursor.path)
    infos = [read_tensor(cursor) for _ in range(num_tensors)]
    alignment = read_alignment(metadata, cursor.path)
    data_start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, TensorInfo] = {}
    for info in infos:
        if info.name in tensors:
            cursor.fail(f"has two tensors with the name {shorten(info.name)}")
        tensors[info.name] = with_file_offset(info, data_start, alignment, cursor)
    check_no_overlap(tensors, cursor.path)
    return GGUFHeader(cursor.path, version, metadata, tensors)


def read_version(cursor: HeaderCursor) -> int:
    start = bytes(cursor.buffer[:4])
    if start != MAGIC:
        raise DataError(
            f"begins with {start!r} where a GGUF file begins with {MAGIC!r}. Name a GGUF file.",
            cursor.path,
        )
    cursor.advance(4, "the magic number")
    version = cursor.u32("the version")
    if version not in VERSIONS:
        if version & 0xFFFF == 0:
            reason = "its numbers are big-endian, and Weft reads little-endian files"
        else:
            reason = f"its version is {version}, and Weft reads {VERSIONS[0]} and {VERSIONS[1]}"
        raise DataError(f"{reason}. Convert the model again.", cursor.path)
    return version


def read_metadata(cursor: HeaderCursor, count: int, skipped: Collection[str]) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(count):
        key = cursor.string(f"the name of entry {index}")
        if key in metadata:
            cursor.fail(f"has two entries with the name {shorten(key)}")
        kind = cursor.u32(f"the type of {shorten(key)}")
        value = cursor.skip_strings(shorten(key)) if key in skipped and kind == ARRAY else None
        metadata[key] = cursor.value(kind, shorten(key)) if value is None else value
    return metadata


def read_tensor(cursor: HeaderCursor) -> TensorInfo:
    """One description; `start` is still relative to the data."""
    name = cursor.string("the name of a tensor")
    what = f"tensor {shorten(name)}"
    rank = cursor.u32(what)
    if not 1 <= rank <= MAX_DIMENSIONS:
        cursor.fail(f"{what} has {rank} dimensions where 1 to {MAX_DIMENSIONS} are allowed")
    shape = tuple(cursor.u64(what) for _ in range(rank))[::-1]
    number = cursor.u32(what)
    if number not in TENSOR_TYPES:
        known = ", ".join(f"{n} ({t.name})" for n, t in TENSOR_TYPES.items())
        cursor.fail(f"{what} is of type {number}, which is none of {known}")
    kind = TENSOR_TYPES[number]
    if min(shape) < 1 or shape[-1] % kind.block_len:
        cursor.fail(
            f"{what} has shape {shape} where rows of {kind.name} consist of whole blocks of "
            f"{kind.block_len}"
        )
    return TensorInfo(name, shape, kind, cursor.u64(what))


def with_file_offset(
    info: TensorInfo, data_start: int, alignment: int, cursor: HeaderCursor
) -> TensorInfo:
    """The tensor with its offset in the file, which must be inside it."""
    start, available = data_start + info.start, cursor.end - data_start
    if info.start % alignment or info.start + info.num_bytes > available:
        raise DataError(
            f"tensor {shorten(info.name)} takes {info.num_bytes} bytes from byte {start} on, but "
            f"the file has {cursor.end} bytes and tensors begin at multiples of {alignment}. "
            "Copy or download the file again.",
            cursor.path,
        )
    return TensorInfo(info.name, info.shape, info.type, start)


def check_no_overlap(tensors: Mapping[str, TensorInfo], path: Path) -> None:
    """A DataError for two tensors with bytes in common: one of the offsets is damaged."""
    for info, following in pairwise(sorted(tensors.values(), key=lambda info: info.start)):
        end = info.start + info.num_bytes
        if end > following.start:
            raise DataError(
                f"tensor {shorten(info.name)} takes the bytes up to {end}, but tensor "
                f"{shorten(following.name)} begins at byte {following.start}: tensors must not "
                "overlap. Copy or download the file again.",
                path,
            )


def read_alignment(metadata: Mapping[str, Any], path: Path) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or not 8 <= value <= 1 << 30 or value & (value - 1):
        raise DataError(
            f"general.alignment is {shorten(str(value))}: it must be a power of two, at least 8. "
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


def shorten(text: str) -> str:
    """A name for a message; a forged file may have made it very long."""
    return text if len(text) <= 80 else f"{text[:80]}..."
