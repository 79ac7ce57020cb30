"""Random cases of determinism: a seed -> a model, requests, and ways to serve them, as JSON values.

A case contains everything that it needs, so that a saved one stays what it was when the generator
changes. Sizes are small, but odd ones are as frequent as round ones: kernels treat the numbers that
do not fill a vector in another way.
"""

from __future__ import annotations

import random
from typing import Any

Json = dict[str, Any]

KINDS = ("decoder", "decoder", "decoder", "encoder-decoder", "encoder")
POSITIONS = ("none", "sinusoidal", "learned", "rotary", "alibi", "bucketed", "shaw", "shaw")
PATTERNS = ("full", "full", "window", "strided", "dilated", "global", "blocks")
HEAD_SIZES = (1, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 17, 20, 24, 31, 32, 33, 48)
FEEDFORWARDS = ("relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu", "geglu_tanh", "reglu")
MAX_LEN = 96
LARGE_VOCABULARY = 40_000
"""More logits than torch computes on one thread."""


def make_case(seed: int) -> Json:
    """The case of a seed."""
    rng = random.Random(seed)
    model = make_model(rng)
    quantization = make_quantization(rng)
    if quantization is not None:  # groups of 32 inputs share a scale
        model["width"], model["feedforward"]["width"] = 32, rng.choice((32, 64))
    return {
        "seed": seed,
        "model": model,
        "quantization": quantization,
        "requests": make_requests(rng, model),
        "servings": [make_serving(rng) for _ in range(3)],
    }


def make_model(rng: random.Random) -> Json:
    kind, position = rng.choice(KINDS), rng.choice(POSITIONS)
    vocab_size = LARGE_VOCABULARY if rng.random() < 0.05 else rng.randrange(20, 300)
    width = 2 * rng.randrange(4, 24)
    head = make_head(rng)
    return {
        "kind": kind,
        "vocab_size": vocab_size,
        "width": min(width, 16) if vocab_size == LARGE_VOCABULARY else width,
        "num_layers": rng.randrange(1, 4),
        "max_len": MAX_LEN,
        "dropout": 0.0,
        "attention": make_attention(rng, position),
        "position": make_position(rng, position),
        "feedforward": make_feedforward(rng),
        "norm": make_norm(rng),
        "embedding": {
            "tied": rng.choice(("all", "none")),
            "scale": rng.random() < 0.3,
            "norm": rng.random() < 0.2,
        },
        "head": head,
    }


def make_quantization(rng: random.Random) -> Json | None:
    if rng.random() < 0.8:
        return None
    return {"bits": rng.choice((4, 8)), "int8_activations": rng.random() < 0.5}


def make_attention(rng: random.Random, position: str) -> Json:
    kind, heads = rng.choice(("mha", "gqa", "mqa", "mla")), rng.randrange(1, 9)
    sizes = [size for size in HEAD_SIZES if position != "rotary" or size % 2 == 0]
    attention: Json = {
        "kind": kind,
        "num_heads": heads,
        "head_size": rng.choice(sizes),
        "bias": rng.random() < 0.3,
        "pattern": make_pattern(rng),
    }
    if kind == "gqa":
        attention["num_kv_heads"] = rng.choice([n for n in range(1, heads + 1) if heads % n == 0])
    if kind == "mla":
        attention["latent"] = make_latent(rng)
    elif rng.random() < 0.4:
        attention["qk_norm"] = True
    if rng.random() < 0.3:
        attention["softcap"] = rng.choice((5.0, 30.0))
    if rng.random() < 0.2:
        attention["scale"] = rng.choice((0.3, 1.0))
    return attention


def make_latent(rng: random.Random) -> Json:
    return {
        "kv_rank": rng.randrange(3, 40),
        "query_rank": rng.choice((None, rng.randrange(3, 20))),
        "nope_size": rng.randrange(1, 20),
        "rope_size": 2 * rng.randrange(1, 8),
        "value_size": rng.randrange(1, 20),
    }


def make_pattern(rng: random.Random) -> Json:
    kind = rng.choice(PATTERNS)
    pattern: Json = {"kind": kind, "full_every": rng.choice((None, None, 2))}
    if kind in ("window", "dilated", "global"):
        pattern["window"] = rng.randrange(1, 24)
    if kind == "dilated":
        pattern["step"] = rng.randrange(1, 5)
    if kind == "strided":
        pattern["stride"] = rng.randrange(1, 12)
    if kind == "global":
        pattern["global_tokens"] = rng.randrange(1, 6)
    if kind == "blocks":
        size = rng.randrange(5, 40)
        num = -(-MAX_LEN // size)
        pattern["block_size"] = size
        pattern["blocks"] = [[rng.random() < 0.6 for _ in range(num)] for _ in range(num)]
    return pattern


def make_position(rng: random.Random, kind: str) -> Json:
    position: Json = {"kind": kind}
    if kind == "rotary":
        position["layout"] = rng.choice(("halves", "interleaved"))
        scalings: list[Json] = [
            {"kind": "none"},
            {"kind": "linear", "factor": 2.0},
            {"kind": "yarn", "factor": 4.0, "original_max_len": 32},
            {"kind": "llama3", "original_max_len": 32},
        ]
        position["scaling"] = rng.choice(scalings)
    if kind == "bucketed":
        position["max_distance"] = rng.choice((20, 128))
    if kind == "shaw":
        position["max_distance"] = rng.randrange(1, 24)
    return position


def make_feedforward(rng: random.Random) -> Json:
    width = rng.randrange(3, 90)
    if rng.random() < 0.8:
        return {"kind": rng.choice(FEEDFORWARDS), "width": width, "bias": rng.random() < 0.5}
    num = rng.randrange(1, 9)
    return {
        "kind": "experts",
        "num_experts": num,
        "experts_per_token": rng.randrange(1, num + 1),
        "shared_experts": rng.randrange(0, 3),
        "width": width,
        "scoring": rng.choice(("softmax", "sigmoid")),
        "correction": rng.random() < 0.3,
    }


def make_norm(rng: random.Random) -> Json:
    return {
        "kind": rng.choice(("layernorm", "rmsnorm")),
        "placement": rng.choice(("before", "before", "after", "both")),
        "unit_offset": rng.random() < 0.2,
    }


def make_head(rng: random.Random) -> Json:
    return {
        "bias": rng.random() < 0.3,
        "softcap": rng.choice((None, None, 8.0)),
        "scale": rng.choice((1.0, 1.0, 0.7)),
    }


def make_requests(rng: random.Random, model: Json) -> list[Json]:
    """Prompts that share beginnings; texts to score and to embed; beam searches; samples."""
    vocab_size = model["vocab_size"]
    common = [rng.randrange(vocab_size) for _ in range(40)]
    kinds = {
        "decoder": ("sample", "sample", "sample", "greedy", "greedy", "beam", "score", "embed"),
        "encoder-decoder": ("sample", "sample", "greedy", "greedy", "beam", "embed"),
        "encoder": ("embed",),
    }[model["kind"]]
    requests = []
    for kind in [*kinds[-4:], *(rng.choice(kinds) for _ in range(5))]:
        shared = rng.choice((0, rng.randrange(40), 33))
        own = [rng.randrange(vocab_size) for _ in range(rng.choice((1, 2, 3, 5, 12, 34)))]
        request: Json = {"kind": kind, "prompt": common[:shared] + own}
        if kind not in ("embed", "score"):
            request["max_tokens"] = rng.randrange(1, 9)
        if kind == "sample":
            request["sampling"] = make_sampling(rng)
            request["n"] = rng.choice((1, 1, 2))
        if kind == "beam":
            request["width"] = rng.choice((1, 2, 3))
        if model["kind"] == "encoder-decoder" and kind != "embed":
            count = rng.choice((1, 2, 7, 18, 35))
            request["source"] = [rng.randrange(vocab_size) for _ in range(count)]
        if kind == "score":
            request["prompt"] = common[:1] + request["prompt"]
        requests.append(request)
    return requests


def make_sampling(rng: random.Random) -> Json:
    return {
        "temperature": 0.9,
        "top_p": rng.choice((1.0, 0.9, 0.5)),
        "top_k": rng.choice((0, 0, 7)),
        "min_p": rng.choice((0.0, 0.0, 0.05)),
        "repetition_penalty": rng.choice((1.0, 1.0, 1.2)),
        "seed": rng.randrange(1000),
    }


def make_serving(rng: random.Random) -> Json:
    """One way to serve the requests: settings of the engine, threads, and the order."""
    engine: Json = {
        "page_size": rng.choice((1, 3, 4, 8, 16, 32)),
        "prefix_cache": rng.choice(("radix", "radix", "hash", "none")),
    }
    way = rng.choice(("batch", "chunks", "preemption", "misses", "drafts"))
    if way == "chunks":
        budget = rng.randrange(3, 30)
        engine |= {"token_budget": budget, "max_running": rng.randrange(3, budget + 1)}
    if way == "preemption":
        engine["preempt_every"] = rng.randrange(2, 6)
    if way == "misses":
        engine["miss_every"] = rng.randrange(1, 4)
    if way == "drafts":
        engine["speculate"] = True
    return {
        "engine": engine,
        "threads": rng.randrange(1, 5),
        "modules": rng.random() < 0.4,
        "order": rng.randrange(1_000_000),
        "group": rng.choice((2, 4, 100, 100)),
    }
