"""The heat map: every weight in its place, within the width, readable without colour."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.look.heatmap import bands, heat_map
from weft.look.terminal import SHADES, display_width


def test_a_map_shows_shades_under_their_labels_and_names_the_strongest():
    weights_TS = np.array([[0.9, 0.1, 0.0], [0.04, 0.2, 0.76]])
    lines = heat_map(weights_TS, ["2", "-"], ["\u5e74", " March", "7"])
    light, middle, full = SHADES[1], SHADES[2], SHADES[4]
    assert lines[0] == "   \u5e74 \u2581March 7"
    assert lines[1] == f"2  {full * 2} {light * 6}     \u5e74 0.90"
    assert lines[2] == f"-     {middle * 6} {full * 2}  7 0.76"
    assert "from 0.05" in lines[-1]


def test_columns_that_do_not_fit_go_into_another_band():
    weights_TS = np.full((2, 30), 1 / 30)
    lines = heat_map(weights_TS, ["a", "b"], [f"word{i}" for i in range(30)], width=60)
    assert max(map(display_width, lines)) <= 60
    result = " ".join(lines)
    assert all(f"word{i}" in result for i in range(30))


def test_the_ascii_map_is_ascii():
    weights_TS = np.array([[0.5, 0.5]])
    assert all(line.isascii() for line in heat_map(weights_TS, [" a"], ["b", "#"], is_ascii=True))


def test_a_label_that_looks_like_a_shade_changes_nothing():
    lines = heat_map(np.array([[1.0]]), ["a"], ["#"], is_ascii=True)
    assert lines[1] == "a  ##  # 1.00"


@given(st.lists(st.text("a\u82f9 ", min_size=1, max_size=20), min_size=1, max_size=40))
def test_a_map_fits_its_width_whatever_the_labels(labels):
    weights_TS = np.full((2, len(labels)), 1 / len(labels))
    lines = heat_map(weights_TS, ["x", "a label that is rather long"], labels)
    assert max(map(display_width, lines)) <= 80


def test_every_column_is_in_one_band():
    labels = ["a", "bbb", "cccc", "d"]
    assert list(bands(labels, 7)) == [[0, 1], [2, 3]]
    assert list(bands(labels, 1)) == [[0], [1], [2], [3]]


@pytest.mark.parametrize("shape", [(2, 3), (1, 2)])
def test_labels_that_do_not_match_are_refused(shape):
    with pytest.raises(UsageError, match=r"2 row labels and 2 column labels"):
        heat_map(np.zeros(shape), ["a", "b"], ["c", "d"])
