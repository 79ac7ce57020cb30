"""Gemma 3, text: architecture `gemma3`.

GGUF keeps the weights of norms as they are multiplied with, Hugging Face minus 1. Which layers have
a window is a rule in llama.cpp (every sixth has none) and a list in a config.json; the scale of the
scores is 1 / sqrt(head size), but in the largest model (62 layers) 1 / sqrt(width / heads).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.checkpoint.families.base import HFConfig
from weft.checkpoint.gguf.dialect.base import Config, GGUFArchitecture, GGUFMetadata
from weft.checkpoint.gguf.dialect.llama import (
    ATTENTION,
    FEEDFORWARD,
    HEAD_NORMS,
    ends,
    read_common,
    refuse,
    renamed,
    write_common,
)
from weft.checkpoint.gguf.dialect.rope import rope_of
from weft.checkpoint.weight_rules import WeightRule, changed
from weft.core.errors import UsageError

NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
PERIOD = 6
LARGEST = 62
"""Layers of the model whose scores are scaled by another number."""
FULL, SLIDING = "full_attention", "sliding_attention"


def read_config(gguf: GGUFMetadata) -> dict[str, Any]:
    gguf.refuse("final_logit_softcapping", 0.0)
    common = read_common(gguf)
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


def score_scalar(config: Config) -> int:
    """The number whose root divides the scores."""
    if config["num_hidden_layers"] == LARGEST:
        return int(config["hidden_size"] // config["num_attention_heads"])
    return int(config["head_dim"])


def read_layer_types(gguf: GGUFMetadata, count: int) -> list[str]:
    hf = gguf.metadata.get(f"{gguf.prefix}.attention.sliding_window_pattern", PERIOD)
    if isinstance(hf, np.ndarray) and len(hf) == count:
        return [SLIDING if windowed else FULL for windowed in hf.tolist()]
    if isinstance(hf, bool) or not isinstance(hf, int) or hf < 1:
        gguf.fail("attention.sliding_window_pattern", repr(hf), "a number or one flag a layer")
    return layer_types(count, int(hf))


def layer_types(count: int, period: int) -> list[str]:
    return [SLIDING if (i + 1) % period else FULL for i in range(count)]


def write_config(hf: HFConfig) -> dict[str, Any]:
    refuse(hf, "hidden_activation", "gelu_pytorch_tanh")
    for name in ("final_logit_softcapping", "attn_logit_softcapping"):
        refuse(hf, name, None)
    refuse(hf, "use_bidirectional_attention", False)
    values = {"head_dim": 256, "num_key_value_heads": 4, **hf.values}
    refuse(hf, "query_pre_attn_scalar", score_scalar(values))
    full, local = both_ropes(values)
    common = write_common(HFConfig({**values, "rope_parameters": full}, hf.path), "gemma3")
    period = write_period(hf)
    return {
        **common,
        "gemma3.attention.sliding_window": hf.size("sliding_window"),
        "gemma3.rope.freq_base_swa": local,
        **({} if period == PERIOD else {"gemma3.attention.sliding_window_pattern": period}),
    }


def write_period(hf: HFConfig) -> int:
    """The layer whose multiples see all keys."""
    count = hf.size("num_hidden_layers")
    period = hf.size("sliding_window_pattern", hf.size("_sliding_window_pattern", PERIOD))
    types = hf.get("layer_types", layer_types(count, period))
    period = types.index(FULL) + 1 if FULL in types else count + 1
    if types != layer_types(count, period):
        raise UsageError(
            f"layer_types is {types}, which a GGUF file cannot say: it says that every so many "
            "layers one sees all keys. Convert to hf instead."
        )
    # six is what a file means that says nothing, also where no layer is the sixth
    return PERIOD if types == layer_types(count, PERIOD) else period


def both_ropes(values: Config) -> tuple[dict[str, Any], float]:
    """Positions of the layers that see all keys, and the base of the others."""
    told = values.get("rope_parameters") or {}
    full = rope_of({"rope_theta": 1e6, **values, "rope_parameters": told.get(FULL)})
    local = rope_of(
        {
            "rope_theta": values.get("rope_local_base_freq") or 1e4,
            "rope_parameters": told.get(SLIDING),
        }
    )
    if local["rope_type"] != "default":
        raise UsageError(
            f"rope_type of {SLIDING} is {local['rope_type']!r}, which a GGUF file cannot say. "
            "Convert to hf instead."
        )
    return full, float(local["rope_theta"])


def rules(config: Config) -> list[WeightRule]:
    found = ends(config)
    for i in range(int(config["num_hidden_layers"])):
        names = ATTENTION | FEEDFORWARD | NORMS | HEAD_NORMS
        found += renamed(f"model.layers.{i}", f"blk.{i}", names)
    return [offset(rule) if rule.target_name.endswith("norm.weight") else rule for rule in found]


def offset(rule: WeightRule) -> WeightRule:
    """A norm, whose weights are 1 more in GGUF."""
    (name,) = rule.file_names
    return changed(rule.target_name, name, lambda weight: weight - 1, lambda weight: weight + 1)


ARCHITECTURE = GGUFArchitecture(
    name="gemma3",
    model_types=("gemma3_text",),
    read_config=read_config,
    write_config=write_config,
    rules=rules,
    ignored=(r".*rotary_emb.*inv_freq", r"lm_head\.weight"),
    prefixes=("model.",),
)
