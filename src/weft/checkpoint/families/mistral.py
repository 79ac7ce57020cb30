"""Mistral: Llama's layout, with a window in every layer (7B v0.1) or in none (v0.2 and later).

In GGUF it is architecture `llama`, and is read as a Llama.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.checkpoint.families import llama
from weft.checkpoint.families.hf_config import HFConfig, read_window, write_window
from weft.models.config import ModelConfig


def read_hf(hf: HFConfig) -> ModelConfig:
    """layer_types, which some files have, takes precedence over sliding_window (transformers then
    calls the model a Ministral)."""
    values = llama.read_hf(hf).to_dict()
    has_window = hf.get("sliding_window") is not None
    values["attention"]["pattern"] = read_window(hf, lambda layer: has_window)
    return ModelConfig.from_dict(values, where=str(hf.path))


def write_hf(config: ModelConfig) -> dict[str, Any]:
    return {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "hidden_act": "silu",
        "sliding_window": write_window(config)["sliding_window"],
        **llama.write_common(config),
    }


FAMILY = replace(
    llama.FAMILY, name="mistral", model_types=("mistral",), read_hf=read_hf, write_hf=write_hf
)
