"""DeepSeek-V3 and R1, Moonlight: V2 with a sigmoid router whose choice is corrected per expert.

The layer that predicts a second token, at the end of the official files, is left unread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.checkpoint.families import deepseek_v2, llama
from weft.checkpoint.families.base import HFConfig
from weft.checkpoint.families.deepseek_v2 import experts_of, read_model, write_model
from weft.models.config import ModelConfig


def read_config(hf: HFConfig) -> ModelConfig:
    hf.refuse("scoring_func", "sigmoid", "sigmoid")
    hf.refuse("topk_method", "noaux_tc", "noaux_tc")
    router = {
        "scoring": "sigmoid",
        "correction": True,
        "normalise": hf.flag("norm_topk_prob", True),
        "scale": hf.number("routed_scaling_factor", 2.5),
        "num_groups": hf.size("n_group", 8),
        "groups_per_token": hf.size("topk_group", 4),
        "group_score": "top2",
    }
    layout = "interleaved" if hf.flag("rope_interleave", True) else "halves"
    return read_model(hf, layout, router, dense_layers=3)


def write_config(config: ModelConfig) -> dict[str, Any]:
    layout = getattr(config.position, "layout", "interleaved")
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "rope_interleave": layout == "interleaved",
        "num_nextn_predict_layers": 0,
        **write_model(config, experts_of(config)),
    }


FAMILY = replace(
    llama.FAMILY,
    name="deepseek_v3",
    model_types=("deepseek_v3",),
    read_config=read_config,
    rules=deepseek_v2.rules,
    write_config=write_config,
    # layer 61: DeepSeek's own second-token layer, the one name that says so
    ignored=(*llama.FAMILY.ignored, r"model\.layers\.61\..*"),
)
