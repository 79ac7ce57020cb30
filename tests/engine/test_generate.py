"""Generation by the engine, in ids: begin, one token at a time, end."""

from __future__ import annotations

import pytest
import torch

from tests.engine.asking import generate
from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch
from weft.models.build import build_model
from weft.models.config import ModelConfig
from weft.sampling.params import SamplingParams

SIZES = {"vocab_size": 31, "width": 32, "num_layers": 2, "max_len": 32, "dropout": 0.0}


def decoder():
    return build_model(ModelConfig(kind="decoder", **SIZES), seed=3).eval()


def encoder_decoder():
    return build_model(ModelConfig(kind="encoder-decoder", **SIZES), seed=3).eval()


def test_greedy_is_the_argmax_of_an_uncached_pass_at_every_step() -> None:
    model, prompts = decoder(), [[1, 2, 3], [4], [5, 6]]
    outputs = generate(model, prompts, max_tokens=8)
    for prompt, output in zip(prompts, outputs, strict=True):
        ids = list(prompt)
        for token in output:
            logits = model(ForwardBatch(torch.tensor([ids])))[0, -1]
            assert token == int(logits.argmax())
            ids.append(token)


def test_sampling_repeats_with_its_seed_and_differs_without() -> None:
    model, prompt = decoder(), [[1, 2]]
    draws = [
        generate(model, prompt, 20, sampling=SamplingParams(seed=seed))[0] for seed in (1, 1, 2)
    ]
    assert draws[0] == draws[1] != draws[2]


def test_it_stops_at_the_end_token_and_leaves_it_out() -> None:
    model = decoder()
    free = generate(model, [[1, 2]], 8)[0]
    end = free[3]
    assert generate(model, [[1, 2]], 8, end_id=end)[0] == free[: free.index(end)]


def test_an_encoder_decoder_reads_its_source() -> None:
    model, sources = encoder_decoder(), [[7, 8, 9, 10], [11, 12]]
    outputs = generate(model, [[1], [1]], 6, sources=sources)
    for source, output in zip(sources, outputs, strict=True):
        ids = [1]
        for token in output:
            batch = ForwardBatch(torch.tensor([ids]))
            assert token == int(model(batch, ForwardBatch(torch.tensor([source])))[0, -1].argmax())
            ids.append(token)


def test_what_cannot_be_generated_is_refused_with_the_numbers() -> None:
    with pytest.raises(UsageError, match="the prompt has 0 tokens"):
        generate(decoder(), [[1], []], 4)
    with pytest.raises(UsageError, match="3 tokens and max_tokens is 30.*at most 29"):
        generate(decoder(), [[1, 2, 3]], 30)
    with pytest.raises(UsageError, match="has no source, but the model takes one"):
        generate(encoder_decoder(), [[1], [1]], 4)
    with pytest.raises(UsageError, match="needs a source"):
        encoder_decoder()(ForwardBatch(torch.tensor([[1]])))
    with pytest.raises(UsageError, match="has 33 tokens but the model's max_len is 32"):
        decoder()(ForwardBatch(torch.zeros(1, 33, dtype=torch.long)))
