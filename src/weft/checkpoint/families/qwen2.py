"""Qwen 1.5, 2 and 2.5: Llama's layout, with a bias on queries, keys and values but not on the
output."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.checkpoint.families import llama
from weft.checkpoint.families.base import HFConfig
from weft.checkpoint.families.windows import read_window, write_window
from weft.models.config import ModelConfig


def read_config(hf: HFConfig) -> ModelConfig:
    values = llama.read_config(hf).to_dict()
    values["attention"] |= {"bias": True, "out_bias": False, "pattern": read_pattern(hf)}
    return ModelConfig.from_dict(values, where=str(hf.path))


def read_pattern(hf: HFConfig) -> dict[str, Any]:
    """Their windows: only where use_sliding_window is true, from layer max_window_layers on."""
    is_used = hf.flag("use_sliding_window", False) and hf.get("sliding_window") is not None
    first = hf.number("max_window_layers", 28) if is_used else hf.size("num_hidden_layers")
    return read_window(hf, lambda layer: layer >= first)


def write_config(config: ModelConfig) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        **write_pattern(config),
        **llama.common_config(config),
    }


def write_pattern(config: ModelConfig) -> dict[str, Any]:
    """Both spellings; a file without any window has use_sliding_window false."""
    values = write_window(config)
    is_used = values["sliding_window"] is not None
    first = 0 if is_used else config.num_layers
    return {**values, "use_sliding_window": is_used, "max_window_layers": first}


FAMILY = replace(
    llama.FAMILY,
    name="qwen2",
    model_types=("qwen2",),
    read_config=read_config,
    write_config=write_config,
)
