"""Products with rounded inputs: the exact product of what was rounded, and rows by themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.native.test_packed import blocks
from weft.core.quantized import dequantize_blocks
from weft.native.kernels import linear, linear_top_k
from weft.native.packed import PackedMatrix, pack_blocks

INPUTS = 160


def rounded_weight(bits: int, outputs: int = 101) -> tuple[PackedMatrix, Tensor]:
    """A packed weight that asks for rounded inputs, and its numbers."""
    quants, scales, minima = blocks(bits, outputs, INPUTS)
    packed = replace(pack_blocks(quants, scales, minima), int8_activations=True)
    return packed, dequantize_blocks(quants, scales, minima)


def rounded(x: Tensor) -> Tensor:
    """The inputs as 8 bits hold them, 32 by 32, in double."""
    groups = x.double().unflatten(-1, (-1, 32))
    step = groups.abs().amax(-1, keepdim=True) / 127
    whole = torch.where(step > 0, groups / step, 0.0).round()
    assert whole.abs().max() <= 127
    return (whole * step).flatten(-2)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 2, 13, 40])
def test_it_is_the_product_of_the_rounded_inputs(bits: int, rows: int) -> None:
    weight, numbers = rounded_weight(bits)
    x, bias = torch.randn(rows, INPUTS), torch.randn(101)
    expected = rounded(x) @ numbers.double().T + bias
    result = linear(x, weight, bias)
    assert (result - expected).abs().max() <= 1e-6 * expected.abs().max()
    plain = linear(x, replace(weight, int8_activations=False), bias)
    off = (result - plain).abs().max() / plain.abs().max()
    assert 0 < off < 0.02, "inputs of 8 bits are half a percent off, neither more nor equal"


@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_has_the_same_bits_in_any_company(bits: int) -> None:
    weight, _ = rounded_weight(bits)
    x = torch.randn(1000, INPUTS)
    every = linear(x, weight)
    for rows in (1, 2, 3, 11, 12, 13, 25, 500):
        assert linear(x[:rows], weight).equal(every[:rows]), rows
    assert linear(x[7:8], weight).equal(every[7:8])
    assert linear(x, weight, None, slice(5, 77)).equal(every[:, 5:77])
    threads = torch.get_num_threads()
    torch.set_num_threads(3 - min(threads, 2))
    try:
        assert linear(x, weight).equal(every)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("exponent", [-28, -20, -9, -4, -2, 3, 20])
def test_inputs_of_any_size_keep_their_8_bits(bits: int, exponent: int) -> None:
    """Each group of 32 inputs has its own step, so small inputs lose no more than large ones."""
    weight, numbers = rounded_weight(bits)
    x = torch.randn(13, INPUTS) * 10.0**exponent
    y, exact = linear(x, weight), x.double() @ numbers.double().T
    assert (y - rounded(x) @ numbers.double().T).abs().max() <= 1e-6 * exact.abs().max()
    assert (y - exact).abs().max() <= 0.02 * exact.abs().max()


@pytest.mark.parametrize("bits", [4, 8])
def test_a_group_of_small_inputs_counts_beside_a_group_of_large_ones(bits: int) -> None:
    weight, numbers = rounded_weight(bits)
    x = torch.randn(13, INPUTS)
    x[:, 32:64] *= 1e-5
    without = x.clone()
    without[:, 32:64] = 0
    part = (linear(x, weight) - linear(without, weight)).double()
    exact = x[:, 32:64].double() @ numbers[:, 32:64].double().T
    # results of size 10 carry about 1e-6 of rounding, the part itself is of size 1e-4
    assert (part - exact).abs().max() <= 0.05 * exact.abs().max()


def test_rows_of_nothing_and_of_no_numbers_keep_to_themselves() -> None:
    weight, _ = rounded_weight(4)
    x = torch.randn(5, INPUTS)
    expected = linear(x, weight)
    x[1], x[2, 3], x[4, 40] = 0.0, torch.nan, torch.inf
    result = linear(x, weight)
    assert result[1].eq(0).all()
    assert not result[2].isfinite().any() and not result[4].isfinite().any()
    assert result[0].equal(expected[0]) and result[3].equal(expected[3])


def test_two_products_one_after_the_other_round_their_own_inputs() -> None:
    (one, _), (other, _) = rounded_weight(4), rounded_weight(8)
    x, y = torch.randn(2, 3, INPUTS)
    first, second = linear(x, one), linear(y, other)
    assert linear(y, other).equal(second) and linear(x, one).equal(first)
    x += 1
    assert not linear(x, one).equal(first)


def test_the_best_ids_are_those_of_the_logits() -> None:
    weight, _ = rounded_weight(8, outputs=331)
    x = torch.randn(300, INPUTS)
    with torch.inference_mode():
        values, ids, _ = linear_top_k(x, weight, None, 4, ())
    expected = linear(x, weight).topk(4)
    assert ids.equal(expected.indices) and values.equal(expected.values)
