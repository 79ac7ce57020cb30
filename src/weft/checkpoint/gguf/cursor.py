"""`HeaderCursor`: bytes of a GGUF header -> numbers, strings and lists, with bounds checks.

Whatever a file claims (a count, a length) is compared with the bytes that are left before anything
is allocated or repeated, so that a forged file fails at once and a cut one is named as such.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from weft.core.errors import DataError

U32, U64 = struct.Struct("<I"), struct.Struct("<Q")
TEXT, LIST = 8, 9
NUMBERS = {
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
}
"""Kinds of value that have a fixed size, as numpy writes them."""
DTYPES = {kind: np.dtype(name) for kind, name in NUMBERS.items()}

MAX_DEPTH = 4
"""Lists inside lists; llama.cpp writes none."""
MAX_TEXTS = 1 << 21
"""Texts in one list. The largest vocabularies have a quarter of a million, and twice as many
merges."""
MIN_SIZES = {TEXT: 8, LIST: 12}
"""Bytes that the smallest text and the smallest list take."""


class HeaderCursor:
    """A place in the header that moves forward as values are read."""

    def __init__(self, buffer: mmap.mmap | bytes, path: Path) -> None:
        self.buffer, self.path = buffer, path
        self.at, self.end = 0, len(buffer)

    def fail(self, text: str) -> NoReturn:
        raise DataError(f"{text}, at byte {self.at}. Copy or download the file again.", self.path)

    def take(self, count: int, what: str) -> int:
        """Step over `count` bytes; the place where they begin."""
        if count > self.end - self.at:
            self.fail(f"{what} needs {count} bytes but only {self.end - self.at} are left")
        start = self.at
        self.at += count
        return start

    def u32(self, what: str) -> int:
        return int(U32.unpack_from(self.buffer, self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(U64.unpack_from(self.buffer, self.take(8, what))[0])

    def count(self, what: str, least: int, most: int) -> int:
        """How many of something follow, each of at least `least` bytes."""
        count = self.u64(f"the number of {what}")
        if count * least > self.end - self.at or count > most:
            allowed = min(most, (self.end - self.at) // least)
            self.fail(f"says that {count} {what} follow where at most {allowed} can")
        return count

    def text(self, what: str) -> str:
        length = self.u64(what)
        start = self.take(length, what)
        try:
            return str(self.buffer[start : start + length], "utf-8")
        except UnicodeDecodeError:
            self.fail(f"{what} is not UTF-8 text")

    def value(self, kind: int, what: str, depth: int = 0) -> Any:
        """A metadata value: a number, a text, an array of numbers or a list of the others."""
        if kind == TEXT:
            return self.text(what)
        if kind == LIST:
            return self.values(what, depth)
        return self.numbers(kind, 1, what)[0].item()

    def numbers(self, kind: int, count: int, what: str) -> np.ndarray[Any, Any]:
        """`count` numbers of one kind in memory of their own."""
        if kind not in DTYPES:
            known = ", ".join(str(k) for k in sorted([*DTYPES, TEXT, LIST]))
            self.fail(f"{what} has a value of type {kind} where types are {known}")
        size = count * DTYPES[kind].itemsize
        start = self.take(size, what)
        data = self.buffer[start : start + size]
        if kind == 7 and data.strip(b"\0\1"):
            self.fail(f"{what} is neither true (1) nor false (0)")
        return np.frombuffer(data, DTYPES[kind])

    def values(self, what: str, depth: int) -> Any:
        """An array of numbers, or a list of texts or of lists."""
        if depth >= MAX_DEPTH:
            self.fail(f"{what} has lists within lists, more than {MAX_DEPTH} deep")
        kind = self.u32(what)
        if kind in DTYPES:
            count = self.count(f"numbers in {what}", DTYPES[kind].itemsize, self.end)
            return self.numbers(kind, count, what)
        count = self.count(f"values in {what}", MIN_SIZES.get(kind, 1), MAX_TEXTS)
        if kind == TEXT:
            return self.texts(count, what)
        return [self.value(kind, what, depth + 1) for _ in range(count)]

    def texts(self, count: int, what: str) -> list[str]:
        """As `text`, many times; written out, as a vocabulary has 100,000 of them."""
        buffer, at, end, unpack = self.buffer, self.at, self.end, U64.unpack_from
        found: list[str] = []
        try:
            for _ in range(count):
                (length,) = unpack(buffer, at)
                at += 8
                if length > end - at:
                    break
                found.append(str(buffer[at : at + length], "utf-8"))
                at += length
        except (struct.error, UnicodeDecodeError):
            pass
        if len(found) < count:
            self.fail(f"{what} breaks off after {len(found)} of {count} texts")
        self.at = at
        return found
