"""Documents -> packed samples: one stream of tokens, cut into samples of equal length.

    documents   <b> a b <e>   <b> c <e>   <b> d e f <e>          length 4
    ids         <b> a b <b>   c <b> d e   f
    targets     a b <e> c     <e> d e f   <e>
    document    0 0 0 1       1 2 2 2     2   padding

A token's target is the next token of its own document, so the end token is a target and never an
input, and no place is wasted on guessing how the next document begins. `document` tells attention
which tokens belong together (ForwardBatch.documents_BT). Documents are read one at a time.

Differs from the plain stream of GPT-2 and the article, which `separate=False` gives: there every
token but the last has the next one as its target, whoever it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import UsageError

IGNORE = -100
"""Target where there is nothing to predict: what torch's cross entropy leaves out."""
PADDING_DOCUMENT = -1

Numbers = NDArray[np.int64]
Triple = tuple[int, int, int]
"""Token, target, document."""


@dataclass(frozen=True)
class Sample:
    """Equal-length rows; only the last sample of a stream may hold padding, behind its tokens."""

    ids_T: Numbers
    targets_T: Numbers
    documents_T: Numbers
    length: int
    """Places that are not padding."""


def packed_samples(
    documents: Iterable[Sequence[int]], length: int, pad_id: int = 0, separate: bool = True
) -> Iterator[Sample]:
    """Samples of `length` tokens. Documents carry their begin and end already.

    Every pair of neighbours inside a document comes up exactly once. A document of fewer than two
    tokens has no such pair and is passed over when documents are kept separate.
    """
    if length < 1:
        raise UsageError(f"the length of a sample is {length}: it must be at least 1.")
    triples = separate_triples(documents) if separate else stream_triples(documents)
    places: list[Triple] = []
    for triple in triples:
        places.append(triple)
        if len(places) == length:
            yield to_sample(places, length, pad_id)
            places = []
    if places:
        yield to_sample(places, length, pad_id)


def separate_triples(documents: Iterable[Sequence[int]]) -> Iterator[Triple]:
    """Neighbours inside each document. Documents are numbered from 0."""
    for number, document in enumerate(documents):
        for token, target in zip(document[:-1], document[1:], strict=True):
            yield token, target, number


def stream_triples(documents: Iterable[Sequence[int]]) -> Iterator[Triple]:
    """Neighbours in the stream of all documents, which count as one."""
    stream = chain.from_iterable(documents)
    token = next(stream, None)
    for target in stream:
        assert token is not None, "the stream had a first token, or there would be no second"
        yield token, target, 0
        token = target


def to_sample(places: Sequence[Triple], length: int, pad_id: int) -> Sample:
    """Columns of the places, padded on the right."""
    table = np.full((3, length), [[pad_id], [IGNORE], [PADDING_DOCUMENT]], dtype=np.int64)
    table[:, : len(places)] = np.asarray(places, dtype=np.int64).T
    return Sample(table[0], table[1], table[2], len(places))
