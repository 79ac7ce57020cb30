"""The best of a row: the fast ways give what a stable sort of everything gives."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from weft.sampling.base import Row
from weft.sampling.candidates import best_ids, cut, keep_best, largest
from weft.sampling.settings import SamplingConfig
from weft.sampling.top_p import top_p

FEW_VALUES = st.lists(st.sampled_from([-3.0, 0.0, 0.5, 2.0]), min_size=1, max_size=30)


def sorted_top_p(logits_V: Tensor, share: float) -> set[int]:
    """The ids that stay, by a stable sort of the whole row in float64."""
    values, order = logits_V.double().sort(descending=True, stable=True)
    mass = values.softmax(-1).cumsum(0)
    before = torch.cat([torch.zeros(1), mass[:-1]])
    return set(order[before < share].tolist())


@given(FEW_VALUES, st.integers(1, 30))
def test_the_best_are_those_of_a_stable_sort(logits: list[float], k: int) -> None:
    logits_V, k = torch.tensor(logits), min(k, len(logits))
    values, order = logits_V.sort(descending=True, stable=True)
    assert torch.equal(largest(logits_V, k), values[:k])
    assert torch.equal(best_ids(logits_V, k), order[:k])
    for sight in (k, min(k + 1, len(logits)), len(logits)):
        kept_V = keep_best(logits_V, values[:sight], k)
        assert set(kept_V.isfinite().nonzero().flatten().tolist()) == set(order[:k].tolist())


def test_a_cut_keeps_what_is_as_large_as_the_least() -> None:
    logits_V = torch.tensor([0.1, 0.3, -1.0, 0.2, float("-inf")])
    assert cut(logits_V, 0.2).isfinite().tolist() == [False, True, False, True, False]
    assert torch.equal(cut(logits_V, float("-inf")), logits_V)


@pytest.mark.parametrize("scale", [0.0, 0.2, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("share", [0.1001, 0.9001, 0.9901, 0.9999])
def test_top_p_is_exact_at_every_number_of_candidates(
    scale: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    top_p_file = import_module("weft.sampling.top_p")  # the room has a function of that name
    logits_V = (torch.randn(3000) * scale * 4).round() / 4  # ties in plenty
    expected = sorted_top_p(logits_V, share)
    for few, more in ((1, 2), (8, 64), (256, 4096), (3000, 3000)):
        monkeypatch.setattr(top_p_file, "FEW", few)
        monkeypatch.setattr(top_p_file, "MORE", more)
        kept_V = top_p(logits_V, Row(SamplingConfig(top_p=share)))
        assert set(kept_V.isfinite().nonzero().flatten().tolist()) == expected
