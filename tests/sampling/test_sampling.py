"""Sampling: each step does what it says, together and alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.core.errors import ConfigError
from weft.sampling import STEPS, shape_logits
from weft.sampling.draw import draw, greedy, uniform
from weft.sampling.settings import SamplingConfig

LOGITS = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))


def kept(**settings: float) -> list[int]:
    shaped = shape_logits(LOGITS, SamplingConfig(**settings))
    return shaped[0].isfinite().nonzero().flatten().tolist()


def test_each_step_keeps_the_tokens_that_it_promises() -> None:
    assert kept() == [0, 1, 2, 3]
    assert kept(top_k=2) == [0, 1]
    assert kept(top_k=9) == [0, 1, 2, 3]
    assert kept(top_p=0.5) == [0]
    assert kept(top_p=0.51) == [0, 1]
    assert kept(min_p=0.29) == [0, 1, 2]
    assert kept(min_p=0.31) == [0, 1]


def test_temperature_divides() -> None:
    shaped = STEPS["temperature"](LOGITS, SamplingConfig(temperature=0.5))
    torch.testing.assert_close(shaped, LOGITS * 2)


@given(
    logits=st.lists(st.floats(-20, 20), min_size=1, max_size=30),
    top_k=st.integers(0, 40),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 0.99),
    u=st.floats(0, 1, exclude_max=True),
)
def test_something_is_always_left_and_the_best_is_in_it(
    logits: list[float], top_k: int, top_p: float, min_p: float, u: float
) -> None:
    logits_BV = torch.tensor([logits], dtype=torch.float64)
    shaped = shape_logits(logits_BV, SamplingConfig(top_k=top_k, top_p=top_p, min_p=min_p))
    assert shaped[0, int(logits_BV.argmax())].isfinite()
    chosen = int(draw(shaped, torch.tensor([u], dtype=torch.float64)))
    assert shaped[0, chosen].isfinite()


def test_draws_follow_the_probabilities() -> None:
    draws = torch.tensor([uniform(seed=7, position=i) for i in range(20000)])
    ids = draw(LOGITS.expand(len(draws), -1), draws)
    shares = torch.bincount(ids, minlength=4) / len(draws)
    torch.testing.assert_close(shares, LOGITS.exp()[0], atol=0.012, rtol=0)


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    assert uniform(1, 2) == uniform(1, 2)
    values = {uniform(seed, position) for seed in range(50) for position in range(50)}
    assert len(values) == 2500 and all(0 <= value < 1 for value in values)


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert greedy(torch.tensor([[1.0, 3.0, 3.0]])).item() == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", -1.0), ("top_k", -1), ("top_p", 0.0), ("top_p", 1.1), ("min_p", 1.0)],
)
def test_impossible_values_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value}"):
        SamplingConfig(**{name: value})
