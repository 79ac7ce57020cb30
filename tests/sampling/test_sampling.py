"""Sampling: each step does what it says, together and alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weft.sampling import ADJUST, NARROW, STEPS, apply, shape_logits
from weft.sampling.base import Row
from weft.sampling.settings import SamplingConfig

LOGITS = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))

ON = {
    "allowed": {},
    "banned": {"banned": (2, 5)},
    "logit_bias": {"logit_bias": {3: 1.5, 4: -2.0}},
    "repetition_penalty": {"repetition_penalty": 1.3},
    "frequency_penalty": {"frequency_penalty": 0.7},
    "presence_penalty": {"presence_penalty": -0.4},
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.2},
}
"""Settings that switch one step on."""


def kept(**settings: float) -> list[int]:
    shaped = shape_logits(LOGITS, SamplingConfig(**settings))
    return shaped[0].isfinite().nonzero().flatten().tolist()


def row_with(name: str) -> Row:
    allowed_V = torch.arange(11) % 3 > 0 if name == "allowed" else None
    return Row(SamplingConfig(**ON[name]), 7, [1, 9], [4, 4, 6], allowed_V)


def test_each_step_keeps_the_tokens_that_it_promises() -> None:
    assert kept() == [0, 1, 2, 3]
    assert kept(top_k=2) == [0, 1]
    assert kept(top_k=9) == [0, 1, 2, 3]
    assert kept(top_p=0.49) == [0]
    assert kept(top_p=0.51) == [0, 1]
    assert kept(min_p=0.29) == [0, 1, 2]
    assert kept(min_p=0.31) == [0, 1]


def test_the_cuts_act_on_what_the_temperature_and_the_cut_before_have_left() -> None:
    assert kept(top_p=0.9) == [0, 1, 2]
    assert kept(top_p=0.9, temperature=0.3) == [0, 1]
    assert kept(top_k=2, top_p=0.6) == [0]  # 0.5 of 0.8
    assert kept(top_k=2, top_p=0.63) == [0, 1]


def test_temperature_divides() -> None:
    shaped = STEPS["temperature"](LOGITS[0], Row(SamplingConfig(temperature=0.5)))
    torch.testing.assert_close(shaped, LOGITS[0] * 2)


def test_the_tables_hold_every_setting_that_shapes_logits() -> None:
    others = {"seed", "logprobs"}
    assert {*STEPS} == {*SamplingConfig.model_fields} - others | {"allowed"} == {*ON}
    assert [*STEPS] == [*ADJUST, *NARROW]


@pytest.mark.parametrize("name", STEPS)
def test_a_step_changes_the_logits_only_when_it_is_on_and_never_in_place(name: str) -> None:
    logits_V = torch.randn(11)
    before_V = logits_V.clone()
    assert STEPS[name](logits_V, Row(SamplingConfig())) is logits_V
    shaped_V = STEPS[name](logits_V, row_with(name))
    assert not torch.equal(shaped_V, logits_V)
    assert torch.equal(logits_V, before_V)
    assert (shaped_V.dtype, shaped_V.shape) == (torch.float32, (11,))


@pytest.mark.parametrize("name", NARROW)
@given(logits=st.lists(st.floats(-20, 20, width=32), min_size=11, max_size=11))
def test_no_cut_rules_out_the_most_likely_token(name: str, logits: list[float]) -> None:
    logits_V = torch.tensor(logits)
    best = int(logits_V.argmax())
    shaped_V = STEPS[name](logits_V, row_with(name))
    assert shaped_V[best].isfinite() and int(shaped_V.argmax()) == best


@pytest.mark.parametrize("name", STEPS)
def test_what_is_ruled_out_stays_out(name: str) -> None:
    logits_V = torch.randn(11).index_fill(0, torch.tensor([4, 10]), float("-inf"))
    shaped_V = STEPS[name](logits_V, row_with(name))
    assert shaped_V[[4, 10]].tolist() == [float("-inf")] * 2
    assert not shaped_V.isnan().any()


def test_penalties_are_their_formulas() -> None:
    config = SamplingConfig(
        repetition_penalty=1.3, frequency_penalty=0.7, presence_penalty=-0.4, logit_bias={4: 0.5}
    )
    logits_V = torch.randn(11)
    shaped_V = apply(ADJUST, logits_V, Row(config, 5, [1, 9, 1], [4, 4, 6]))
    for token, value in enumerate(logits_V.tolist()):
        expected, count = value + (0.5 if token == 4 else 0.0), [4, 4, 6].count(token)
        if token in (1, 9, 4, 6):
            expected = expected / 1.3 if expected > 0 else expected * 1.3
        expected -= 0.7 * count + (-0.4 if count else 0.0)
        assert shaped_V[token].item() == pytest.approx(expected, rel=1e-5)


def test_a_model_may_read_ids_that_it_cannot_write() -> None:
    row = Row(SamplingConfig(repetition_penalty=2.0), 2, [1, 50], [0])
    assert apply(ADJUST, torch.ones(4), row).tolist() == [0.5, 0.5, 1.0, 1.0]


def test_histories_may_be_tensors() -> None:
    config = SamplingConfig(repetition_penalty=1.2, presence_penalty=1, frequency_penalty=1)
    lists, tensors = (
        Row(config, 3, [1, 2], [3, 3]),
        Row(config, 3, torch.tensor([1, 2]), torch.tensor([3, 3])),
    )
    logits_V = torch.randn(7)
    assert torch.equal(apply(STEPS, logits_V, lists), apply(STEPS, logits_V, tensors))
    assert tensors.after([5]).output == [3, 3, 5] and tensors.after([5]).position == 4
