"""Rules that move whole rows do so with few bits as with numbers; all others leave them alone."""

from __future__ import annotations

import pytest
import torch

from weft.checkpoint.families.llama import interleaved
from weft.checkpoint.weight_rules import WeightRule, converted, same, stacked, transposed
from weft.core.quantized import QuantizedMatrix, words_of


def matrix(bits: int, rows: int) -> QuantizedMatrix:
    words = words_of(torch.randint(0, 16, (rows, 64)), bits)
    scales, minima = torch.rand(rows, 2).half(), torch.rand(rows, 2).half()
    return QuantizedMatrix(words, scales, minima if bits == 4 else None)


ROWS = {
    "same": (same("ours", "a"), 1),
    "stacked": (stacked("ours", "abc", (8, 8, 8)), 3),
    "interleaved": (interleaved("ours", "a", heads=2, bias=False)[0], 1),
}
OTHERS = {
    "transposed": transposed("ours", "a"),
    "converted": converted("ours", "a", lambda x: x + 1, lambda x: x - 1),
    "made by hand": WeightRule("ours", ("a",), lambda parts: parts[0], lambda whole: [whole]),
}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("name", ROWS)
def test_the_numbers_of_joined_bits_are_the_joined_numbers(name: str, bits: int) -> None:
    rule, count = ROWS[name]
    parts = [matrix(bits, 8) for _ in range(count)]
    result = rule.join_quantized(parts)
    assert result is not None and result.kind == f"q{bits}"
    assert result.numbers().equal(rule.join([part.numbers() for part in parts]))


@pytest.mark.parametrize("name", OTHERS)
def test_what_changes_more_than_the_order_of_rows_is_not_done_to_bits(name: str) -> None:
    assert OTHERS[name].join_quantized([matrix(8, 8)]) is None


def test_parts_of_different_kinds_are_not_joined() -> None:
    rule = ROWS["stacked"][0]
    assert rule.join_quantized([matrix(8, 8), matrix(4, 8), matrix(8, 8)]) is None
    assert rule.join_quantized([matrix(8, 8), None, matrix(8, 8)]) is None
    assert rule.join_quantized([None, None, None]) is None
