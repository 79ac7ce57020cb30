"""Packing: every token of every chunk gets its id, its position and its own row of the pool."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
import torch

from weft.engine.input_batch import PackedTokens, consecutive_tables, pad_page_tables

CPU = torch.device("cpu")


def two_chunks() -> tuple[PackedTokens, list[array[int]]]:
    tables = [array("i", [7, 2]), array("i", [5])]
    return PackedTokens.of([[11, 12, 13], [21]], starts=[3, 0]), tables


def test_tokens_stand_one_behind_the_other_at_their_own_positions() -> None:
    packed, _ = two_chunks()
    assert packed.ids_1N.tolist() == [[11, 12, 13, 21]]
    assert packed.positions_1N.tolist() == [[3, 4, 5, 0]]


def test_a_layout_says_where_the_keys_of_each_sequence_lie() -> None:
    packed, tables = two_chunks()
    layout = packed.layout(pad_page_tables(tables), CPU)
    assert layout.offsets.tolist() == [0, 3, 4]
    assert layout.starts_B.tolist() == [3, 0]
    assert layout.lengths_B.tolist() == [6, 1]
    assert layout.table_BP.tolist() == [[7, 2], [5, 0]]
    assert {tensor.dtype for tensor in vars(layout).values()} == {torch.int32}


def test_each_token_goes_into_the_row_of_its_page() -> None:
    packed, tables = two_chunks()
    assert packed.slots(pad_page_tables(tables), 4, CPU).tolist() == [
        7 * 4 + 3,
        2 * 4,
        2 * 4 + 1,
        5 * 4,
    ]


def test_a_token_without_a_page_is_our_own_mistake() -> None:
    packed, _ = two_chunks()
    with pytest.raises(AssertionError, match="no page"):
        packed.slots(pad_page_tables([array("i", [0, 2]), array("i", [5])]), 4, CPU)


def test_a_source_is_read_from_its_first_token_to_its_last() -> None:
    packed, tables = two_chunks()
    layout = packed.source_layout(pad_page_tables(tables), np.array([8, 2], np.int32), CPU)
    assert layout.starts_B.tolist() == [0, 0]
    assert layout.lengths_B.tolist() == [8, 2]


def test_rows_that_nobody_keeps_get_the_next_pages() -> None:
    assert [list(table) for table in consecutive_tables([4, 1, 9], 4)] == [[1], [2], [3, 4, 5]]
