"""Rows: a view where rows are evenly spaced, an index elsewhere, and the same numbers from both."""

import pytest
import torch

from weft.nn.attention.kernels.rows import Rows, Spacing, spacing_of

LIMIT = 12

INDICES = {
    "tiles": ([[0, 1, 2], [3, 4, 5]], Spacing(0, 3, 1)),
    "overlapping": ([[1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 7, 8]], Spacing(1, 2, 1)),
    "one tile": ([[4, 5, 6]], Spacing(4, 3, 1)),
    "a class of three": ([[1, 4], [7, 10]], Spacing(1, 6, 3)),
    "one row each": ([[2], [4], [6]], Spacing(2, 2, 1)),
    "uneven": ([[0, 1], [2, 3], [6, 7]], None),
    "gap inside": ([[0, 1, 5]], None),
    "beyond the end": ([[8, 9], [10, 11], [12, 12]], None),
    "one past the end": ([[11, 12]], None),
    "backwards": ([[4, 5], [0, 1]], None),
    "the same tile twice": ([[0, 1], [0, 1]], None),
    "steps that do not divide": ([[0, 2], [3, 5]], None),
}


@pytest.mark.parametrize("name", INDICES)
def test_evenly_spaced_rows_are_recognised(name):
    index, spacing = INDICES[name]
    assert spacing_of(torch.tensor(index), LIMIT) == spacing


@pytest.mark.parametrize("name", INDICES)
def test_taking_and_adding_equal_an_index(name):
    index = torch.tensor(INDICES[name][0])
    rows, x = Rows(index, LIMIT), torch.randn(LIMIT, 3, 5)
    expected = x[index.clamp(max=LIMIT - 1)].transpose(1, 2)
    assert rows.take(x).equal(expected)
    values, sums = torch.randn(expected.shape), torch.randn(LIMIT + 1, 3, 5)
    by_hand = sums.clone()
    by_hand.index_put_((index,), values.transpose(1, 2), accumulate=True)
    rows.add(sums, values)
    torch.testing.assert_close(sums, by_hand)


@pytest.mark.parametrize("name", ["tiles", "a class of three", "uneven", "beyond the end"])
def test_putting_writes_real_rows_and_wastes_the_others(name):
    index = torch.tensor(INDICES[name][0])
    values, x = torch.randn(len(index), 3, index.shape[1], 5), torch.zeros(LIMIT + 1, 3, 5)
    Rows(index, LIMIT).put(x, values)
    for b, t in torch.cartesian_prod(*(torch.arange(n) for n in index.shape)).tolist():
        if index[b, t] < LIMIT:
            assert x[index[b, t]].equal(values[b, :, t])


def test_a_slice_of_a_larger_tensor_is_read_where_it_lies():
    whole = torch.randn(LIMIT, 6, 5)
    rows = Rows(torch.tensor([[1, 2, 3], [4, 5, 6]]), LIMIT)
    taken = rows.take(whole[:, 2:4])
    assert taken.equal(whole[1:7, 2:4].unflatten(0, (2, 3)).transpose(1, 2))
    assert taken.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
