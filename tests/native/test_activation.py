"""Activations: right, and the same bits for a row in any company, both ways of computing."""

from __future__ import annotations

import pytest
import torch

from weft.core.errors import WeftError
from weft.native import kernels
from weft.native.kernels import ACTIVATIONS, activation, padded_activation


@pytest.fixture(params=["native", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By the library and by torch."""
    if request.param == "torch":
        monkeypatch.setattr(kernels, "native", lambda: None)
    return request.param


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_every_activation_is_right(way: str, kind: str) -> None:
    x = torch.cat([torch.randn(500) * 4, torch.tensor([0.0, 90, -90, 200, -200, 1e-6, -1e-6])])
    exact = ACTIVATIONS[kind](x.double())
    torch.testing.assert_close(activation(kind, x).double(), exact, atol=1e-6, rtol=2e-6)


@pytest.mark.parametrize("kind", ACTIVATIONS)
@pytest.mark.parametrize("size", [1, 24, 100, 64])
def test_a_row_has_the_same_bits_in_any_company(way: str, kind: str, size: int) -> None:
    x = torch.randn(40, size)
    together = activation(kind, x)
    for rows in (1, 2, 3, 7, 16, 33):
        assert activation(kind, x[3 : 3 + rows].clone()).equal(together[3 : 3 + rows])


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_a_gate_is_the_activation_times_the_other_half(way: str, kind: str) -> None:
    gate, up = torch.randn(5, 2 * 27).chunk(2, dim=-1)
    expected = activation(kind, gate) * up
    assert activation(kind, gate, up).equal(expected)
    assert activation(kind, gate.contiguous(), up).equal(expected)
    assert activation(kind, gate.view(1, 5, 27), up.view(1, 5, 27)).equal(expected[None])


def test_threads_change_nothing() -> None:
    x = torch.randn(301, 101)
    one, threads = activation("silu", x), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert activation("silu", x).equal(one)
    finally:
        torch.set_num_threads(threads)


def test_gradients_and_other_dtypes_take_torch() -> None:
    x = torch.randn(3, 5, requires_grad=True)
    activation("silu", x, x).sum().backward()
    assert x.grad is not None
    assert activation("silu", x.detach().double()).dtype == torch.float64
    assert activation("silu", torch.zeros(0, 5)).shape == (0, 5)


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(WeftError, match="sillu"):
        activation("sillu", torch.zeros(1))


@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_without_the_library_a_row_has_the_same_bits_with_three_threads(kind: str) -> None:
    # torch divides GELU among threads from 2**14 elements on, other functions from 2**15
    x_NF = torch.randn(155, 100, generator=torch.Generator().manual_seed(0))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        together_NF = padded_activation(ACTIVATIONS[kind], x_NF)
    finally:
        torch.set_num_threads(before)
    each_NF = torch.cat([padded_activation(ACTIVATIONS[kind], x_F[None]) for x_F in x_NF])
    assert torch.equal(together_NF, each_NF)
