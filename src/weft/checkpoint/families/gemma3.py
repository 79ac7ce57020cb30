"""Gemma 3, text: windows in five of six layers, which have RoPE of their own.

Norms stand before and after each sub-layer and on each query and key head, all with weights stored
minus 1; word embeddings are scaled by sqrt(width); the attention scale is a setting.

GGUF (architecture `gemma3`) stores the weights of norms as they are multiplied, Hugging Face minus
1. Which layers have a window is a period in llama.cpp (every sixth has none) and a list in a
config.json; the attention scale is 1 / sqrt(head size), but in the largest model (62 layers) 1 /
sqrt(width / heads).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from weft.checkpoint.families import llama
from weft.checkpoint.families.gguf_metadata import (
    GGUFArchitecture,
    GGUFMetadata,
    HFValues,
    check_writable,
    rope_rule,
)
from weft.checkpoint.families.hf_config import (
    HFConfig,
    read_rope,
    read_window,
    write_rope,
    write_window,
)
from weft.checkpoint.families.llama import (
    GGUF_ATTENTION,
    GGUF_FEEDFORWARD,
    GGUF_HEAD_NORMS,
    gguf_embedding_rules,
    head_norm_rules,
    read_gguf_common,
    write_gguf_common,
)
from weft.checkpoint.weight_rules import WeightRule, converted, layers, same_shape
from weft.core.errors import DataError, UsageError, shown
from weft.models.config import ModelConfig

FEEDFORWARDS = {
    "gelu_pytorch_tanh": "geglu_tanh",
    "gelu": "geglu",
    "silu": "swiglu",
    "relu": "reglu",
}
"""Values of hidden_activation, and the kinds of feed-forward layer they mean."""
NORMS = {
    "attention_path.norm": "input_layernorm",
    "attention_path.norm_out": "post_attention_layernorm",
    "feedforward_path.norm": "pre_feedforward_layernorm",
    "feedforward_path.norm_out": "post_feedforward_layernorm",
}
FULL, SLIDING = "full_attention", "sliding_attention"
PERIOD = 6
"""Every sixth layer has full attention where a file does not say."""


def read_hf(hf: HFConfig) -> ModelConfig:
    hf.require("use_bidirectional_attention", False, False)
    hf.require("attn_logit_softcapping", None)
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
                "kind": hf.one_of("hidden_activation", FEEDFORWARDS, "gelu_pytorch_tanh"),
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
    period = hf.size("sliding_window_pattern", hf.size("_sliding_window_pattern", PERIOD))
    return {
        "kind": "gqa",
        "num_heads": hf.size("num_attention_heads"),
        "num_kv_heads": hf.size("num_key_value_heads", 4),
        "head_size": hf.size("head_dim", 256),
        "bias": hf.flag("attention_bias", False),
        "qk_norm": True,
        "scale": hf.size("query_pre_attn_scalar", 256) ** -0.5,
        "pattern": read_window(hf, lambda layer: bool((layer + 1) % period)),
    }


def read_ropes(hf: HFConfig, has_windows: bool) -> dict[str, Any]:
    """Both rotary encodings. Old files: rope_theta and rope_scaling for the layers with full
    attention, rope_local_base_freq for the others; new files: rope_parameters by type of layer."""
    by_type = hf.get("rope_parameters", {})
    if not isinstance(by_type, Mapping):
        raise DataError(f"rope_parameters is {shown(by_type)}: it must be an object.", hf.path)
    full = {**hf.values, "rope_parameters": by_type.get(FULL)}
    local = {
        "rope_parameters": by_type.get(SLIDING),
        "rope_theta": hf.get("rope_local_base_freq"),
        "max_position_embeddings": hf.get("max_position_embeddings"),
    }
    return {
        "position": read_rope(HFConfig(full, hf.path), base=1e6),
        "local_position": read_rope(HFConfig(local, hf.path), base=1e4) if has_windows else None,
    }


def write_hf(config: ModelConfig) -> dict[str, Any]:
    activations = {kind: name for name, kind in FEEDFORWARDS.items()}
    scale, windows = config.attention.scale or config.head_size**-0.5, write_window(config)
    # transformers builds the mask of a window even if no layer uses it
    windows["sliding_window"] = windows["sliding_window"] or config.max_len
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        **llama.write_common(config),
        "hidden_activation": activations.get(config.feedforward.kind, "gelu_pytorch_tanh"),
        "attention_bias": config.attention.bias,
        "query_pre_attn_scalar": round(scale**-2),
        "final_logit_softcapping": config.head.softcap,
        **windows,
        **write_ropes(config),
    }


def write_ropes(config: ModelConfig) -> dict[str, Any]:
    """Both spellings; only the new one has RoPE scaling for the layers with a window."""
    local = config.local_position or config.position
    full = write_rope(config)
    sliding = write_rope(config.with_changes({"position": local.to_dict()}))
    return {
        **full,
        "rope_local_base_freq": sliding.get("rope_theta"),
        "rope_parameters": {
            FULL: full.get("rope_parameters"),
            SLIDING: sliding.get("rope_parameters"),
        },
    }


def rules(config: ModelConfig) -> list[WeightRule]:
    rules = llama.embedding_rules(config)
    for i in range(config.num_layers):
        weft, hf = f"decoder.blocks.{i}", f"model.layers.{i}"
        rules += llama.attention_rules(config, f"{weft}.attention", f"{hf}.self_attn")
        rules += head_norm_rules(f"{weft}.attention", f"{hf}.self_attn")
        rules += llama.feedforward_rules(config, f"{weft}.feedforward", f"{hf}.mlp")
        rules += layers(weft, hf, NORMS)
    return rules


GGUF_NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
LARGEST_MODEL_LAYERS = 62
"""Number of layers of the model with another attention scale."""


def read_gguf(gguf: GGUFMetadata) -> dict[str, Any]:
    gguf.require("final_logit_softcapping", 0.0)
    common = read_gguf_common(gguf)
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        **common,
        "attention_bias": False,
        "query_pre_attn_scalar": score_scalar(common),
        "sliding_window": gguf.size("attention.sliding_window"),
        "layer_types": read_layer_types(gguf, common["num_hidden_layers"]),
        "rope_local_base_freq": gguf.number("rope.freq_base_swa", 10000.0),
    }


def score_scalar(values: HFValues) -> int:
    """The number whose root divides the scores."""
    if values["num_hidden_layers"] == LARGEST_MODEL_LAYERS:
        return int(values["hidden_size"] // values["num_attention_heads"])
    return int(values["head_dim"])


def read_layer_types(gguf: GGUFMetadata, count: int) -> list[str]:
    key = "attention.sliding_window_pattern"
    pattern = gguf.metadata.get(f"{gguf.prefix}.{key}", PERIOD)
    if isinstance(pattern, np.ndarray) and len(pattern) == count:
        return [SLIDING if windowed else FULL for windowed in pattern.tolist()]
    if isinstance(pattern, bool) or not isinstance(pattern, int) or pattern < 1:
        gguf.fail(key, shown(pattern), "a number or one flag per layer")
    return layer_types(count, int(pattern))


def layer_types(count: int, period: int) -> list[str]:
    return [SLIDING if (i + 1) % period else FULL for i in range(count)]


def write_gguf(hf: HFConfig) -> dict[str, Any]:
    check_writable(hf, "hidden_activation", "gelu_pytorch_tanh")
    for key in ("final_logit_softcapping", "attn_logit_softcapping"):
        check_writable(hf, key, None)
    check_writable(hf, "use_bidirectional_attention", False)
    values = {"head_dim": 256, "num_key_value_heads": 4, **hf.values}
    check_writable(hf, "query_pre_attn_scalar", score_scalar(values))
    full, local_base = gguf_ropes(values)
    common = write_gguf_common(HFConfig({**values, "rope_parameters": full}, hf.path), "gemma3")
    period = write_period(hf)
    return {
        **common,
        "gemma3.attention.sliding_window": hf.size("sliding_window"),
        "gemma3.rope.freq_base_swa": local_base,
        **({} if period == PERIOD else {"gemma3.attention.sliding_window_pattern": period}),
    }


def write_period(hf: HFConfig) -> int:
    """Every how many layers one has full attention."""
    count = hf.size("num_hidden_layers")
    period = hf.size("sliding_window_pattern", hf.size("_sliding_window_pattern", PERIOD))
    types = hf.get("layer_types", layer_types(count, period))
    period = types.index(FULL) + 1 if FULL in types else count + 1
    if types != layer_types(count, period):
        raise UsageError(
            f"layer_types is {types}, which a GGUF file cannot express: it has one layer with "
            "full attention every so many layers. Convert to hf instead."
        )
    # a file without the key means six, also if there is no sixth layer
    return PERIOD if types == layer_types(count, PERIOD) else period


def gguf_ropes(values: HFValues) -> tuple[dict[str, Any], float]:
    """RoPE of the layers with full attention, and the base of the others."""
    by_type = values.get("rope_parameters") or {}
    full = rope_rule({"rope_theta": 1e6, **values, "rope_parameters": by_type.get(FULL)})
    local_base = values.get("rope_local_base_freq") or 1e4
    local = rope_rule({"rope_theta": local_base, "rope_parameters": by_type.get(SLIDING)})
    if local["rope_type"] != "default":
        raise UsageError(
            f"rope_type of {SLIDING} is {local['rope_type']!r}, which a GGUF file cannot express. "
            "Convert to hf instead."
        )
    return full, float(local["rope_theta"])


def gguf_rules(values: HFValues) -> list[WeightRule]:
    rules = gguf_embedding_rules(values)
    names = GGUF_ATTENTION | GGUF_FEEDFORWARD | GGUF_NORMS | GGUF_HEAD_NORMS
    for i in range(int(values["num_hidden_layers"])):
        rules += layers(f"model.layers.{i}", f"blk.{i}", names)
    return [with_offset(r) if r.target_name.endswith("norm.weight") else r for r in rules]


def with_offset(rule: WeightRule) -> WeightRule:
    """A norm, whose weights in GGUF are greater by 1."""
    (name,) = rule.file_names
    return converted(
        rule.target_name,
        name,
        lambda weight: weight - 1,
        lambda weight: weight + 1,
        shape=same_shape,
    )


FAMILY = replace(
    llama.FAMILY,
    name="gemma3",
    model_types=("gemma3_text",),
    read_hf=read_hf,
    rules=rules,
    write_hf=write_hf,
    gguf=GGUFArchitecture(
        name="gemma3",
        read_gguf=read_gguf,
        write_gguf=write_gguf,
        rules=gguf_rules,
        dropped=(r".*rotary_emb.*inv_freq", r"lm_head\.weight"),
    ),
)
