"""Exact products: right, and the same bits for a row in any company, both ways of computing."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.nn import linear as module
from weft.nn.linear import Linear, linear, pack_model, unpack_model
from weft.nn.native import packed
from weft.nn.native.packed import pack

SHAPES = [(7, 5), (33, 40), (320, 17), (641, 48), (1, 1), (64, 100)]


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


def test_a_packed_layer_gives_what_the_plain_one_gives(way: str) -> None:
    layer, x = Linear(24, 10), torch.randn(2, 5, 24)
    plain = layer(x)
    layer.pack()
    torch.testing.assert_close(layer(x), plain)
    assert layer.product(x, slice(3, 8)).equal(layer(x)[..., 3:8])
    layer.unpack()
    assert layer(x).equal(plain)
    assert layer.product(x, slice(3, 8)).shape == (2, 5, 5)


def test_gradients_and_other_dtypes_take_the_plain_weight() -> None:
    layer, x = Linear(24, 10), torch.randn(3, 24)
    layer.pack(pack(torch.zeros(10, 24)))
    with torch.enable_grad():
        layer(x).sum().backward()
    assert layer.weight.grad is not None
    assert layer(x).equal(layer.bias.expand(3, 10))
    layer.packed, kept = None, layer.packed
    layer.double().packed = kept
    assert layer(x.double()).dtype == torch.float64


def test_training_moving_and_loading_unpack() -> None:
    layer = Linear(4, 3)
    for change in (
        layer.train,
        layer.double,
        layer.float,
        lambda: layer.load_state_dict(Linear(4, 3).state_dict()),
    ):
        layer.float().pack()
        change()
        assert layer.packed is None
    layer.pack()
    layer.eval()
    assert layer.packed is not None


def test_a_packed_layer_is_saved_as_a_plain_one() -> None:
    layer = Linear(4, 3)
    layer.pack()
    assert list(layer.state_dict()) == ["weight", "bias"]


def test_a_model_is_packed_and_unpacked_whole() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.GELU(), Linear(6, 6), nn.Linear(6, 2)).eval()
    model[3].weight = nn.Parameter(model[2].weight[:2].clone())
    model[0].weight = model[2].weight
    x, given = torch.randn(4, 6), pack(model[3].weight)
    plain = model(x)
    assert pack_model(model, {"3": given}) is model
    assert model[0].packed is model[2].packed
    assert model[3].packed is given
    torch.testing.assert_close(model(x), plain)
    assert model(x[1:2]).equal(model(x)[1:2])
    unpack_model(model)
    assert model(x).equal(plain)


def test_a_library_that_vanished_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = pack(torch.zeros(2, 2))
    monkeypatch.setattr(module, "native", lambda: None)
    with pytest.raises(AssertionError, match="not there"):
        linear(torch.zeros(1, 2), weight)
