"""The table that grows and the memory of recent results: never stale, never made twice."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.nn.positions.alibi import slopes
from weft.nn.positions.position_table import FIRST_ROWS, LastResult, PositionTable
from weft.nn.positions.t5_bias import BucketRule, buckets_by_distance


def test_a_table_makes_each_row_once_and_always_in_the_same_steps() -> None:
    made: list[tuple[int, int]] = []

    def make(positions: Tensor) -> Tensor:
        made.append((int(positions[0]), len(positions)))
        return positions[:, None] * torch.tensor([1, 10])

    table = PositionTable(make)
    rows = table.rows(torch.tensor([[0, 3]]))
    assert rows.tolist() == [[[0, 0], [3, 30]]]
    far = 3 * FIRST_ROWS
    assert table.rows(torch.tensor([[far]])).tolist() == [[[far, 10 * far]]]
    table.rows(torch.tensor([[5]]))
    assert made == [(0, FIRST_ROWS), (FIRST_ROWS, FIRST_ROWS), (2 * FIRST_ROWS, 2 * FIRST_ROWS)]


class Counted:
    """A function of a tensor that knows how often it was called."""

    def __init__(self) -> None:
        self.recent, self.calls = LastResult[Tensor](size=2), 0

    def __call__(self, tensor: Tensor, other: object = None) -> Tensor:
        return self.recent.get((tensor, other), lambda: self.make(tensor))

    def make(self, tensor: Tensor) -> Tensor:
        self.calls += 1
        return tensor * 2


def test_equal_tensors_share_a_result() -> None:
    double = Counted()
    first = torch.arange(3)
    assert double(first) is double(first) is double(torch.arange(3))
    assert double.calls == 1


def test_a_tensor_that_was_written_to_is_read_again() -> None:
    for make in (torch.arange, torch.inference_mode()(torch.arange)):
        double, tensor = Counted(), make(3)
        double(tensor)
        with torch.inference_mode():
            tensor += 1
        assert double(tensor).tolist() == [2, 4, 6]


def test_shape_dtype_and_plain_values_are_part_of_the_key() -> None:
    double = Counted()
    for key in [
        (torch.arange(3),),
        (torch.arange(3)[None],),
        (torch.arange(3, dtype=torch.int32),),
    ]:
        assert torch.equal(double(*key), key[0] * 2)
    double(torch.arange(3), 5)
    double(torch.arange(3), torch.tensor([5]))
    assert double.calls == 5


def test_the_oldest_result_is_forgotten_first() -> None:
    double, tensors = Counted(), [torch.full((2,), n) for n in range(3)]
    for tensor in tensors:
        double(tensor)
    double(tensors[1])
    assert double.calls == 3
    double(tensors[0])
    assert double.calls == 4


def test_what_is_remembered_in_inference_mode_is_an_ordinary_tensor() -> None:
    table, cpu = PositionTable(lambda positions: positions.float()), torch.device("cpu")
    slopes.cache_clear()
    buckets_by_distance.cache_clear()
    with torch.inference_mode():
        assert not table.rows(torch.tensor([[300]])).is_inference()
        assert not slopes(5, torch.float32, cpu).is_inference()
        assert not buckets_by_distance(BucketRule(8, 20, True), cpu).is_inference()
    assert not table.tables[cpu].is_inference()
