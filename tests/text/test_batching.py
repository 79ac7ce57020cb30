"""Batches by token budget: every row once, little padding, a function of seed and epoch; and
rows become padded tensors."""

import logging

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import UsageError
from weft.text.batching import batches, collate
from weft.text.encoding import TextReport

PAIRS = st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=60)


def sentences(count, seed=0):
    """Pairs of lengths as in captions: log-normal, the sides correlated."""
    rng = np.random.default_rng(seed)
    source = np.exp(rng.normal(2.6, 0.35, count))
    target = source * np.exp(rng.normal(0.05, 0.2, count))
    return np.stack([source, target], axis=1).round().astype(int) + 2


def padding_share(lengths, batched):
    """The share of padding in all batches and sides."""
    table = np.asarray(lengths).reshape(len(lengths), -1)
    num_slots = sum(len(rows) * int(table[rows].max(axis=0).sum()) for rows in batched)
    return 1.0 - table.sum() / num_slots


@given(PAIRS, st.integers(1, 200), st.integers(0, 5), st.none() | st.integers(1, 7))
def test_every_row_comes_once_and_batches_keep_the_budget(lengths, max_tokens, epoch, max_rows):
    result = batches(lengths, max_tokens, seed=3, epoch=epoch, max_rows=max_rows)
    assert sorted(row for batch in result for row in batch) == list(range(len(lengths)))
    for batch in result:
        longest = max(max(lengths[row]) for row in batch)
        assert len(batch) == 1 or len(batch) * longest <= max_tokens
        assert max_rows is None or len(batch) <= max_rows


def test_seed_and_epoch_decide_everything():
    lengths = sentences(500)
    first = batches(lengths, 300, seed=1, epoch=2)
    assert first == batches(lengths.tolist(), 300, seed=1, epoch=2)
    assert first != batches(lengths, 300, seed=1, epoch=3)
    assert first != batches(lengths, 300, seed=2, epoch=2)


def test_equal_rows_change_their_company_from_epoch_to_epoch():
    company = [{frozenset(b) for b in batches([5] * 100, 50, epoch=e)} for e in (0, 1)]
    assert not company[0] & company[1]


@pytest.mark.parametrize("max_tokens", [1024, 4096, 8192])
def test_padding_stays_under_a_tenth(max_tokens):
    lengths = sentences(29_000)
    assert padding_share(lengths, batches(lengths, max_tokens)) < 0.10
    one_side = lengths[:, 0]
    assert padding_share(one_side, batches(one_side, max_tokens)) < 0.03


def test_padding_is_counted_in_places():
    assert padding_share([3, 5], [[0, 1]]) == pytest.approx(0.2)
    assert padding_share([(3, 1), (5, 1)], [[0, 1]]) == pytest.approx(1 - 10 / 12)
    assert padding_share([3, 5], [[0], [1]]) == 0


def test_a_row_over_the_budget_has_its_own_batch_and_is_counted_and_logged(caplog):
    report = TextReport()
    with caplog.at_level(logging.WARNING):
        result = batches([3, 90, 4, 80], 20, report=report)
    assert sorted(map(sorted, result)) == [[0, 2], [1], [3]]
    assert report.over_budget == 2
    assert caplog.records[0].getMessage() == (
        "over_budget=2 rows=4 longest=90 max_tokens=20 each=own_batch"
    )


def test_no_rows_and_no_budget_are_refused():
    with pytest.raises(UsageError, match="there are 0 rows"):
        batches([], 10)
    with pytest.raises(UsageError, match="max_tokens is 0 and max_rows None"):
        batches([1], 0)


def test_rows_are_padded_on_the_right():
    ids_BT, lengths_B = collate([[5, 6, 7], [8], []], pad_id=9)
    assert ids_BT.tolist() == [[5, 6, 7], [8, 9, 9], [9, 9, 9]]
    assert lengths_B.tolist() == [3, 1, 0]
    assert ids_BT.dtype == lengths_B.dtype == torch.int64


@pytest.mark.parametrize("rows", [[], [[], []]])
def test_a_batch_without_a_token_is_refused(rows):
    with pytest.raises(UsageError, match=f"a batch of {len(rows)} rows holds no token"):
        collate(rows)
