"""Hypothesis strategies for ModelConfig: every part of a model varies independently."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from weft.models.config import ModelConfig

SIZES = {"vocab_size": 29, "width": 24, "num_layers": 2, "max_len": 64, "dropout": 0.0}

SCALINGS = st.sampled_from(
    [
        {"kind": "none"},
        {"kind": "linear", "factor": 2.0},
        {"kind": "dynamic", "factor": 2.0, "original_max_len": 8},
        {"kind": "yarn", "factor": 4.0, "original_max_len": 8},
        {
            "kind": "llama3",
            "factor": 4.0,
            "low_frequency_factor": 1.0,
            "high_frequency_factor": 4.0,
            "original_max_len": 16,
        },
    ]
)

POSITION_SETTINGS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "none": st.just({"kind": "none"}),
    "sinusoidal": st.fixed_dictionaries(
        {"kind": st.just("sinusoidal"), "layout": st.sampled_from(["interleaved", "halves"])}
    ),
    "learned": st.just({"kind": "learned"}),
    "shaw": st.just({"kind": "shaw", "max_distance": 3}),
    "bucketed": st.just({"kind": "bucketed", "num_buckets": 6, "max_distance": 9}),
    "alibi": st.just({"kind": "alibi"}),
    "rotary": st.fixed_dictionaries(
        {
            "kind": st.just("rotary"),
            "scaling": SCALINGS,
            "layout": st.sampled_from(["halves", "interleaved"]),
        }
    ),
}

PATTERNS = st.sampled_from(
    [
        {"kind": "full"},
        {"kind": "window", "window": 3},
        {"kind": "window", "window": 3, "full_every": 2},
        {"kind": "dilated", "window": 2, "step": 3},
        {"kind": "strided", "stride": 4},
        {"kind": "global", "window": 2, "global_tokens": 1},
    ]
)

HEADS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["mha", "gqa", "mqa", "mla"]),
        "num_heads": st.just(4),
        "num_kv_heads": st.sampled_from([None, 2]),
        "head_size": st.sampled_from([None, 8]),
        "bias": st.booleans(),
        "qk_norm": st.booleans(),
        "softcap": st.sampled_from([None, 5.0]),
        "kernel": st.sampled_from(["auto", "reference", "flash", "sparse"]),
        "pattern": PATTERNS,
        "latent": st.fixed_dictionaries(
            {
                "form": st.sampled_from(["auto", "expanded", "absorbed"]),
                "query_rank": st.sampled_from([None, 10]),
                "kv_rank": st.sampled_from([None, 7]),
                "rope_size": st.just(4),
            }
        ),
    }
)

FEEDFORWARDS = st.sampled_from(
    [
        {"kind": "relu", "width": 40, "bias": True},
        {"kind": "gelu", "width": 40, "bias": False},
        {"kind": "swiglu", "width": 40},
        {"kind": "geglu", "width": 40, "bias": True},
        {
            "kind": "experts",
            "num_experts": 4,
            "experts_per_token": 2,
            "width": 12,
            "shared_experts": 1,
        },
    ]
)

NORMS = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["layernorm", "rmsnorm"]),
        "placement": st.sampled_from(["before", "after", "both"]),
    }
)


@st.composite
def configs(draw: st.DrawFn, kind: str, position: str | None = None) -> ModelConfig:
    """Random settings of one kind of model."""
    name = position or draw(st.sampled_from(sorted(POSITION_SETTINGS)))
    return ModelConfig(
        **SIZES,
        kind=kind,
        attention=draw(HEADS),
        position=draw(POSITION_SETTINGS[name]),
        feedforward=draw(FEEDFORWARDS),
        norm=draw(NORMS),
        embedding={
            "tied": draw(st.sampled_from(["all", "output", "none"])),
            "scale": draw(st.booleans()),
            "norm": draw(st.booleans()),
        },
        head={"bias": draw(st.booleans()), "softcap": draw(st.sampled_from([None, 20.0]))},
    )
