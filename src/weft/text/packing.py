"""Packing: documents -> one token stream, cut into samples of equal length.

    documents   <b> a b <e>   <b> c <e>   <b> d e f <e>          length 4
    ids         <b> a b <b>   c <b> d e   f
    targets     a b <e> c     <e> d e f   <e>
    document    0 0 0 1       1 2 2 2     2   padding

The target of a token is the next token of the same document, so the end token is a target and never
an input, and no position is spent on predicting how the next document begins. `document` keeps
attention inside a document (ForwardBatch.documents_BT).

The ids of all documents are one flat array, which may be a memory-mapped file: a sample is cut out
when it is requested, and nothing else is read.

Differs from the plain stream of GPT-2, which `separate=False` gives: there the target of every
token but the last is the next token of the stream.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import UsageError

IGNORE = -100
"""Target at positions without a loss (torch's `ignore_index`)."""
PADDING_DOCUMENT = -1

Int64Array = NDArray[np.int64]


@dataclass(frozen=True)
class PackedSample:
    """Rows of equal length; only the last sample of a stream may have padding, at its end."""

    ids_T: Int64Array
    targets_T: Int64Array
    documents_T: Int64Array
    length: int
    """Number of positions that are not padding."""


class PackedSamples:
    """Samples of `length` tokens, read by index. Documents include their begin and end tokens.

    A position is a token that has a target: every token of a document but the last. A document of
    fewer than two tokens has none. `skip` leaves out the first positions, which moves all sample
    boundaries.
    """

    def __init__(
        self,
        flat: NDArray[np.int32],
        starts: Int64Array,
        length: int,
        separate: bool = True,
        skip: int = 0,
        pad_id: int = 0,
    ) -> None:
        if length < 1:
            raise UsageError(f"the length of a sample is {length}: it must be at least 1.")
        if not separate:
            starts = np.array([0, len(flat)])
        self.flat, self.starts, self.length = flat, starts, length
        self.skip, self.pad_id = skip, pad_id
        num_positions = np.maximum(np.diff(starts) - 1, 0)
        self.first_positions: Int64Array = np.concatenate(([0], num_positions.cumsum()))
        """Index of each document's first position, and at the end the number of all positions."""
        self.num_positions = max(0, int(self.first_positions[-1]) - skip)

    def __len__(self) -> int:
        return -(-self.num_positions // self.length)

    def length_of(self, index: int) -> int:
        """Number of positions of a sample that are not padding."""
        return min(self.length, self.num_positions - index * self.length)

    def __getitem__(self, index: int) -> PackedSample:
        if not 0 <= index < len(self):
            raise IndexError(index)
        length = self.length_of(index)
        positions_T = self.skip + index * self.length + np.arange(length)
        documents_T = np.searchsorted(self.first_positions, positions_T, side="right") - 1
        flat_T = self.starts[documents_T] + positions_T - self.first_positions[documents_T]
        values = (self.flat[flat_T], self.flat[flat_T + 1], documents_T)
        padding = (self.pad_id, IGNORE, PADDING_DOCUMENT)
        rows = [
            np.concatenate((row.astype(np.int64), np.full(self.length - length, pad)))
            for row, pad in zip(values, padding, strict=True)
        ]
        return PackedSample(rows[0], rows[1], rows[2], length)
