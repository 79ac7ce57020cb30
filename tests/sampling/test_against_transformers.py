"""The steps against the logits processors of transformers, which many people's results rest on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.generation import logits_process

from weft.sampling import STEPS
from weft.sampling.base import Row
from weft.sampling.settings import SamplingConfig

V = 5000
SCALES = (0.3, 1.0, 3.0, 12.0)


def rows_of_logits() -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(V, generator=generator) * scale for scale in SCALES for _ in range(4)]


def theirs(processor: object, logits_V: Tensor, ids: list[int]) -> Tensor:
    return processor(torch.tensor([ids]), logits_V[None].clone())[0]


@pytest.mark.parametrize("k", [1, 5, 300, V])
def test_top_k(k: int) -> None:
    for logits_V in rows_of_logits():
        expected = theirs(logits_process.TopKLogitsWarper(k), logits_V, [0])
        assert torch.equal(STEPS["top_k"](logits_V, Row(SamplingConfig(top_k=k))), expected)


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9, 0.95, 0.999])
def test_top_p(p: float) -> None:
    for logits_V in rows_of_logits():
        expected = theirs(logits_process.TopPLogitsWarper(p), logits_V.double(), [0])
        ours = STEPS["top_p"](logits_V, Row(SamplingConfig(top_p=p)))
        assert torch.equal(ours.isfinite(), expected.isfinite())
        assert torch.equal(ours[ours.isfinite()], logits_V[ours.isfinite()])


@pytest.mark.parametrize("p", [0.001, 0.1, 0.7])
def test_min_p(p: float) -> None:
    for logits_V in rows_of_logits():
        expected = theirs(logits_process.MinPLogitsWarper(p), logits_V, [0])
        assert torch.equal(STEPS["min_p"](logits_V, Row(SamplingConfig(min_p=p))), expected)


@pytest.mark.parametrize("temperature", [0.1, 0.7, 2.5])
def test_temperature(temperature: float) -> None:
    for logits_V in rows_of_logits():
        row = Row(SamplingConfig(temperature=temperature))
        warper = logits_process.TemperatureLogitsWarper(temperature)
        assert torch.equal(STEPS["temperature"](logits_V, row), theirs(warper, logits_V, [0]))


@pytest.mark.parametrize("penalty", [0.8, 1.1, 2.0])
def test_repetition_penalty(penalty: float) -> None:
    prompt, output = [5, 5, 17, 4999], [3, 17]
    processor = logits_process.RepetitionPenaltyLogitsProcessor(penalty)
    row = Row(SamplingConfig(repetition_penalty=penalty), 6, prompt, output)
    for logits_V in rows_of_logits():
        expected = theirs(processor, logits_V, prompt + output)
        assert torch.equal(STEPS["repetition_penalty"](logits_V, row), expected)
