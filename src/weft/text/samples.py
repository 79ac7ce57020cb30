"""Documents -> packed samples: one row of tokens, cut into samples of equal length.

    documents   <b> a b <e>   <b> c <e>   <b> d e f <e>          length 4
    ids         <b> a b <b>   c <b> d e   f
    targets     a b <e> c     <e> d e f   <e>
    document    0 0 0 1       1 2 2 2     2   padding

A token's target is the next token of its own document, so the end token is a target and never an
input, and no place is wasted on guessing how the next document begins. `document` tells attention
which tokens belong together (ForwardBatch.documents_BT).

The ids of all documents lie in one flat array, which may be a file mapped into memory: a sample is
cut out when it is asked for, and nothing else is read.

Differs from the plain stream of GPT-2 and the article, which `separate=False` gives: there every
token but the last has the next one as its target, whoever it belongs to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import UsageError

IGNORE = -100
"""Target where there is nothing to predict: what torch's cross entropy leaves out."""
PADDING_DOCUMENT = -1

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Sample:
    """Equal-length rows; only the last sample of a stream may hold padding, behind its tokens."""

    ids_T: Numbers
    targets_T: Numbers
    documents_T: Numbers
    length: int
    """Places that are not padding."""


class PackedSamples:
    """Samples of `length` tokens, read by number. Documents carry their begin and end already.

    A place is a token that has a target. Every pair of neighbours inside a document is one place; a
    document of fewer than two tokens has none and is passed over. `skip` leaves out places at the
    front, so that samples are cut elsewhere.
    """

    def __init__(
        self,
        flat: NDArray[np.int32],
        starts: Numbers,
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
        places = np.maximum(np.diff(starts) - 1, 0)
        self.first_places: Numbers = np.concatenate(([0], places.cumsum()))
        """The number of each document's first place, and at the end of all places."""
        self.num_places = max(0, int(self.first_places[-1]) - skip)

    def __len__(self) -> int:
        return -(-self.num_places // self.length)

    def length_of(self, number: int) -> int:
        """Places of a sample that are not padding."""
        return min(self.length, self.num_places - number * self.length)

    def __getitem__(self, number: int) -> Sample:
        if not 0 <= number < len(self):
            raise IndexError(number)
        found = self.length_of(number)
        places_T = self.skip + number * self.length + np.arange(found)
        documents_T = np.searchsorted(self.first_places, places_T, side="right") - 1
        at_T = self.starts[documents_T] + places_T - self.first_places[documents_T]
        values = (self.flat[at_T], self.flat[at_T + 1], documents_T)
        padding = (self.pad_id, IGNORE, PADDING_DOCUMENT)
        rows = [
            np.concatenate((row.astype(np.int64), np.full(self.length - found, pad)))
            for row, pad in zip(values, padding, strict=True)
        ]
        return Sample(rows[0], rows[1], rows[2], found)
