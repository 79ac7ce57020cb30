"""Rows become padded tensors that a forward pass can read."""

import numpy as np
import pytest
import torch

from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch
from weft.text.collate import collate, collate_samples
from weft.text.samples import IGNORE, PackedSamples


def test_rows_are_padded_on_the_right():
    ids_BT, lengths_B = collate([[5, 6, 7], [8], []], pad_id=9)
    assert ids_BT.tolist() == [[5, 6, 7], [8, 9, 9], [9, 9, 9]]
    assert lengths_B.tolist() == [3, 1, 0]
    assert ids_BT.dtype == lengths_B.dtype == torch.int64


@pytest.mark.parametrize("rows", [[], [[], []]])
def test_a_batch_without_a_token_is_refused(rows):
    with pytest.raises(UsageError, match=f"a batch of {len(rows)} rows holds no token"):
        collate(rows)


def test_samples_fit_a_forward_batch_whose_positions_restart_with_each_document():
    flat = np.array([1, 10, 11, 2, 1, 12, 2, 1, 13, 14, 15, 2], dtype=np.int32)
    batch = collate_samples(list(PackedSamples(flat, np.array([0, 4, 7, 12]), length=5)))
    forward = ForwardBatch(batch.ids_BT, batch.lengths_B, batch.documents_BT)
    assert forward.positions_BT.tolist() == [[0, 1, 2, 0, 1], [0, 1, 2, 3, 0]]
    assert batch.targets_BT[1].tolist() == [13, 14, 15, 2, IGNORE]
    assert batch.lengths_B.tolist() == [5, 4]


def test_no_samples_are_refused():
    with pytest.raises(UsageError, match="a batch of 0 samples"):
        collate_samples([])
