"""The engine: the same tokens as uncached passes, and the same bits however a request is served.

Cold = warm = preempted = batched = with drafts, for a decoder with grouped heads, one with latent
rows, one with a window, and an encoder-decoder with T5's bias.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.request import GenerationRequest, RequestOutput
from weft.models.transformer import EncoderDecoder
from weft.nn.packed_modules import pack_model
from weft.sampling.params import SamplingParams

from . import plain
from .tiny import tiny

HEADS = {"attention": {"kind": "gqa", "num_heads": 4, "num_kv_heads": 2}}
LATENT = {"attention": {"kind": "mla", "num_heads": 4, "latent": {"kv_rank": 12, "rope_size": 4}}}
WINDOW = {"attention": {"num_heads": 4, "pattern": {"kind": "window", "window": 7}}}
MODELS: dict[str, dict[str, Any]] = {
    "grouped": {"kind": "decoder", "position": {"kind": "rotary"}, **HEADS},
    "latent": {"kind": "decoder", "position": {"kind": "rotary"}, **LATENT},
    "window": {"kind": "decoder", "position": {"kind": "rotary"}, **WINDOW},
    "bias": {"kind": "encoder-decoder", "position": {"kind": "bucketed", "max_distance": 20}},
}
SMALL = {"page_size": 4, "cache_gib": 1e-3}


def make(name: str, **config: Any) -> Engine:
    checkpoint = tiny(**MODELS[name])
    return Engine(checkpoint.model, checkpoint.tokenizer, EngineConfig(**{**SMALL, **config}))


def requests(engine: Engine, number: int = 12, seed: int = 1) -> list[GenerationRequest]:
    """Prompts that share beginnings, and several kinds of sampling."""
    rng, vocab = random.Random(seed), engine.model.config.vocab_size
    common = [rng.randrange(5, vocab) for _ in range(9)]
    has_source = isinstance(engine.model, EncoderDecoder)
    made = []
    for i in range(number):
        own = [rng.randrange(5, vocab) for _ in range(rng.randrange(1, 10))]
        prompt = tuple(common[: rng.randrange(1, 9)] + own)
        temperature = (0.0, 0.9)[i % 2]
        sampling = SamplingParams(temperature=temperature, seed=i, top_p=0.9, logprobs=2)
        source = tuple(rng.choices(range(5, vocab), k=rng.randrange(1, 14)))
        made.append(
            GenerationRequest(
                prompt, rng.randrange(1, 14), source if has_source else None, sampling
            )
        )
    return made


def long_ones(generation_requests: list[GenerationRequest]) -> list[GenerationRequest]:
    """Greedy texts that are long enough to repeat themselves."""
    sampling = SamplingParams(temperature=0.0, logprobs=2)
    return [
        GenerationRequest(w.prompt[:2], 36, w.source, sampling) for w in generation_requests[:3]
    ]


def run(
    engine: Engine, generation_requests: list[GenerationRequest], at_once: bool = True
) -> list[list[Any]]:
    """Tokens and log-probabilities of each request, in order."""
    result: dict[str, list[Any]] = {}

    def serve() -> None:
        while not engine.is_idle:
            for update in engine.step():
                result[update.request_id] += contents(update)

    for generation_request in generation_requests:
        result[engine.submit(generation_request)] = []
        if not at_once:
            serve()
    serve()
    return list(result.values())


def contents(update: RequestOutput) -> list[Any]:
    assert update.error is None
    return [(token, one) for token, one in zip(update.tokens, update.logprobs, strict=True)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("packed", [False, True], ids=["torch's linear", "packed"])
def test_greedy_tokens_are_those_of_uncached_passes(name: str, packed: bool) -> None:
    engine = make(name)
    generation_requests = requests(engine)
    greedy = [
        GenerationRequest(w.prompt, 8, w.source, SamplingParams(temperature=0, logprobs=0))
        for w in generation_requests
    ]
    expected = [plain.greedy(engine.model, w.prompt, 8, source=w.source) for w in greedy]
    if packed:
        pack_model(engine.model)
    assert [[token for token, _ in line] for line in run(engine, greedy)] == expected


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "config, at_once",
    [
        ({}, True),
        ({"prefix_cache": "none"}, True),
        ({"prefix_cache": "hash"}, True),
        ({"token_budget": 5, "max_running": 4}, True),
        ({"preempt_every": 3}, True),
        ({"miss_every": 2}, False),
        ({"speculate": True}, True),
        ({"page_size": 1}, True),
        ({"page_size": 16}, True),
    ],
    ids=[
        "batched",
        "no cache",
        "hashed",
        "chunked",
        "preempted",
        "warm and missed",
        "speculated",
        "pages of 1",
        "pages of 16",
    ],
)
def test_a_request_has_the_same_bits_however_it_is_served(
    name: str, config: dict[str, Any], at_once: bool
) -> None:
    alone = make(name, prefix_cache="none")
    pack_model(alone.model)
    generation_requests = requests(alone)
    if "speculate" in config:
        generation_requests += long_ones(generation_requests)
    expected = run(alone, generation_requests, at_once=False)
    engine = make(name, **config)
    pack_model(engine.model)
    assert run(engine, generation_requests, at_once) == expected
    assert (
        run(engine, generation_requests[::-1], at_once)[::-1] == expected
    )  # now with a warm cache
    pool = engine.kv_cache.pool
    assert pool.num_free + pool.num_evictable == pool.num_usable
    check_exercised(engine, config)


def check_exercised(engine: Engine, config: dict[str, Any]) -> None:
    """What a configuration is about has really happened, or the comparison would say nothing."""
    counts = engine.statistics()
    has_cache = config.get("prefix_cache") != "none" and config.get("page_size") != 16
    assert (counts.hit_tokens > 0) == has_cache or config.get("page_size") == 16
    assert (counts.preemptions > 0) == ("preempt_every" in config)
    assert (counts.accepted_tokens > 0) == ("speculate" in config)
    assert "token_budget" not in config or counts.steps > counts.computed_tokens / 5
