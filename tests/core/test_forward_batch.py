"""`ForwardBatch`: shapes agree at the door, and positions follow cache and documents."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch, document_starts

IDS = torch.zeros(2, 5, dtype=torch.long)


@dataclass
class StartOnly:
    """A cache as far as a batch looks into it."""

    start: int | Tensor


@pytest.mark.parametrize("shape", [(5,), (2, 0), (2, 5, 3)])
def test_ids_that_are_no_rows_of_tokens_are_refused_with_their_shape(shape):
    with pytest.raises(UsageError, match=r"ids have shape \(.*Use ids\[None\]"):
        ForwardBatch(torch.zeros(shape, dtype=torch.long))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("lengths_B", (3,)),
        ("documents_BT", (2, 4)),
        ("prefix_B", (3,)),
        ("segments_BT", (1, 5)),
        ("memory_BSD", (3, 7, 32)),
        ("memory_lengths_B", (2, 7)),
    ],
)
def test_a_tensor_that_does_not_fit_the_ids_is_named(name, shape):
    with pytest.raises(AssertionError, match=name):
        ForwardBatch(IDS, **{name: torch.zeros(shape, dtype=torch.long)})


def test_positions_count_from_zero_and_are_one_row_where_all_agree():
    assert ForwardBatch(IDS).positions_BT.tolist() == [[0, 1, 2, 3, 4]]


def test_positions_go_on_after_the_cache():
    assert ForwardBatch(IDS, cache=StartOnly(3)).positions_BT.tolist() == [[3, 4, 5, 6, 7]]
    each = ForwardBatch(IDS, cache=StartOnly(torch.tensor([0, 9]))).positions_BT
    assert each.tolist() == [[0, 1, 2, 3, 4], [9, 10, 11, 12, 13]]


def test_start_is_zero_without_a_cache_and_the_caches_own_with_one():
    assert ForwardBatch(IDS).start == 0
    assert ForwardBatch(IDS, cache=StartOnly(3)).start == 3


def test_positions_begin_again_with_each_document():
    documents = torch.tensor([[0, 0, 1, 1, 1], [4, 5, 5, 5, 4]])
    positions = ForwardBatch(IDS, documents_BT=documents).positions_BT
    assert positions.tolist() == [[0, 1, 0, 1, 2], [0, 0, 1, 2, 0]]


@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=5), min_size=1, max_size=3))
def test_every_token_of_a_document_has_the_same_start(rows):
    width = min(sum(lengths) for lengths in rows)
    ids = [[n for n, length in enumerate(row) for _ in range(length)][:width] for row in rows]
    expected = [[row.index(n) for n in row] for row in ids]
    assert document_starts(torch.tensor(ids)).tolist() == expected
