"""Qwen3, dense: Llama's layout, with a norm on each query and key head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.checkpoint.families import llama
from weft.checkpoint.families.base import HFConfig
from weft.checkpoint.families.qwen2 import read_pattern, write_pattern
from weft.checkpoint.weight_rules import WeightRule, layer
from weft.models.config import ModelConfig


def read_config(hf: HFConfig) -> ModelConfig:
    # a file without head_dim means 128 here, not width / heads
    hf = HFConfig({**hf.values, "head_dim": hf.size("head_dim", 128)}, hf.path)
    values = llama.read_config(hf).to_dict()
    values["attention"] |= {"qk_norm": True, "pattern": read_pattern(hf)}
    return ModelConfig.from_dict(values, where=str(hf.path))


def write_config(config: ModelConfig) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": config.attention.bias,
        **write_pattern(config),
        **llama.common_config(config),
    }


def rules(config: ModelConfig) -> list[WeightRule]:
    found = llama.rules(config)
    for i in range(config.num_layers):
        found += head_norms(f"decoder.blocks.{i}.attention", f"model.layers.{i}.self_attn")
    return found


def head_norms(ours: str, theirs: str) -> list[WeightRule]:
    """The norms of a layer's queries and keys."""
    found = layer(f"{ours}.query_norm", f"{theirs}.q_norm")
    return found + layer(f"{ours}.key_norm", f"{theirs}.k_norm")


FAMILY = replace(
    llama.FAMILY,
    name="qwen3",
    model_types=("qwen3",),
    read_config=read_config,
    rules=rules,
    write_config=write_config,
)
