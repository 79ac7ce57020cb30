"""StridedRows: a view where rows are evenly spaced, else an index; both give the same values."""

import pytest
import torch

from weft.nn.attention.kernels.sparse.tiles import RowStride, StridedRows, row_stride

LIMIT = 12

INDICES = {
    "tiles": ([[0, 1, 2], [3, 4, 5]], RowStride(0, 3, 1)),
    "overlapping": ([[1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 7, 8]], RowStride(1, 2, 1)),
    "one tile": ([[4, 5, 6]], RowStride(4, 3, 1)),
    "a class of three": ([[1, 4], [7, 10]], RowStride(1, 6, 3)),
    "one row each": ([[2], [4], [6]], RowStride(2, 2, 1)),
    "uneven": ([[0, 1], [2, 3], [6, 7]], None),
    "gap inside": ([[0, 1, 5]], None),
    "beyond the end": ([[8, 9], [10, 11], [12, 12]], None),
    "one past the end": ([[11, 12]], None),
    "backwards": ([[4, 5], [0, 1]], None),
    "the same tile twice": ([[0, 1], [0, 1]], None),
    "steps that do not divide": ([[0, 2], [3, 5]], None),
}


@pytest.mark.parametrize("name", INDICES)
def test_evenly_spaced_rows_are_recognized(name):
    index, stride = INDICES[name]
    assert row_stride(torch.tensor(index), LIMIT) == stride


@pytest.mark.parametrize("name", INDICES)
def test_gathering_and_adding_equal_an_index(name):
    index = torch.tensor(INDICES[name][0])
    rows, x = StridedRows(index, LIMIT), torch.randn(LIMIT, 3, 5)
    expected = x[index.clamp(max=LIMIT - 1)].transpose(1, 2)
    assert rows.gather(x).equal(expected)
    values, sums = torch.randn(expected.shape), torch.randn(LIMIT + 1, 3, 5)
    by_hand = sums.clone()
    by_hand.index_put_((index,), values.transpose(1, 2), accumulate=True)
    rows.scatter_add(sums, values)
    torch.testing.assert_close(sums, by_hand)


@pytest.mark.parametrize("name", ["tiles", "a class of three", "uneven", "beyond the end"])
def test_scattering_writes_rows_and_leaves_padding_out(name):
    index = torch.tensor(INDICES[name][0])
    values, x = torch.randn(len(index), 3, index.shape[1], 5), torch.zeros(LIMIT + 1, 3, 5)
    StridedRows(index, LIMIT).scatter(x, values)
    for b, t in torch.cartesian_prod(*(torch.arange(n) for n in index.shape)).tolist():
        if index[b, t] < LIMIT:
            assert x[index[b, t]].equal(values[b, :, t])


def test_a_slice_of_a_larger_tensor_is_read_where_it_lies():
    whole = torch.randn(LIMIT, 6, 5)
    rows = StridedRows(torch.tensor([[1, 2, 3], [4, 5, 6]]), LIMIT)
    taken = rows.gather(whole[:, 2:4])
    assert taken.equal(whole[1:7, 2:4].unflatten(0, (2, 3)).transpose(1, 2))
    assert taken.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
