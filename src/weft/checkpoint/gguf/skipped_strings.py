"""An array of strings in a GGUF header that is skipped: `weft info` needs the size of a vocabulary
and the ids of a few names, not 262,144 Python strings.

A string is its length in 8 bytes and the text. If all are shorter than 256 bytes and none contains
seven zeros, the lengths are where seven zeros follow a byte: numpy finds them at once. That each
string ends where the next begins is checked for all of them.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LENGTH_BYTES = 8
MEAN_BYTES = 40
"""Bytes per string that are searched; longer ones are skipped one by one."""


@dataclass(frozen=True, eq=False)
class SkippedStrings:
    """The bytes of an array of strings, and the position of each string."""

    data: bytes
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts)

    def find(self, texts: Iterable[str]) -> list[int]:
        """The indices of the strings that are one of these texts, in order."""
        return sorted(index for text in texts for index in self.find_one(text.encode()))

    def find_one(self, text: bytes) -> list[int]:
        stored, indices = len(text).to_bytes(LENGTH_BYTES, "little") + text, []
        position = self.data.find(stored)
        while position >= 0:
            index = int(np.searchsorted(self.starts, position))
            if index < len(self) and self.starts[index] == position:
                indices.append(index)
            position = self.data.find(stored, position + 1)
        return indices


def short_strings(buffer: mmap.mmap | bytes, at: int, count: int) -> SkippedStrings | None:
    """`count` strings from a position on; None if they have to be read one by one."""
    data = buffer[at : at + (count + 1) * MEAN_BYTES]
    if count == 0 or len(data) < LENGTH_BYTES:
        return None
    codes = np.frombuffer(data, np.uint8)
    is_zero, size = codes == 0, len(codes) - LENGTH_BYTES + 1
    is_length = np.ones(size, dtype=bool)
    for place in range(1, LENGTH_BYTES):
        is_length &= is_zero[place : place + size]
    starts = np.flatnonzero(is_length)[:count]
    if len(starts) < count or starts[0] != 0:
        return None
    ends = starts + LENGTH_BYTES + codes[starts]
    if (ends[:-1] != starts[1:]).any() or ends[-1] > len(data):
        return None
    return SkippedStrings(data[: int(ends[-1])], starts)
