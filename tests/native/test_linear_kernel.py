"""Exact products: right, and the same bits for a row in any company, both ways of computing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.native import kernels, packed
from weft.native.kernels import linear
from weft.native.packed import pack

SHAPES = [(7, 5), (33, 40), (320, 17), (641, 48), (800, 21), (1, 1), (64, 100)]


@pytest.fixture(params=["native", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By the library and by torch."""
    if request.param == "torch":
        monkeypatch.setattr(packed, "native", lambda: None)
    return request.param


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def numbers(inputs: int, outputs: int, rows: int) -> tuple[Tensor, Tensor, Tensor]:
    return torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_the_product_is_right(way: str, inputs: int, outputs: int) -> None:
    x, weight, bias = numbers(inputs, outputs, 50)
    exact = F.linear(x.double(), weight.double(), bias.double())
    for b in (bias, None):
        off = (linear(x, pack(weight), b) - (exact if b is not None else exact - bias)).abs().max()
        assert off / exact.abs().max() < 2e-6


@pytest.mark.parametrize(("inputs", "outputs"), SHAPES)
def test_a_row_has_the_same_bits_in_any_company(way: str, inputs: int, outputs: int) -> None:
    x, weight, bias = numbers(inputs, outputs, 300)
    weight = pack(weight)
    together = linear(x, weight, bias)
    for rows in (1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 64, 241):
        for start in (0, 13):
            some = slice(start, start + rows)
            assert linear(x[some], weight, bias).equal(together[some]), f"{rows} from {start}"


@pytest.mark.parametrize("rows", [1, 5, 70])
def test_threads_change_nothing(rows: int) -> None:
    x, weight, bias = numbers(320, 250, rows)
    weight = pack(weight)
    alone = linear(x, weight, bias)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert linear(x, weight, bias).equal(alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("some", [slice(0, 16), slice(16, 48), slice(5, 39), slice(39, None)])
@pytest.mark.parametrize("rows", [1, 9])
def test_some_outputs_have_the_bits_of_all(some: slice, rows: int) -> None:
    x, weight, bias = numbers(33, 50, rows)
    weight = pack(weight)
    for b in (bias, None):
        assert linear(x, weight, b, some).equal(linear(x, weight, b)[:, some])


def test_rows_may_lie_anywhere(way: str) -> None:
    x, weight, _ = numbers(24, 10, 6)
    weight = pack(weight)
    expected = linear(x, weight)
    wide = torch.zeros(6, 2, 30)
    wide[:, 1, 3:27] = x
    assert linear(wide[:, 1, 3:27], weight).equal(expected)
    assert linear(x.T.contiguous().T, weight).equal(expected)
    assert linear(x.view(2, 3, 24), weight).equal(expected.view(2, 3, 10))
    assert linear(x[0], weight).equal(expected[0])
    assert linear(x[:0], weight).shape == (0, 10)


@pytest.mark.parametrize(("inputs", "outputs"), [*SHAPES, (17, 27), (33, 77), (7, 150), (150, 7)])
def test_the_number_of_threads_changes_no_bit(way: str, inputs: int, outputs: int) -> None:
    """By torch, products of 16 rows depend on it for many sizes."""
    x, weight, bias = numbers(inputs, outputs, 37)
    matrix, threads, results = pack(weight), torch.get_num_threads(), []
    try:
        for number in (1, 2, 3, 4):
            torch.set_num_threads(number)
            results.append(linear(x, matrix, bias))
    finally:
        torch.set_num_threads(threads)
    assert all(result.equal(results[0]) for result in results)


def test_a_library_that_vanished_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = pack(torch.zeros(2, 2))
    monkeypatch.setattr(kernels, "native", lambda: None)
    with pytest.raises(AssertionError, match="not there"):
        linear(torch.zeros(1, 2), weight)
