"""Choosing for many rows: each as if it were alone, bit for bit."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor

from weft.sampling import STEPS, apply
from weft.sampling.base import Row
from weft.sampling.choose import choose
from weft.sampling.draw import NO_TOKEN, draw_one, uniform
from weft.sampling.settings import SamplingConfig

V = 1501


def random_row(rng: random.Random) -> Row:
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
    return Row(SamplingConfig(**on), rng.randrange(500), prompt, output, allowed_V)


@pytest.mark.parametrize("seed", range(6))
def test_a_row_is_chosen_the_same_whatever_else_is_in_the_batch(seed: int) -> None:
    rng = random.Random(seed)
    rows = [random_row(rng) for _ in range(23)]
    logits_BV = torch.randn(len(rows), V, generator=torch.Generator().manual_seed(seed)) * 4
    alone = [int(choose(logits_BV[i : i + 1].clone(), [row])) for i, row in enumerate(rows)]
    assert choose(logits_BV, rows).tolist() == alone
    for _ in range(5):
        mix = [rng.randrange(len(rows)) for _ in range(rng.randrange(1, 12))]
        found = choose(logits_BV[mix], [rows[i] for i in mix])
        assert found.tolist() == [alone[i] for i in mix]


def test_a_row_is_shaped_to_the_same_bits_wherever_it_lies_in_memory() -> None:
    config = SamplingConfig(temperature=0.7, top_p=0.9, min_p=0.01, repetition_penalty=1.1)
    row, logits_V = Row(config, 3, [5], [9]), torch.randn(V) * 3
    expected = apply(STEPS, logits_V, row)
    for offset in range(1, 17):
        shifted = torch.empty(V + offset)[offset:].copy_(logits_V)
        assert torch.equal(apply(STEPS, shifted, row), expected)


def test_the_choice_is_the_draw_of_the_shaped_logits() -> None:
    rows = [
        Row(SamplingConfig(temperature=0.8, top_p=0.9, seed=s), s + 3, [1, 2], [3] * s)
        for s in range(8)
    ]
    logits_BV = torch.randn(8, V) * 3
    for row, logits_V, token in zip(rows, logits_BV, choose(logits_BV, rows), strict=True):
        assert token == draw_one(
            apply(STEPS, logits_V, row), uniform(row.config.seed, row.position)
        )


def test_greedy_sees_bias_bans_penalties_and_the_grammar_but_no_cut() -> None:
    logits_V = torch.tensor([3.0, 2.5, 2.0, 1.0])

    def token(allowed_V: Tensor | None = None, **settings: object) -> int:
        row = Row(SamplingConfig(temperature=0, top_k=1, **settings), 2, [0], [0, 1], allowed_V)
        return int(choose(logits_V[None], [row]))

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
        Row(SamplingConfig(temperature=0)),
        Row(SamplingConfig(temperature=0), allowed_V=nothing),
        Row(SamplingConfig(top_p=0.5, min_p=0.1), allowed_V=nothing),
        Row(SamplingConfig(banned=range(5))),
        Row(SamplingConfig(temperature=0)),
    ]
    logits_BV = torch.eye(5)
    assert choose(logits_BV, rows).tolist() == [0, NO_TOKEN, NO_TOKEN, NO_TOKEN, 4]


def test_logits_of_any_dtype_and_an_empty_batch_are_taken() -> None:
    rows = [Row(SamplingConfig(temperature=0.5, seed=1)), Row(SamplingConfig(temperature=0))]
    logits_BV = torch.randn(2, 40).bfloat16()
    assert torch.equal(choose(logits_BV, rows), choose(logits_BV.float(), rows))
    assert choose(torch.empty(0, 40), []).tolist() == []


def test_drafts_are_checked_as_if_they_had_been_chosen() -> None:
    row = Row(SamplingConfig(seed=3, presence_penalty=1.0), 10, [1], [2])
    later = row.after([5, 6])
    assert (later.position, list(later.output), later.prompt) == (12, [2, 5, 6], [1])
    assert row.after([]) == row
