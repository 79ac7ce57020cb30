"""Rows of different lengths in two flat arrays: 4 bytes a token instead of a Python list's 40."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


class Ragged:
    """Many rows of ids, read by number."""

    def __init__(self, rows: Iterable[Sequence[int]]) -> None:
        parts = [np.asarray(row, dtype=np.int32) for row in rows]
        self.lengths: NDArray[np.int64] = np.array([len(part) for part in parts], dtype=np.int64)
        self.flat = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)
        self.starts = np.concatenate(([0], self.lengths.cumsum()))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> NDArray[np.int32]:
        return self.flat[self.starts[row] : self.starts[row + 1]]
