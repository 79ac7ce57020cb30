"""Draws follow the probabilities, and depend on seed and position alone."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.sampling import shape_logits
from weft.sampling.draw import NO_TOKEN, draw, draw_one, greedy, uniform
from weft.sampling.settings import SamplingConfig

P = [0.4, 0.25, 0.0, 0.2, 0.1, 0.04, 0.01]
LOGITS = torch.log(torch.tensor(P))

CHI_SQUARE = 22.5
"""Passed by chance once in a thousand times, with 6 degrees of freedom."""


def chi_square(counts: list[int], shares: list[float]) -> float:
    total = sum(counts)
    pairs = [(n, total * p) for n, p in zip(counts, shares, strict=True) if p]
    return sum((n - expected) ** 2 / expected for n, expected in pairs)


def test_draws_follow_the_probabilities_over_positions_and_over_seeds() -> None:
    for numbers in (
        [uniform(seed=7, position=i) for i in range(6000)],
        [uniform(seed=i, position=11) for i in range(6000)],
        [uniform(seed=i, position=i) for i in range(6000)],
    ):
        u_B = torch.tensor(numbers, dtype=torch.float64)
        ids_B = draw(LOGITS.expand(len(numbers), -1), u_B)
        counts = torch.bincount(ids_B, minlength=len(P)).tolist()
        assert counts[2] == 0
        assert chi_square(counts, P) < CHI_SQUARE


def test_draws_follow_what_the_steps_leave() -> None:
    shaped = shape_logits(LOGITS[None], SamplingConfig(temperature=2.0, top_k=4))[0]
    ids = [draw_one(shaped, uniform(3, i)) for i in range(5000)]
    roots = [p**0.5 if i in (0, 1, 3, 4) else 0.0 for i, p in enumerate(P)]
    counts = [ids.count(i) for i in range(len(P))]
    assert sum(counts[i] for i in (0, 1, 3, 4)) == 5000
    assert chi_square(counts, [root / sum(roots) for root in roots]) < CHI_SQUARE


@given(
    logits=st.lists(st.floats(-200, 200, width=32), min_size=1, max_size=30),
    top_k=st.integers(0, 40),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 0.99),
    u=st.floats(0, 1),
)
def test_something_is_always_left_and_the_best_is_in_it(
    logits: list[float], top_k: int, top_p: float, min_p: float, u: float
) -> None:
    logits_BV = torch.tensor([logits])
    shaped = shape_logits(logits_BV, SamplingConfig(top_k=top_k, top_p=top_p, min_p=min_p))
    assert shaped[0, int(logits_BV.argmax())].isfinite()
    assert shaped[0, draw_one(shaped[0], u)].isfinite()


def test_a_number_that_was_rounded_up_to_one_takes_the_last_possible_token() -> None:
    logits_V = torch.tensor([1.0, 2.0, float("-inf"), float("-inf")])
    assert draw_one(logits_V, 1.0) == 1
    assert draw(logits_V[None], torch.tensor([1.0])).tolist() == [1]


def test_nothing_left_gives_no_token() -> None:
    assert draw_one(torch.full((5,), float("-inf")), 0.5) == NO_TOKEN


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    assert uniform(1, 2) == uniform(1, 2)
    values = {uniform(seed, position) for seed in range(50) for position in range(50)}
    assert len(values) == 2500 and all(0 <= value < 1 for value in values)


def test_greedy_takes_the_lowest_of_equals() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        logits_BV = torch.tensor([[1.0, 3.0, 3.0], [0.0, -1.0, 0.0]], dtype=dtype)
        assert greedy(logits_BV).tolist() == [1, 0]
