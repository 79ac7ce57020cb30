"""Bars, tables, maps, head tables and alignments: every number in its place, within the width."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.look.alignment import alignment, joined_columns, joined_rows
from weft.look.bars import ViewStyle, bar, bars, in_columns, table, wrapped_cells
from weft.look.block_map import block_map
from weft.look.head_table import head_statistics, head_table
from weft.look.terminal import display_width

STYLE, ASCII = ViewStyle(), ViewStyle(is_ascii=True)
LABELS = st.text("a\u82f9 \u0301", min_size=1, max_size=30)


def test_bars_are_ordered_aligned_and_the_others_are_counted():
    items = [("it", 0.12), ("\u82f9\u679c", 0.62), ("a", 0.08), ("b", 0.1), ("c", 0.08)]
    assert bars(items, ASCII, limit=2) == [
        "  \u82f9\u679c        ####################  0.62",
        "  it          ####                  0.12",
        "  others (3)                        0.26",
    ]
    lines = bars(items, STYLE, limit=9)
    assert "others" not in "".join(lines)
    assert len({display_width(line) for line in lines}) == 1


def test_a_bar_has_eighths():
    assert bar(1.0, 4) == "\u2588" * 4 and bar(0.0, 4) == ""
    assert bar(1 / 32, 4) == "\u258f" and bar(31 / 32, 4) == "\u2588" * 3 + "\u2589"
    assert bar(0.5, 4, is_ascii=True) == "##" and bar(2.0, 4, is_ascii=True) == "####"


def test_values_that_would_be_zero_are_others():
    lines = bars([("a", 0.9), ("b", 0.004), ("c", 0.004)], STYLE)
    assert len(lines) == 2 and lines[1].endswith("0.01") and "others (2)" in lines[1]
    assert len(bars([("a", 0.0), ("b", 0.0)], STYLE)) == 2


@given(st.lists(st.tuples(LABELS, st.floats(0, 1)), min_size=1, max_size=30), st.integers(40, 100))
def test_bars_fit_whatever_the_labels(items, width):
    notes = ["rank 3 of 10"] * len(items)
    for style in (ViewStyle(width), ViewStyle(width, True)):
        assert max(map(display_width, bars(items, style, note=notes))) <= width


def test_a_table_aligns_numbers_at_the_right():
    assert table(("head", "max"), [("\u82f9", "0.5"), ("ab", "10.25")]) == [
        "  head    max",
        "  \u82f9      0.5",
        "  ab    10.25",
    ]


def test_cells_run_down_the_columns():
    assert in_columns(list("abcde"), 8) == ["  a  d", "  b  e", "  c"]
    assert in_columns([], 8) == []
    assert list(wrapped_cells(["ab", "cd", "\u82f9\u679c"], 8, " ")) == [" ab cd", " \u82f9\u679c"]


def test_a_map_has_two_columns_per_cell_and_crosses_out_masked_cells():
    weights_TS = np.array([[1.0, 0.0, 0.0], [0.4, 0.6, 0.0]])
    mask_TS = np.array([[True, False, False], [True, True, False]])
    lines = block_map(weights_TS, ["I", "ate"], ["I", "\u2581ate", "\u82f9\u679c"], ASCII, mask_TS)
    assert lines[0] == "       I at\u82f9"
    assert lines[1] == "0 I    ##----  I 1.00"
    assert lines[2] == "1 ate  ****--  \u2581ate 0.60"
    assert lines[-1].endswith("-- masked")
    assert block_map(np.eye(2), ["a", "b"], ["<E6 88>", "<begin>"], ASCII)[0] == "     E6be"
    assert "masked" not in block_map(weights_TS, ["a", "b"], ["a", "b", "c"], STYLE)[-1]


def test_a_wide_map_continues_below_and_a_long_one_shows_means():
    weights_TS = np.random.default_rng(0).random((3, 50))
    lines = block_map(weights_TS, ["a"] * 3, ["bc"] * 50, ASCII)
    assert max(map(display_width, lines)) <= 80
    assert sum(line.count("bc") for line in lines if "." not in line) == 50
    weights_TS = np.eye(100)
    lines = block_map(weights_TS, ["a"] * 100, ["b"] * 100, ViewStyle(200), max_cells=50)
    assert "mean of 2 x 2" in lines[-1] and lines[50].startswith("98 a")
    assert lines[1].endswith("b 0.50")
    mask_TS = np.tri(100, dtype=bool)
    lines = block_map(np.tri(100), ["a"] * 100, ["b"] * 100, ViewStyle(200), mask_TS, max_cells=50)
    assert lines[1].endswith("b 1.00"), "masked weights are no part of a mean"


@given(st.lists(LABELS, min_size=1, max_size=20), st.integers(40, 90))
def test_a_map_fits_whatever_the_labels(labels, width):
    weights_TS = np.full((len(labels), len(labels)), 1 / len(labels))
    lines = block_map(weights_TS, labels, labels, ViewStyle(width))
    assert max(map(display_width, lines[:-1])) <= width


def test_statistics_of_a_head_are_those_of_the_formula():
    weights_TS = np.array([[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]])
    one = head_statistics("2.3", weights_TS, [0, 3], True)
    assert one == ("2.3", 1.0, 0.625, 0.75, 0.625)
    cross = head_statistics("cross.0.1", weights_TS, [0, 3], False)
    assert cross.distance is None and cross.entropy == 1.0
    assert head_table([one, cross], STYLE) == [
        "  head       entropy   max  distance  first",
        "  2.3           1.00  0.62       0.8   0.62",
        "  cross.0.1     1.00  0.62         -   0.62",
    ]


def test_an_alignment_names_the_largest_weights_of_each_row():
    weights_TS = np.array([[0.1, 0.7, 0.2], [0.98, 0.01, 0.01]])
    assert alignment(weights_TS, ["a", "\u751c"], ["x", "\u82f9\u679c", "z"], STYLE) == [
        "  a   ->  \u82f9\u679c 0.70  z 0.20  x 0.10",
        "  \u751c  ->  x 0.98",
    ]
    lines = alignment(np.full((1, 9), 1 / 9), ["a"], ["x" * 18] * 9, ViewStyle(60), limit=9)
    assert display_width(lines[0]) <= 60 and lines[0].count("0.11") == 2


def test_words_have_the_sum_of_their_columns_and_the_mean_of_their_rows():
    weights_TS = np.arange(12.0).reshape(3, 4)
    assert joined_columns(weights_TS, [(0,), (1, 3)]).tolist() == [[0, 4], [4, 12], [8, 20]]
    assert joined_rows(weights_TS, [(0, 2), (1,)]).tolist() == [[4, 5, 6, 7], [4, 5, 6, 7]]


@pytest.mark.parametrize("view", [alignment, block_map])
def test_labels_that_do_not_match_are_refused(view):
    with pytest.raises(UsageError, match="1 row labels and 2 column labels"):
        view(np.zeros((2, 2)), ["a"], ["a", "b"], STYLE)
