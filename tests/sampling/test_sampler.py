"""The sampler: each row as if it were alone, bit for bit; draws by seed and position."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from weft.sampling.logits_processors import PROCESSORS, WARPERS, SamplingRow, process_logits
from weft.sampling.params import SamplingParams
from weft.sampling.sampler import NO_TOKEN, draw, greedy, sample, uniform

V = 1501
ALL = PROCESSORS | WARPERS


def random_row(rng: random.Random) -> SamplingRow:
    """Settings of every kind, on and off."""
    on = {
        "temperature": rng.choice([0.0, 0.0, 0.3, 1.0, 1.7]),
        "top_k": rng.choice([0, 0, 3, 400]),
        "top_p": rng.choice([1.0, 0.2, 0.95]),
        "min_p": rng.choice([0.0, 0.05]),
        "repetition_penalty": rng.choice([1.0, 1.0, 1.4]),
        "presence_penalty": rng.choice([0.0, 0.0, 1.2]),
        "frequency_penalty": rng.choice([0.0, 0.0, -0.3]),
        "logit_bias": rng.choice([{}, {}, {7: 9.0}]),
        "banned": rng.choice([(), (0, 1, 2)]),
        "seed": rng.randrange(1 << 40),
    }
    prompt = [rng.randrange(V) for _ in range(rng.randrange(9))]
    output = [rng.randrange(V) for _ in range(rng.randrange(9))]
    allowed_V = torch.rand(V) > 0.5 if rng.random() < 0.2 else None
    return SamplingRow(SamplingParams(**on), rng.randrange(500), prompt, output, allowed_V)


@pytest.mark.parametrize("seed", range(6))
def test_a_row_is_chosen_the_same_whatever_else_is_in_the_batch(seed: int) -> None:
    rng = random.Random(seed)
    rows = [random_row(rng) for _ in range(23)]
    logits_BV = torch.randn(len(rows), V, generator=torch.Generator().manual_seed(seed)) * 4
    alone = [int(sample(logits_BV[i : i + 1].clone(), [row])) for i, row in enumerate(rows)]
    assert sample(logits_BV, rows).tolist() == alone
    for _ in range(5):
        mix = [rng.randrange(len(rows)) for _ in range(rng.randrange(1, 12))]
        result = sample(logits_BV[mix], [rows[i] for i in mix])
        assert result.tolist() == [alone[i] for i in mix]


def test_a_row_is_shaped_to_the_same_bits_wherever_it_lies_in_memory() -> None:
    config = SamplingParams(temperature=0.7, top_p=0.9, min_p=0.01, repetition_penalty=1.1)
    row, logits_V = SamplingRow(config, 3, [5], [9]), torch.randn(V) * 3
    expected = process_logits(logits_V, row, ALL)
    for offset in range(1, 17):
        shifted = torch.empty(V + offset)[offset:].copy_(logits_V)
        assert torch.equal(process_logits(shifted, row, ALL), expected)


def test_the_choice_is_the_draw_of_the_shaped_logits() -> None:
    rows = [
        SamplingRow(SamplingParams(temperature=0.8, top_p=0.9, seed=s), s + 3, [1, 2], [3] * s)
        for s in range(8)
    ]
    logits_BV = torch.randn(8, V) * 3
    for row, logits_V, token in zip(rows, logits_BV, sample(logits_BV, rows), strict=True):
        assert token == draw(
            process_logits(logits_V, row, ALL), uniform(row.params.seed, row.position)
        )


def test_greedy_sees_bias_bans_penalties_and_the_grammar_but_no_cut() -> None:
    logits_V = torch.tensor([3.0, 2.5, 2.0, 1.0])

    def token(allowed_V: Tensor | None = None, **settings: object) -> int:
        row = SamplingRow(
            SamplingParams(temperature=0, top_k=1, **settings), 2, [0], [0, 1], allowed_V
        )
        return int(sample(logits_V[None], [row]))

    assert token() == 0
    assert token(banned=[0]) == 1
    assert token(logit_bias={3: 5}) == 3
    assert token(presence_penalty=2) == 2
    assert token(frequency_penalty=0.6) == 0
    assert token(repetition_penalty=2) == 2
    assert token(torch.tensor([False, False, False, True])) == 3


def test_a_row_with_nothing_left_fails_alone() -> None:
    nothing = torch.zeros(5, dtype=torch.bool)
    rows = [
        SamplingRow(SamplingParams(temperature=0)),
        SamplingRow(SamplingParams(temperature=0), allowed_V=nothing),
        SamplingRow(SamplingParams(top_p=0.5, min_p=0.1), allowed_V=nothing),
        SamplingRow(SamplingParams(banned=range(5))),
        SamplingRow(SamplingParams(temperature=0)),
    ]
    logits_BV = torch.eye(5)
    assert sample(logits_BV, rows).tolist() == [0, NO_TOKEN, NO_TOKEN, NO_TOKEN, 4]


def test_logits_of_any_dtype_and_an_empty_batch_are_taken() -> None:
    rows = [
        SamplingRow(SamplingParams(temperature=0.5, seed=1)),
        SamplingRow(SamplingParams(temperature=0)),
    ]
    logits_BV = torch.randn(2, 40).bfloat16()
    assert torch.equal(sample(logits_BV, rows), sample(logits_BV.float(), rows))
    assert sample(torch.empty(0, 40), []).tolist() == []


def test_drafts_are_checked_as_if_they_had_been_chosen() -> None:
    row = SamplingRow(SamplingParams(seed=3, presence_penalty=1.0), 10, [1], [2])
    later = row.after([5, 6])
    assert (later.position, list(later.output), later.prompt) == (12, [2, 5, 6], [1])
    assert row.after([]) == row


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
        ids_B = torch.tensor([draw(LOGITS, u) for u in numbers])
        counts = torch.bincount(ids_B, minlength=len(P)).tolist()
        assert counts[2] == 0
        assert chi_square(counts, P) < CHI_SQUARE


def processed(logits_V: Tensor, **params: float) -> Tensor:
    return process_logits(logits_V, SamplingRow(SamplingParams(**params)), ALL)


def test_draws_follow_the_processed_logits() -> None:
    processed_V = processed(LOGITS, temperature=2.0, top_k=4)
    ids = [draw(processed_V, uniform(3, i)) for i in range(5000)]
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
    logits_V = torch.tensor(logits)
    processed_V = processed(logits_V, top_k=top_k, top_p=top_p, min_p=min_p)
    assert processed_V[int(logits_V.argmax())].isfinite()
    assert processed_V[draw(processed_V, u)].isfinite()


def test_a_number_that_was_rounded_up_to_one_takes_the_last_possible_token() -> None:
    logits_V = torch.tensor([1.0, 2.0, float("-inf"), float("-inf")])
    assert draw(logits_V, 1.0) == 1


def test_nothing_left_gives_no_token() -> None:
    assert draw(torch.full((5,), float("-inf")), 0.5) == NO_TOKEN


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    assert uniform(1, 2) == uniform(1, 2)
    values = {uniform(seed, position) for seed in range(50) for position in range(50)}
    assert len(values) == 2500 and all(0 <= value < 1 for value in values)


def test_greedy_takes_the_lowest_of_equals() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        logits_BV = torch.tensor([[1.0, 3.0, 3.0], [0.0, -1.0, 0.0]], dtype=dtype)
        assert greedy(logits_BV).tolist() == [1, 0]


GOLDEN = {
    "seed 0": (SamplingParams(seed=0), [108, 86, 75, 98, 98, 167, 199, 199, 171, 122, 111, 122]),
    "seed 7": (SamplingParams(seed=7), [98, 107, 167, 131, 131, 75, 66, 61, 157, 56, 56, 157]),
    "warpers": (
        SamplingParams(temperature=0.7, top_k=40, top_p=0.9, min_p=0.02, seed=123456789),
        [56, 30, 30, 167, 131, 180, 98, 79, 131, 173, 66, 62],
    ),
    "penalties": (
        SamplingParams(
            temperature=1.5,
            repetition_penalty=1.2,
            presence_penalty=0.5,
            frequency_penalty=0.3,
            seed=2**40,
        ),
        [86, 91, 180, 176, 199, 180, 162, 157, 69, 67, 10, 146],
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_seeded_draws_never_change(name: str) -> None:
    """A request with a seed gives the same text in every version of Weft."""
    params, expected = GOLDEN[name]
    # eighths are exact in float32, so every machine starts from the same logits
    logits_V = torch.tensor([(37 * i * i + 11 * i) % 101 / 8 for i in range(211)])
    rows = [SamplingRow(params, p, [1, 2, 3], [4, 4, 5]) for p in range(12)]
    assert sample(logits_V.expand(12, -1), rows).tolist() == expected


def test_the_numbers_of_draws_never_change() -> None:
    places = [(0, 0), (0, 1), (1, 0), (7, 11), (2**63, 1000)]
    numbers = [int(uniform(seed, position) * 2**53) for seed, position in places]
    assert numbers == [
        4575302229384611,
        3804814246160142,
        1585380222369008,
        6131160912105382,
        2288306952875260,
    ]
