"""Qwen2 and Qwen3, dense: Llama's layout with the rows as Hugging Face has them.

Qwen2 has biases on q, k and v; Qwen3 has none, and a norm on each query and key head.
"""

from __future__ import annotations

from typing import Any

from weft.checkpoint.families.base import HFConfig
from weft.checkpoint.gguf.dialect.base import Config, GGUFArchitecture, GGUFMetadata
from weft.checkpoint.gguf.dialect.llama import (
    ATTENTION,
    FEEDFORWARD,
    HEAD_NORMS,
    NORMS,
    ends,
    read_common,
    refuse,
    renamed,
    write_common,
)
from weft.checkpoint.weight_rules import WeightRule

OUTPUT = {"self_attn.o_proj": ATTENTION["self_attn.o_proj"]}
INPUTS = {name: short for name, short in ATTENTION.items() if name not in OUTPUT}


def read_qwen2(gguf: GGUFMetadata) -> dict[str, Any]:
    gguf.check_no_window()
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "use_sliding_window": False,
        **read_common(gguf),
    }


def read_qwen3(gguf: GGUFMetadata) -> dict[str, Any]:
    return {
        **read_qwen2(gguf),
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
    }


def write_qwen2(hf: HFConfig) -> dict[str, Any]:
    refuse(hf, "use_sliding_window", False)
    refuse(hf, "hidden_act", "silu")
    return write_common(hf, "qwen2")


def write_qwen3(hf: HFConfig) -> dict[str, Any]:
    refuse(hf, "use_sliding_window", False)
    refuse(hf, "hidden_act", "silu")
    refuse(hf, "attention_bias", False)
    # a file without head_dim means 128 here, not width / heads
    values = {**hf.values, "head_dim": hf.size("head_dim", 128)}
    return write_common(HFConfig(values, hf.path), "qwen3")


def qwen2_rules(config: Config) -> list[WeightRule]:
    found = ends(config)
    for i in range(int(config["num_hidden_layers"])):
        theirs, file = f"model.layers.{i}", f"blk.{i}"
        found += renamed(theirs, file, INPUTS, bias=True)
        found += renamed(theirs, file, OUTPUT | FEEDFORWARD | NORMS)
    return found


def qwen3_rules(config: Config) -> list[WeightRule]:
    found = ends(config)
    for i in range(int(config["num_hidden_layers"])):
        names = ATTENTION | FEEDFORWARD | NORMS | HEAD_NORMS
        found += renamed(f"model.layers.{i}", f"blk.{i}", names)
    return found


IGNORED = (r".*rotary_emb\.inv_freq", r"lm_head\.weight")

QWEN2 = GGUFArchitecture(
    name="qwen2",
    model_types=("qwen2",),
    read_config=read_qwen2,
    write_config=write_qwen2,
    rules=qwen2_rules,
    ignored=IGNORED,
    prefixes=("model.",),
)
QWEN3 = GGUFArchitecture(
    name="qwen3",
    model_types=("qwen3",),
    read_config=read_qwen3,
    write_config=write_qwen3,
    rules=qwen3_rules,
    ignored=IGNORED,
    prefixes=("model.",),
)
