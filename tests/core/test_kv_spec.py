"""`KVSpec`: what a layer declares is what its cache costs. `DenseView`: plain tensors as a view."""

import pytest
import torch

from weft.core.kv_spec import DenseView, KVSpec

H, K, C = 8, 2, 16


@pytest.mark.parametrize(
    ("rows", "numbers"),
    [
        ({"k": (H, C), "v": (H, C)}, 256),
        ({"k": (K, C), "v": (K, C)}, 64),
        ({"k": (1, C), "v": (1, C)}, 32),
        ({"latent": (40,)}, 40),
        ({}, 0),
    ],
)
def test_a_spec_counts_the_numbers_and_bytes_of_its_rows(rows, numbers):
    spec = KVSpec(rows)
    assert spec.numbers_per_token == numbers
    assert spec.bytes_per_token() == 4 * numbers
    assert spec.bytes_per_token(torch.bfloat16) == 2 * numbers


def test_a_spec_is_of_new_tokens_and_of_all_of_them_unless_it_says_otherwise():
    spec = KVSpec({"k": (K, C)})
    assert (spec.is_cross, spec.window) == (False, None)


def test_a_dense_view_begins_at_slot_zero_unless_told():
    k, v = torch.zeros(2, 7, K, C), torch.zeros(2, 7, K, 5)
    view = DenseView(k, v)
    assert view.start == 0
    assert view.k_BSKC is k
    assert view.v_BSKU is v
