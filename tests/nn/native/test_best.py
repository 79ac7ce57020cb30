"""The best of each row and the sums of exps, against torch."""

from __future__ import annotations

import pytest
import torch

from weft.nn.native import best as module
from weft.nn.native.best import best_of, log_sums


@pytest.mark.parametrize("V", [1, 5, 8, 17, 4000])
@pytest.mark.parametrize("N", [1, 70])
@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_they_are_torchs(N: int, V: int, scale: float) -> None:
    logits = torch.randn(N, V, generator=torch.Generator().manual_seed(V)) * scale
    with torch.inference_mode():
        sums, (best, ids) = log_sums(logits), best_of(logits, 10)
    torch.testing.assert_close(sums, logits.double().logsumexp(-1), rtol=1e-6, atol=1e-6)
    theirs, places = logits.topk(min(10, V))
    assert torch.equal(best, theirs) and torch.equal(ids, places)


def test_a_row_does_not_know_the_others_nor_what_lies_behind_it() -> None:
    logits = torch.randn(40, 1003, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        together, alone = log_sums(logits), [log_sums(row[None])[0] for row in logits]
        assert together.tolist() == [float(one) for one in alone]
        part = logits[:, :500]
        assert torch.equal(log_sums(part), log_sums(part.contiguous()))
        for ours, theirs in zip(best_of(part, 7), best_of(part.contiguous(), 7), strict=True):
            assert torch.equal(ours, theirs)


def test_of_equal_numbers_the_first_is_the_better() -> None:
    with torch.inference_mode():
        assert best_of(torch.zeros(1, 30), 4)[1].tolist() == [[0, 1, 2, 3]]


def test_without_the_library_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(3, 40_000, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        sums, (best, ids) = log_sums(logits), best_of(logits, 6)
        monkeypatch.setattr(module, "native", lambda: None)
        torch.testing.assert_close(log_sums(logits), sums, rtol=1e-6, atol=1e-6)
        assert [float(log_sums(row[None])) for row in logits] == log_sums(logits).tolist()
        for ours, theirs in zip(best_of(logits, 6), (best, ids), strict=True):
            assert torch.equal(ours, theirs)


def test_a_default_of_another_precision_changes_nothing() -> None:
    logits = torch.tensor([[1.0, 5.0, 3.0]], dtype=torch.float32)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode():
            assert best_of(logits, 2)[0].tolist() == [[5.0, 3.0]]
    finally:
        torch.set_default_dtype(torch.float32)


def test_nothing_and_no_number() -> None:
    nothing, nan = torch.full((1, 20), -torch.inf), torch.zeros(1, 20)
    nan[0, 3] = torch.nan
    with torch.inference_mode():
        assert log_sums(nothing).tolist() == [-torch.inf]
        assert log_sums(nan).isnan().all()
        assert log_sums(torch.full((1, 3), torch.nan)).isnan().all()
        nothing[0, 7] = 1.0
        best, ids = best_of(nothing, 3)
    assert best.tolist() == [[1.0, -torch.inf, -torch.inf]] and ids[0, 0] == 7
