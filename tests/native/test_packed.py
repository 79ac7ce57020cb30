"""Packed weights: the order of panels and words, few bits, and copies."""

from __future__ import annotations

import copy

import pytest
import torch

from weft.core.errors import UsageError
from weft.core.quantized import dequantize_blocks
from weft.native import packed as module
from weft.native.kernels import linear
from weft.native.packed import PackedMatrix, pack, pack_blocks, panels


def blocks(bits: int, outputs: int = 37, inputs: int = 96):
    """Quants, scales and minima as a GGUF file might hold them."""
    low, high = (0, 16) if bits == 4 else (-128, 128)
    quants = torch.randint(low, high, (outputs, inputs)).to(torch.int8)
    scales = torch.randn(outputs, inputs // 32).half().float() / 16
    minima = torch.randn(outputs, inputs // 32).half().float() if bits == 4 else None
    return quants, scales.half().float(), minima


def test_a_panel_holds_neighbouring_outputs_input_by_input() -> None:
    weight = torch.arange(12.0).reshape(3, 4)
    expected = [[[0, 4], [1, 5], [2, 6], [3, 7]], [[8, 0], [9, 0], [10, 0], [11, 0]]]
    assert panels(weight, 2).tolist() == expected


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("rows", [1, 2, 7, 40])
def test_few_bits_give_the_bits_of_the_dequantized_weight(bits: int, rows: int) -> None:
    quants, scales, minima = blocks(bits)
    few, all_bits = (
        pack_blocks(quants, scales, minima),
        pack(dequantize_blocks(quants, scales, minima)),
    )
    assert (few.kind, all_bits.kind) == (f"q{bits}", "f32")
    assert few.num_bytes < all_bits.num_bytes * (0.17 if bits == 4 else 0.28)
    x = torch.randn(rows, 96)
    assert linear(x, few).equal(linear(x, all_bits))
    some = slice(5, 30)
    assert linear(x, few, None, some).equal(linear(x, all_bits)[:, some])


def test_a_symmetric_4_bit_weight_is_one_with_a_minimum() -> None:
    quants, scales, _ = blocks(4)
    symmetric = dequantize_blocks(quants - 8, scales, None)
    assert dequantize_blocks(quants, scales, -8 * scales).equal(symmetric)
    x = torch.randn(3, 96)
    assert linear(x, pack_blocks(quants, scales, -8 * scales)).equal(linear(x, pack(symmetric)))


def test_scales_that_half_floats_cannot_hold_make_a_float_weight() -> None:
    quants, scales, _ = blocks(8)
    few = pack_blocks(quants, scales + 1e-7)
    assert few.kind == "f32"
    x = torch.randn(2, 96)
    assert linear(x, few).equal(linear(x, pack(dequantize_blocks(quants, scales + 1e-7, None))))


def test_without_the_library_few_bits_become_a_plain_weight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "native", lambda: None)
    quants, scales, minima = blocks(4)
    few = pack_blocks(quants, scales, minima)
    assert not few.is_native
    assert few.data.equal(dequantize_blocks(quants, scales, minima))


def test_scales_of_another_shape_are_refused() -> None:
    quants, scales, _ = blocks(8)
    with pytest.raises(UsageError, match=r"quants are \(37, 96\) and scales \(37, 2\)"):
        pack_blocks(quants, scales[:, :2])


def test_a_weight_that_is_not_float32_is_refused() -> None:
    with pytest.raises(UsageError, match=r"torch.float64 on cpu cannot be packed"):
        pack(torch.zeros(2, 2, dtype=torch.float64))


def test_a_copy_has_numbers_of_its_own() -> None:
    first = pack(torch.randn(5, 4))
    x = torch.randn(2, 4)
    expected = linear(x, first)
    second: PackedMatrix = copy.deepcopy(first)
    first.data.zero_()
    assert linear(x, second).equal(expected)
    assert linear(x, first).equal(torch.zeros(2, 5))
