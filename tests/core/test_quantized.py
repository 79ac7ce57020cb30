"""Small numbers in words, and the float32 numbers that scales and minima make of them."""

from __future__ import annotations

import pytest
import torch

from weft.core.quantized import QuantizedMatrix, dequantize_blocks, fields_of, words_of


def test_a_word_holds_its_first_input_lowest() -> None:
    assert words_of(torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8]]), 4).item() & (2**32 - 1) == 0x87654321
    assert words_of(torch.tensor([[-1, 2, 3, -2]]), 8).item() & (2**32 - 1) == 0xFE0302FF


@pytest.mark.parametrize(("bits", "low", "high"), [(4, 0, 16), (8, -128, 128)])
def test_words_give_their_numbers_back(bits: int, low: int, high: int) -> None:
    quants = torch.randint(low, high, (3, 5, 64))
    words = words_of(quants, bits)
    assert words.shape == (3, 5, 64 * bits // 32) and words.dtype == torch.int32
    assert fields_of(words, bits).equal(quants)
    assert fields_of(words.transpose(0, 1), bits).equal(quants.transpose(0, 1))


def test_numbers_are_scale_times_q_plus_minimum() -> None:
    quants = torch.arange(64)[None] % 16
    scales, minima = torch.tensor([[0.5, 2.0]]).half(), torch.tensor([[-1.0, 3.0]]).half()
    eight, four = (
        QuantizedMatrix(words_of(quants, 8), scales),
        QuantizedMatrix(words_of(quants, 4), scales, minima),
    )
    assert (eight.kind, four.kind, eight.inputs, four.inputs) == ("q8", "q4", 64, 64)
    each = scales.float().repeat_interleave(32, 1)
    assert eight.numbers().equal(quants * each)
    assert four.numbers().equal(quants * each + minima.float().repeat_interleave(32, 1))


def test_the_middle_of_a_symmetric_block_keeps_the_sign_of_its_zero() -> None:
    """As (q - 8) * scale has it; sums of the packed product cannot tell."""
    quants, scales = torch.randint(0, 16, (1, 64)), torch.tensor([[-0.5, 0.25]])
    expected = (quants - 8) * scales.repeat_interleave(32, 1)
    result = dequantize_blocks(quants, scales, -8 * scales)
    assert (expected == 0).any() and result.equal(expected)
    assert result.signbit().equal(expected.signbit())
