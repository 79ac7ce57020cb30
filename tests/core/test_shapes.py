"""Shapes that run: letters are bound once per call and every tensor must agree."""

import os
import subprocess
import sys

import pytest
import torch

from weft.core.shapes import LETTERS, check_shapes, letters_of


def test_tensors_that_agree_pass():
    x, mask, q = torch.zeros(2, 5, 32), torch.zeros(2, 5), torch.zeros(2, 5, 4, 8)
    check_shapes(x_BTD=x, mask_BT=mask, q_BTHC=q, D=32)


def test_a_letter_with_two_sizes_is_named_with_both_and_where_it_was_bound():
    with pytest.raises(AssertionError, match=r"y_BS: B is 3, expected 2 \(batch, from x_BT\)"):
        check_shapes(x_BT=torch.zeros(2, 5), y_BS=torch.zeros(3, 7))


def test_a_size_given_as_a_number_binds_its_letter():
    with pytest.raises(AssertionError, match=r"x_BTD: D is 32, expected 48 \(model width, from"):
        check_shapes(x_BTD=torch.zeros(2, 5, 32), D=48)


def test_a_wrong_number_of_dimensions_is_named():
    with pytest.raises(AssertionError, match=r"x_BT: shape \(2,\) has 1 dimensions, expected 2"):
        check_shapes(x_BT=torch.zeros(2))


def test_a_letter_outside_the_key_is_refused():
    with pytest.raises(AssertionError, match=r"x_BTZ: \['Z'\] not in the letter key"):
        letters_of("x_BTZ")


def test_letters_are_read_from_the_end_of_the_name():
    assert letters_of("past_k_BSKC") == "BSKC"
    assert all(len(letter) == 1 and letter.isupper() for letter in LETTERS)


def test_nothing_is_checked_unless_asked_for():
    code = (
        "import torch; from weft.core.shapes import check_shapes; check_shapes(x_Z=torch.ones(3))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "WEFT_CHECK"}
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, env=environment, check=False).returncode == 0
