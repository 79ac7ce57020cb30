"""Logits processors: each alone, all together, and against those of transformers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process

from weft.sampling import logits_processors
from weft.sampling.logits_processors import (
    PROCESSORS,
    WARPERS,
    SamplingRow,
    keep_top,
    largest,
    mask_below,
    probabilities,
    process_logits,
    top_ids,
    top_p,
    total,
)
from weft.sampling.params import SamplingParams

ALL = PROCESSORS | WARPERS
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
"""Parameters that switch one processor on."""


def kept_ids(**settings: float) -> list[int]:
    row = SamplingRow(SamplingParams(**settings))
    return process_logits(LOGITS[0], row, ALL).isfinite().nonzero().flatten().tolist()


def row_with(name: str) -> SamplingRow:
    allowed_V = torch.arange(11) % 3 > 0 if name == "allowed" else None
    return SamplingRow(SamplingParams(**ON[name]), 7, [1, 9], [4, 4, 6], allowed_V)


def test_each_warper_keeps_its_tokens() -> None:
    assert kept_ids() == [0, 1, 2, 3]
    assert kept_ids(top_k=2) == [0, 1]
    assert kept_ids(top_k=9) == [0, 1, 2, 3]
    assert kept_ids(top_p=0) == kept_ids(top_p=0.49) == [0]
    assert kept_ids(top_p=0.51) == [0, 1]
    assert kept_ids(min_p=0.29) == [0, 1, 2]
    assert kept_ids(min_p=0.31) == [0, 1]


def test_truncation_acts_on_what_temperature_and_the_warper_before_have_left() -> None:
    assert kept_ids(top_p=0.9) == [0, 1, 2]
    assert kept_ids(top_p=0.9, temperature=0.3) == [0, 1]
    assert kept_ids(top_k=2, top_p=0.6) == [0]  # 0.5 of 0.8
    assert kept_ids(top_k=2, top_p=0.63) == [0, 1]


def test_temperature_divides() -> None:
    shaped = ALL["temperature"](LOGITS[0], SamplingRow(SamplingParams(temperature=0.5)))
    torch.testing.assert_close(shaped, LOGITS[0] * 2)


def test_the_tables_hold_every_parameter_that_changes_logits() -> None:
    others = {"seed", "logprobs"}
    assert {*ALL} == {*SamplingParams.model_fields} - others | {"allowed"} == {*ON}
    assert not {*PROCESSORS} & {*WARPERS}


@pytest.mark.parametrize("name", ALL)
def test_a_processor_changes_the_logits_only_when_it_is_on_and_never_in_place(name: str) -> None:
    logits_V = torch.randn(11)
    before_V = logits_V.clone()
    assert ALL[name](logits_V, SamplingRow(SamplingParams())) is logits_V
    shaped_V = ALL[name](logits_V, row_with(name))
    assert not torch.equal(shaped_V, logits_V)
    assert torch.equal(logits_V, before_V)
    assert (shaped_V.dtype, shaped_V.shape) == (torch.float32, (11,))


@pytest.mark.parametrize("name", WARPERS)
@given(logits=st.lists(st.floats(-20, 20, width=32), min_size=11, max_size=11))
def test_no_warper_excludes_the_most_likely_token(name: str, logits: list[float]) -> None:
    logits_V = torch.tensor(logits)
    best = int(logits_V.argmax())
    shaped_V = ALL[name](logits_V, row_with(name))
    assert shaped_V[best].isfinite() and int(shaped_V.argmax()) == best


@pytest.mark.parametrize("name", ALL)
def test_an_excluded_token_stays_excluded(name: str) -> None:
    logits_V = torch.randn(11).index_fill(0, torch.tensor([4, 10]), float("-inf"))
    shaped_V = ALL[name](logits_V, row_with(name))
    assert shaped_V[[4, 10]].tolist() == [float("-inf")] * 2
    assert not shaped_V.isnan().any()


def test_penalties_are_their_formulas() -> None:
    config = SamplingParams(
        repetition_penalty=1.3, frequency_penalty=0.7, presence_penalty=-0.4, logit_bias={4: 0.5}
    )
    logits_V = torch.randn(11)
    shaped_V = process_logits(logits_V, SamplingRow(config, 5, [1, 9, 1], [4, 4, 6]), PROCESSORS)
    for token, value in enumerate(logits_V.tolist()):
        expected, count = value + (0.5 if token == 4 else 0.0), [4, 4, 6].count(token)
        if token in (1, 9, 4, 6):
            expected = expected / 1.3 if expected > 0 else expected * 1.3
        expected -= 0.7 * count + (-0.4 if count else 0.0)
        assert shaped_V[token].item() == pytest.approx(expected, rel=1e-5)


def test_the_input_vocabulary_may_be_larger_than_the_output_vocabulary() -> None:
    row = SamplingRow(SamplingParams(repetition_penalty=2.0), 2, [1, 50], [0])
    assert process_logits(torch.ones(4), row, PROCESSORS).tolist() == [0.5, 0.5, 1.0, 1.0]


def test_histories_may_be_tensors() -> None:
    config = SamplingParams(repetition_penalty=1.2, presence_penalty=1, frequency_penalty=1)
    lists, tensors = (
        SamplingRow(config, 3, [1, 2], [3, 3]),
        SamplingRow(config, 3, torch.tensor([1, 2]), torch.tensor([3, 3])),
    )
    logits_V = torch.randn(7)
    assert torch.equal(process_logits(logits_V, lists, ALL), process_logits(logits_V, tensors, ALL))
    assert tensors.after([5]).output == [3, 3, 5] and tensors.after([5]).position == 4


FEW_VALUES = st.lists(st.sampled_from([-3.0, 0.0, 0.5, 2.0]), min_size=1, max_size=30)


def sorted_top_p(logits_V: Tensor, share: float) -> set[int]:
    """The ids that stay, by a stable sort of the whole row in float64."""
    values, order = logits_V.double().sort(descending=True, stable=True)
    mass = values.softmax(-1).cumsum(0)
    before = torch.cat([torch.zeros(1), mass[:-1]])
    return set(order[before < share].tolist())


@given(FEW_VALUES, st.integers(1, 30))
def test_the_largest_are_those_of_a_stable_sort(logits: list[float], k: int) -> None:
    logits_V, k = torch.tensor(logits), min(k, len(logits))
    values, order = logits_V.sort(descending=True, stable=True)
    assert torch.equal(largest(logits_V, k), values[:k])
    assert torch.equal(top_ids(logits_V, k), order[:k])
    for num_known in (k, min(k + 1, len(logits)), len(logits)):
        kept_V = keep_top(logits_V, values[:num_known], k)
        assert set(kept_V.isfinite().nonzero().flatten().tolist()) == set(order[:k].tolist())


def test_masking_keeps_what_equals_the_minimum() -> None:
    logits_V = torch.tensor([0.1, 0.3, -1.0, 0.2, float("-inf")])
    assert mask_below(logits_V, 0.2).isfinite().tolist() == [False, True, False, True, False]
    assert torch.equal(mask_below(logits_V, float("-inf")), logits_V)


@pytest.mark.parametrize("scale", [0.0, 0.2, 1.0, 4.0, 30.0])
@pytest.mark.parametrize("share", [0.1001, 0.9001, 0.9901, 0.9999])
def test_top_p_is_exact_at_every_number_of_candidates(
    scale: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits_V = (torch.randn(3000) * scale * 4).round() / 4  # ties in plenty
    expected = sorted_top_p(logits_V, share)
    for few, more in ((1, 2), (8, 64), (256, 4096), (3000, 3000)):
        monkeypatch.setattr(logits_processors, "TOP_P_CANDIDATES", [few, more])
        kept_V = top_p(logits_V, SamplingRow(SamplingParams(top_p=share)))
        assert set(kept_V.isfinite().nonzero().flatten().tolist()) == expected


VOCAB = 5000
SCALES = (0.3, 1.0, 3.0, 12.0)


def rows_of_logits() -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(VOCAB, generator=generator) * scale for scale in SCALES for _ in range(4)]


def reference(processor: object, logits_V: Tensor, ids: list[int]) -> Tensor:
    return processor(torch.tensor([ids]), logits_V[None].clone())[0]


@pytest.mark.parametrize("k", [1, 5, 300, VOCAB])
def test_top_k_equals_that_of_transformers(k: int) -> None:
    for logits_V in rows_of_logits():
        expected = reference(logits_process.TopKLogitsWarper(k), logits_V, [0])
        assert torch.equal(ALL["top_k"](logits_V, SamplingRow(SamplingParams(top_k=k))), expected)


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9, 0.95, 0.999])
def test_top_p_equals_that_of_transformers(p: float) -> None:
    for logits_V in rows_of_logits():
        expected = reference(logits_process.TopPLogitsWarper(p), logits_V.double(), [0])
        actual = ALL["top_p"](logits_V, SamplingRow(SamplingParams(top_p=p)))
        assert torch.equal(actual.isfinite(), expected.isfinite())
        assert torch.equal(actual[actual.isfinite()], logits_V[actual.isfinite()])


@pytest.mark.parametrize("p", [0.001, 0.1, 0.7])
def test_min_p_equals_that_of_transformers(p: float) -> None:
    for logits_V in rows_of_logits():
        expected = reference(logits_process.MinPLogitsWarper(p), logits_V, [0])
        assert torch.equal(ALL["min_p"](logits_V, SamplingRow(SamplingParams(min_p=p))), expected)


@pytest.mark.parametrize("temperature", [0.1, 0.7, 2.5])
def test_temperature_equals_that_of_transformers(temperature: float) -> None:
    for logits_V in rows_of_logits():
        row = SamplingRow(SamplingParams(temperature=temperature))
        warper = logits_process.TemperatureLogitsWarper(temperature)
        assert torch.equal(ALL["temperature"](logits_V, row), reference(warper, logits_V, [0]))


@pytest.mark.parametrize("penalty", [0.8, 1.1, 2.0])
def test_repetition_penalty_equals_that_of_transformers(penalty: float) -> None:
    prompt, output = [5, 5, 17, 4999], [3, 17]
    processor = logits_process.RepetitionPenaltyLogitsProcessor(penalty)
    row = SamplingRow(SamplingParams(repetition_penalty=penalty), 6, prompt, output)
    for logits_V in rows_of_logits():
        expected = reference(processor, logits_V, prompt + output)
        assert torch.equal(ALL["repetition_penalty"](logits_V, row), expected)


def test_the_sum_of_probabilities_does_not_depend_on_threads() -> None:
    """torch divides a sum of more than 32768 terms among its threads."""
    p_V = probabilities(torch.randn(50_001) * 3)
    threads, sums = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3, 4):
            torch.set_num_threads(number)
            sums.append(float(total(p_V)))
    finally:
        torch.set_num_threads(threads)
    assert sums == [sums[0]] * 4 and sums[0] == pytest.approx(1, abs=1e-6)
