"""The best of each row and the sums of exps, against torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from weft.native import kernels
from weft.native.kernels import log_sum_exp, top_k
from weft.native.library import native
from weft.nn.config import LMHeadConfig, NormConfig
from weft.nn.lm_head import LMHead
from weft.nn.packed_modules import MIN_ROWS_PER_THREAD, PackedLMHead, pack_model


@pytest.mark.parametrize("V", [1, 5, 8, 17, 4000])
@pytest.mark.parametrize("N", [1, 70])
@pytest.mark.parametrize("scale", [0.1, 30.0])
def test_they_are_torchs(N: int, V: int, scale: float) -> None:
    logits = torch.randn(N, V, generator=torch.Generator().manual_seed(V)) * scale
    with torch.inference_mode():
        sums, (best, ids) = log_sum_exp(logits), top_k(logits, 10)
    torch.testing.assert_close(sums, logits.double().logsumexp(-1), rtol=1e-6, atol=1e-6)
    theirs, places = logits.topk(min(10, V))
    assert torch.equal(best, theirs) and torch.equal(ids, places)


def test_a_row_does_not_know_the_others_nor_what_lies_behind_it() -> None:
    logits = torch.randn(40, 1003, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        together, alone = log_sum_exp(logits), [log_sum_exp(row[None])[0] for row in logits]
        assert together.tolist() == [float(one) for one in alone]
        part = logits[:, :500]
        assert torch.equal(log_sum_exp(part), log_sum_exp(part.contiguous()))
        for ours, theirs in zip(top_k(part, 7), top_k(part.contiguous(), 7), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("is_native", [True, False])
def test_of_equal_numbers_the_first_is_the_better(
    count: int, is_native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_native:
        monkeypatch.setattr(kernels, "native", lambda: None)
    some = torch.randn(300, generator=torch.Generator().manual_seed(3))
    some[[7, 50, 200]] = 9.0
    with torch.inference_mode():
        assert top_k(torch.zeros(2, 30), count)[1].tolist() == [[0, 1, 2, 3][:count]] * 2
        assert top_k(some[None], count)[1].tolist()[0][:3] == [7, 50, 200][:count]


@pytest.mark.parametrize("V", [4000, 256_000])
@pytest.mark.parametrize("scale", [1.0, 4.0])
def test_sums_of_many_words_are_exact(V: int, scale: float) -> None:
    logits = torch.randn(3, V, generator=torch.Generator().manual_seed(4)) * scale
    with torch.inference_mode():
        sums = log_sum_exp(logits)
    torch.testing.assert_close(sums, logits.double().logsumexp(-1), rtol=0, atol=5e-7)


def test_without_the_library_it_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(3, 40_000, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        sums, (best, ids) = log_sum_exp(logits), top_k(logits, 6)
        monkeypatch.setattr(kernels, "native", lambda: None)
        torch.testing.assert_close(log_sum_exp(logits), sums, rtol=1e-6, atol=1e-6)
        assert [float(log_sum_exp(row[None])) for row in logits] == log_sum_exp(logits).tolist()
        for ours, theirs in zip(top_k(logits, 6), (best, ids), strict=True):
            assert torch.equal(ours, theirs)


def test_a_default_of_another_precision_changes_nothing() -> None:
    logits = torch.tensor([[1.0, 5.0, 3.0]], dtype=torch.float32)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.inference_mode():
            assert top_k(logits, 2)[0].tolist() == [[5.0, 3.0]]
    finally:
        torch.set_default_dtype(torch.float32)


def test_nothing_and_no_number() -> None:
    nothing, nan = torch.full((1, 20), -torch.inf), torch.zeros(1, 20)
    nan[0, 3] = torch.nan
    with torch.inference_mode():
        assert log_sum_exp(nothing).tolist() == [-torch.inf]
        assert log_sum_exp(nan).isnan().all()
        assert log_sum_exp(torch.full((1, 3), torch.nan)).isnan().all()
        nothing[0, 7] = 1.0
        best, ids = top_k(nothing, 3)
    assert best.tolist() == [[1.0, -torch.inf, -torch.inf]] and ids[0, 0] == 7


def head_of(vocab_size: int, width: int, **config: Any) -> PackedLMHead:
    torch.manual_seed(vocab_size)
    words = torch.nn.Embedding(vocab_size, width)
    head = LMHead(LMHeadConfig(**config), words, NormConfig(), tied=True)
    if head.bias is not None:
        torch.nn.init.normal_(head.bias)
    packed = pack_model(head.eval())
    assert isinstance(packed, PackedLMHead)
    return packed


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("V", "D"), [(5, 40), (64, 40), (77, 800), (4000, 40)])
@pytest.mark.parametrize("config", [{}, {"bias": True, "scale": 0.3}], ids=str)
def test_a_head_finds_the_best_of_its_logits_without_them(
    V: int, D: int, threads: int, config: dict[str, Any]
) -> None:
    head, banned, before = head_of(V, D, **config), [0, V - 1], torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            for N in (MIN_ROWS_PER_THREAD * threads, 61, 500):
                x = torch.randn(N, D)
                logits = head(x[None])[0]
                sums = log_sum_exp(logits)
                logits[:, banned] = -torch.inf
                best, ids = top_k(logits, 7)
                result = head.top_k(x, 7, banned)
                assert (result is None) == (native() is None)
                if result is None:  # no compiler: the logits do it
                    continue
                assert torch.equal(result[0], best) and torch.equal(result[2], sums)
                is_there = best > -torch.inf
                assert torch.equal(result[1][is_there], ids[is_there])
    finally:
        torch.set_num_threads(before)


def test_a_head_of_few_rows_or_with_a_cap_leaves_it_to_the_logits() -> None:
    with torch.inference_mode():
        assert head_of(50, 8).top_k(torch.randn(1, 8), 3) is None
        assert head_of(50, 8, softcap=30.0).top_k(torch.randn(200, 8), 3) is None
    assert head_of(50, 8).top_k(torch.randn(200, 8), 3) is None, "gradients are on"
