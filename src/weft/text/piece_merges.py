"""Pieces with scores (SentencePiece) -> BPE merges: all ways to form a piece from two others.

SentencePiece has no list of merges: it merges the neighbors that form the piece with the best
score. A vocabulary of 262,144 pieces has two million ways to cut a piece in two. Looking both parts
of each up would take seconds, so most are excluded by hashes first, with numpy:

    hash of characters s..e of a text = (P[e] - P[s]) * B ** -s,  P[i] = sum of c[j] * B ** j, j < i

modulo 2 ** 64 (Karp and Rabin 1987). The time is linear in the length of the pieces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

BASE = 0x9E3779B97F4A7C15
"""An odd number: it has an inverse modulo 2 ** 64."""
INVERSE = pow(BASE, -1, 1 << 64)
MIX = 0xD6E8FEB86659FD93
TABLE_BITS = 24
"""Size of the table of hashes; a vocabulary fills a sixtieth of it."""
CHUNK_CHARACTERS = 1 << 20
"""Characters that are hashed at once, which bounds the memory."""

Merges = list[tuple[str, str]]
Hashes = NDArray[np.uint64]


def merges_from_scores(scores: Mapping[str, float], longest_left_first: bool) -> Merges:
    """The merges of all pieces, best score first; those of one piece by the length of the left
    part. Pieces of equal score keep their order."""
    ranked = sorted(scores, key=scores.__getitem__, reverse=True)
    if longest_left_first:
        return merges_of(ranked[::-1], scores)[::-1]
    return merges_of(ranked, scores)


def merges_of(pieces: Sequence[str], known: Mapping[str, float]) -> Merges:
    """All ways to form each piece from two known ones, in the order of pieces and cuts."""
    known_hashes = np.zeros(1 << TABLE_BITS, dtype=bool)
    for texts in chunks(pieces):
        known_hashes[table_index(TextHashes(texts).wholes())] = True
    merges: Merges = []
    for texts in chunks(pieces):
        cuts = TextHashes(texts).cuts(known_hashes)
        ways = [(texts[index][:cut], texts[index][cut:]) for index, cut in cuts]
        merges += [way for way in ways if way[0] in known and way[1] in known]
    return merges


def chunks(pieces: Sequence[str]) -> Iterator[Sequence[str]]:
    """Ranges of pieces with about CHUNK_CHARACTERS characters each."""
    ends = np.cumsum(np.fromiter(map(len, pieces), np.int64, len(pieces)))
    first = 0
    while first < len(pieces):
        start = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, start + CHUNK_CHARACTERS)))
        yield pieces[first:last]
        first = last


def table_index(hashes: Hashes) -> NDArray[np.int64]:
    """The upper bits of a product, which depend on all bits of a hash: the first character is only
    in its lower ones, the last only in its upper ones."""
    mixed = (hashes ^ (hashes >> np.uint64(32))) * np.uint64(MIX)
    return (mixed >> np.uint64(64 - TABLE_BITS)).astype(np.int64)


class TextHashes:
    """Hashes of some texts, of their beginnings and of their ends."""

    def __init__(self, texts: Sequence[str]) -> None:
        lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        self.ends = np.cumsum(lengths)
        self.starts = self.ends - lengths
        codes = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), "<u4")
        count = len(codes)
        terms = (codes.astype(np.uint64) + np.uint64(1)) * powers(BASE, count)
        self.sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)])
        self.inverses = powers(INVERSE, count + 1)

    def between(self, first: NDArray[np.int64], end: NDArray[np.int64]) -> Hashes:
        hashes: Hashes = (self.sums[end] - self.sums[first]) * self.inverses[first]
        return hashes

    def wholes(self) -> Hashes:
        return self.between(self.starts, self.ends)

    def cuts(self, known_hashes: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
        """Index of a text and length of its beginning, where the hashes of both parts are known."""
        lengths = self.ends - self.starts
        index = np.repeat(np.arange(len(lengths)), np.maximum(lengths - 1, 0))
        # the positions inside of the texts: all but their first
        is_inside = np.ones(int(lengths.sum()), dtype=bool)
        is_inside[self.starts[lengths > 0]] = False
        position = np.flatnonzero(is_inside)
        has_left = known_hashes[table_index(self.between(self.starts[index], position))]
        index, position = index[has_left], position[has_left]
        has_right = known_hashes[table_index(self.between(position, self.ends[index]))]
        index, position = index[has_right], position[has_right]
        return zip(index.tolist(), (position - self.starts[index]).tolist(), strict=True)


def powers(base: int, count: int) -> Hashes:
    """base ** 0, base ** 1, ... modulo 2 ** 64."""
    factors = np.full(count, base & (1 << 64) - 1, dtype=np.uint64)
    factors[:1] = 1
    return np.cumprod(factors, dtype=np.uint64)
