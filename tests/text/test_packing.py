"""Packed samples: nothing lost, nothing twice, and no target across the border of a document."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.text.packing import IGNORE, PADDING_DOCUMENT, PackedSamples

DOCUMENTS = st.lists(st.lists(st.integers(3, 99), max_size=12).map(lambda d: [1, *d, 2]))


def packed(documents, length, **options):
    """Samples of documents that lie one behind the other."""
    starts = np.cumsum([0, *map(len, documents)])
    flat = np.array([token for document in documents for token in document], dtype=np.int32)
    return PackedSamples(flat, starts, length, **options)


def places(samples):
    """All places that hold a token, as (token, target, document)."""
    columns = [(s.ids_T, s.targets_T, s.documents_T) for s in samples]
    rows = [row for column in columns for row in zip(*map(np.ndarray.tolist, column), strict=True)]
    return [row for row in rows if row[2] != PADDING_DOCUMENT]


def test_the_drawing_in_the_docstring_holds():
    documents = [[1, 10, 11, 2], [1, 12, 2], [1, 13, 14, 15, 2]]
    samples = list(packed(documents, length=4, pad_id=0))
    assert [s.ids_T.tolist() for s in samples] == [[1, 10, 11, 1], [12, 1, 13, 14], [15, 0, 0, 0]]
    assert [s.targets_T.tolist() for s in samples] == [
        [10, 11, 2, 12], [2, 13, 14, 15], [2, IGNORE, IGNORE, IGNORE],
    ]  # fmt: skip
    assert [s.documents_T.tolist() for s in samples] == [
        [0, 0, 0, 1], [1, 2, 2, 2], [2, -1, -1, -1],
    ]  # fmt: skip
    assert [s.length for s in samples] == [4, 4, 1]


@given(DOCUMENTS, st.integers(1, 9))
def test_every_pair_of_neighbors_comes_once_and_stays_in_its_document(documents, length):
    samples = list(packed(documents, length))
    expected = [(a, b, n) for n, document in enumerate(documents) for a, b in pairwise(document)]
    assert places(samples) == expected
    assert all(s.ids_T.shape == (length,) for s in samples)
    assert all(s.length == length for s in samples[:-1])


@given(DOCUMENTS, st.integers(1, 9))
def test_the_plain_stream_predicts_across_borders(documents, length):
    stream = [token for document in documents for token in document]
    result = places(packed(documents, length, separate=False))
    assert result == [(a, b, 0) for a, b in pairwise(stream)]


@given(DOCUMENTS, st.integers(1, 9), st.integers(0, 9))
def test_skipped_places_are_missing_at_the_front_and_nowhere_else(documents, length, skip):
    whole, later = packed(documents, length), packed(documents, length, skip=skip)
    assert places(later) == places(whole)[skip:]
    assert [later.length_of(i) for i in range(len(later))] == [s.length for s in later]


def test_a_document_of_one_token_is_skipped():
    samples = list(packed([[], [1], [1, 2]], length=2))
    assert places(samples) == [(1, 2, 2)]
    assert list(packed([], length=2)) == []


def test_a_sample_needs_a_length():
    with pytest.raises(UsageError, match="the length of a sample is 0"):
        packed([[1, 2]], 0)
