"""Qwen 1.5, 2 and 2.5 (qwen2) and Qwen3, dense (qwen3): Llama's layout.

qwen2 has a bias on queries, keys and values but not on the output; qwen3 has none, and QK-norm. In
GGUF (architectures `qwen2` and `qwen3`) rows are in the order of Hugging Face.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.checkpoint.families import llama
from weft.checkpoint.families.gguf_metadata import (
    GGUFArchitecture,
    GGUFMetadata,
    HFValues,
    check_writable,
)
from weft.checkpoint.families.hf_config import HFConfig, read_window, write_window
from weft.checkpoint.families.llama import (
    GGUF_ATTENTION,
    GGUF_FEEDFORWARD,
    GGUF_HEAD_NORMS,
    GGUF_NORMS,
    gguf_embedding_rules,
    head_norm_rules,
    read_gguf_common,
    write_gguf_common,
)
from weft.checkpoint.weight_rules import WeightRule, layers
from weft.models.config import ModelConfig

QWEN3_HEAD_SIZE = 128
"""Where a config.json has no head_dim; not width / heads, as in the other families."""


def read_qwen2_hf(hf: HFConfig) -> ModelConfig:
    values = llama.read_hf(hf).to_dict()
    values["attention"] |= {"bias": True, "out_bias": False, "pattern": read_pattern(hf)}
    return ModelConfig.from_dict(values, where=str(hf.path))


def read_qwen3_hf(hf: HFConfig) -> ModelConfig:
    hf = with_head_size(hf)
    values = llama.read_hf(hf).to_dict()
    values["attention"] |= {"qk_norm": True, "pattern": read_pattern(hf)}
    return ModelConfig.from_dict(values, where=str(hf.path))


def with_head_size(hf: HFConfig) -> HFConfig:
    return HFConfig({**hf.values, "head_dim": hf.size("head_dim", QWEN3_HEAD_SIZE)}, hf.path)


def read_pattern(hf: HFConfig) -> dict[str, Any]:
    """Windows only if use_sliding_window is true, from layer max_window_layers on."""
    is_used = hf.flag("use_sliding_window", False) and hf.get("sliding_window") is not None
    first = hf.number("max_window_layers", 28) if is_used else hf.size("num_hidden_layers")
    return read_window(hf, lambda layer: layer >= first)


def write_qwen2_hf(config: ModelConfig) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        **write_pattern(config),
        **llama.write_common(config),
    }


def write_qwen3_hf(config: ModelConfig) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": config.attention.bias,
        **write_pattern(config),
        **llama.write_common(config),
    }


def write_pattern(config: ModelConfig) -> dict[str, Any]:
    """Both spellings; without any window, use_sliding_window is false."""
    values = write_window(config)
    is_used = values["sliding_window"] is not None
    first = 0 if is_used else config.num_layers
    return {**values, "use_sliding_window": is_used, "max_window_layers": first}


def qwen3_rules(config: ModelConfig) -> list[WeightRule]:
    rules = llama.rules(config)
    for i in range(config.num_layers):
        rules += head_norm_rules(f"decoder.blocks.{i}.attention", f"model.layers.{i}.self_attn")
    return rules


GGUF_OUTPUT = {"self_attn.o_proj": GGUF_ATTENTION["self_attn.o_proj"]}
GGUF_QKV = {name: short for name, short in GGUF_ATTENTION.items() if name not in GGUF_OUTPUT}


def read_qwen2_gguf(gguf: GGUFMetadata) -> dict[str, Any]:
    gguf.check_no_window()
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "use_sliding_window": False,
        **read_gguf_common(gguf),
    }


def read_qwen3_gguf(gguf: GGUFMetadata) -> dict[str, Any]:
    return {
        **read_qwen2_gguf(gguf),
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
    }


def write_qwen2_gguf(hf: HFConfig) -> dict[str, Any]:
    check_writable(hf, "use_sliding_window", False)
    check_writable(hf, "hidden_act", "silu")
    return write_gguf_common(hf, "qwen2")


def write_qwen3_gguf(hf: HFConfig) -> dict[str, Any]:
    check_writable(hf, "use_sliding_window", False)
    check_writable(hf, "hidden_act", "silu")
    check_writable(hf, "attention_bias", False)
    return write_gguf_common(with_head_size(hf), "qwen3")


def qwen2_gguf_rules(values: HFValues) -> list[WeightRule]:
    rules = gguf_embedding_rules(values)
    for i in range(int(values["num_hidden_layers"])):
        hf, gguf = f"model.layers.{i}", f"blk.{i}"
        rules += layers(hf, gguf, GGUF_QKV, bias=True)
        rules += layers(hf, gguf, GGUF_OUTPUT | GGUF_FEEDFORWARD | GGUF_NORMS)
    return rules


def qwen3_gguf_rules(values: HFValues) -> list[WeightRule]:
    rules = gguf_embedding_rules(values)
    names = GGUF_ATTENTION | GGUF_FEEDFORWARD | GGUF_NORMS | GGUF_HEAD_NORMS
    for i in range(int(values["num_hidden_layers"])):
        rules += layers(f"model.layers.{i}", f"blk.{i}", names)
    return rules


QWEN2 = replace(
    llama.FAMILY,
    name="qwen2",
    model_types=("qwen2",),
    read_hf=read_qwen2_hf,
    write_hf=write_qwen2_hf,
    gguf=GGUFArchitecture(
        name="qwen2",
        read_gguf=read_qwen2_gguf,
        write_gguf=write_qwen2_gguf,
        rules=qwen2_gguf_rules,
        dropped=llama.IGNORED,
    ),
)
QWEN3 = replace(
    llama.FAMILY,
    name="qwen3",
    model_types=("qwen3",),
    read_hf=read_qwen3_hf,
    rules=qwen3_rules,
    write_hf=write_qwen3_hf,
    gguf=GGUFArchitecture(
        name="qwen3",
        read_gguf=read_qwen3_gguf,
        write_gguf=write_qwen3_gguf,
        rules=qwen3_gguf_rules,
        dropped=llama.IGNORED,
    ),
)
