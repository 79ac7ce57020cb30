"""Gemma 3, text: windows in five of six layers, with rotary positions of their own.

Norms stand before and after each sub-layer and on each query and key head, all with weights stored
minus 1; words are scaled by sqrt(width); scores by a number that need not be the head size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.checkpoint.families import llama
from weft.checkpoint.families.base import HFConfig
from weft.checkpoint.families.qwen3 import head_norms
from weft.checkpoint.families.rope import read_rope, write_rope
from weft.checkpoint.families.windows import read_window, write_window
from weft.checkpoint.weight_rules import WeightRule, layer
from weft.core.errors import DataError
from weft.models.config import ModelConfig

KINDS = {"gelu_pytorch_tanh": "geglu_tanh", "gelu": "geglu", "silu": "swiglu", "relu": "reglu"}
"""hidden_activation and the feed-forward layer it means."""
NORMS = {
    "attention_path.norm": "input_layernorm",
    "attention_path.norm_out": "post_attention_layernorm",
    "feedforward_path.norm": "pre_feedforward_layernorm",
    "feedforward_path.norm_out": "post_feedforward_layernorm",
}


def read_config(hf: HFConfig) -> ModelConfig:
    hf.refuse("use_bidirectional_attention", False, False)
    hf.refuse("attn_logit_softcapping", None)
    attention = read_attention(hf)
    return ModelConfig.from_dict(
        {
            "kind": "decoder",
            "vocab_size": hf.size("vocab_size"),
            "width": hf.size("hidden_size"),
            "num_layers": hf.size("num_hidden_layers"),
            "max_len": hf.size("max_position_embeddings", 131072),
            "dropout": 0.0,
            "attention": attention,
            **read_ropes(hf, has_windows=attention["pattern"]["kind"] == "window"),
            "feedforward": {
                "kind": hf.one_of("hidden_activation", KINDS, "gelu_pytorch_tanh"),
                "width": hf.size("intermediate_size"),
            },
            "norm": {
                "kind": "rmsnorm",
                "eps": hf.number("rms_norm_eps", 1e-6),
                "placement": "both",
                "unit_offset": True,
            },
            "embedding": {
                "tied": "all" if hf.flag("tie_word_embeddings", True) else "none",
                "scale": True,
            },
            "head": {"softcap": hf.get("final_logit_softcapping")},
        },
        where=str(hf.path),
    )


def read_attention(hf: HFConfig) -> dict[str, Any]:
    every = hf.size("sliding_window_pattern", hf.size("_sliding_window_pattern", 6))
    return {
        "kind": "gqa",
        "num_heads": hf.size("num_attention_heads"),
        "num_kv_heads": hf.size("num_key_value_heads", 4),
        "head_size": hf.size("head_dim", 256),
        "bias": hf.flag("attention_bias", False),
        "qk_norm": True,
        "scale": hf.size("query_pre_attn_scalar", 256) ** -0.5,
        "pattern": read_window(hf, lambda layer: bool((layer + 1) % every)),
    }


def read_ropes(hf: HFConfig, has_windows: bool) -> dict[str, Any]:
    """Both rotary bases. Old files: rope_theta and rope_scaling for the layers that see all keys,
    rope_local_base_freq for the others; new ones: rope_parameters by the type of layer."""
    told = hf.get("rope_parameters", {})
    if not isinstance(told, Mapping):
        raise DataError(f"rope_parameters is {told!r}: it must be an object.", hf.path)
    full = {**hf.values, "rope_parameters": told.get("full_attention")}
    local = {
        "rope_parameters": told.get("sliding_attention"),
        "rope_theta": hf.get("rope_local_base_freq"),
        "max_position_embeddings": hf.get("max_position_embeddings"),
    }
    return {
        "position": read_rope(HFConfig(full, hf.path), base=1e6),
        "local_position": read_rope(HFConfig(local, hf.path), base=1e4) if has_windows else None,
    }


def write_config(config: ModelConfig) -> dict[str, Any]:
    names = {kind: name for name, kind in KINDS.items()}
    scale, windows = config.attention.scale or config.head_size**-0.5, write_window(config)
    # their code makes the mask of a window even where no layer uses it
    windows["sliding_window"] = windows["sliding_window"] or config.max_len
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        **llama.common_config(config),
        "hidden_activation": names.get(config.feedforward.kind, "gelu_pytorch_tanh"),
        "attention_bias": config.attention.bias,
        "query_pre_attn_scalar": round(scale**-2),
        "final_logit_softcapping": config.head.softcap,
        **windows,
        **write_ropes(config),
    }


def write_ropes(config: ModelConfig) -> dict[str, Any]:
    """Both spellings; what scales the windowed layers' angles exists in the new one only."""
    local = config.local_position or config.position
    full = write_rope(config)
    sliding = write_rope(config.with_changes({"position": local.to_dict()}))
    return {
        **full,
        "rope_local_base_freq": sliding.get("rope_theta"),
        "rope_parameters": {
            "full_attention": full.get("rope_parameters"),
            "sliding_attention": sliding.get("rope_parameters"),
        },
    }


def rules(config: ModelConfig) -> list[WeightRule]:
    found = llama.ends(config)
    for i in range(config.num_layers):
        ours, theirs = f"decoder.blocks.{i}", f"model.layers.{i}"
        found += llama.attention(config, f"{ours}.attention", f"{theirs}.self_attn")
        found += head_norms(f"{ours}.attention", f"{theirs}.self_attn")
        found += llama.gated(config, f"{ours}.feedforward", f"{theirs}.mlp")
        for our_norm, their_norm in NORMS.items():
            found += layer(f"{ours}.{our_norm}", f"{theirs}.{their_norm}")
    return found


FAMILY = replace(
    llama.FAMILY,
    name="gemma3",
    model_types=("gemma3_text",),
    read_config=read_config,
    rules=rules,
    write_config=write_config,
)
