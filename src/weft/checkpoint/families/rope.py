"""Rotary positions in a config.json, in both of its spellings, <-> our settings.

"rope_theta": 10000.0, "rope_scaling": {"rope_type": "llama3", ...}      until transformers 4
"rope_parameters": {"rope_theta": 10000.0, "rope_type": "llama3", ...}   since transformers 5
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.checkpoint.families.base import HFConfig
from weft.core.errors import DataError
from weft.models.config import ModelConfig
from weft.nn.positions import RotaryConfig

NAMES = {
    "factor": "factor",
    "original_max_position_embeddings": "original_max_len",
    "low_freq_factor": "low_frequency_factor",
    "high_freq_factor": "high_frequency_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "attention_factor": "attention_factor",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
    "truncate": "truncate",
}
"""Their names of a scaling rule's settings, and ours."""
READS = {
    "linear": ("factor",),
    "dynamic": ("factor", "original_max_position_embeddings"),
    "yarn": (
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
    "llama3": (
        "factor",
        "original_max_position_embeddings",
        "low_freq_factor",
        "high_freq_factor",
    ),
}


def read_rope(hf: HFConfig, layout: str = "halves", base: float = 10000.0) -> dict[str, Any]:
    """Settings of position.kind = rotary from either spelling."""
    values = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    if not isinstance(values, Mapping):
        raise DataError(f"rope_scaling is {values!r}: it must be an object.", hf.path)
    theta = HFConfig(values, hf.path).number("rope_theta", hf.number("rope_theta", base))
    return {
        "kind": "rotary",
        "base": theta,
        "layout": layout,
        "scaling": read_scaling(values, hf),
    }


def read_scaling(values: Mapping[str, Any], hf: HFConfig) -> dict[str, Any]:
    """The scaling rule, under our names."""
    kind = values.get("rope_type", values.get("type", "default"))
    if kind == "default":
        return {"kind": "none"}
    if kind not in READS:
        known = ", ".join(["default", *READS])
        raise DataError(f"rope_type is {kind!r}: Weft knows {known}.", hf.path)
    found = {NAMES[name]: values[name] for name in READS[kind] if values.get(name) is not None}
    if "original_max_position_embeddings" in READS[kind]:
        found.setdefault("original_max_len", hf.size("max_position_embeddings", 2048))
    return {"kind": kind, **found}


def write_rope(config: ModelConfig) -> dict[str, Any]:
    """Both spellings, so that old and new readers find theirs."""
    position = config.position
    if not isinstance(position, RotaryConfig):
        return {}
    scaling = position.scaling.to_dict()
    kind = scaling.pop("kind")
    if kind == "none":
        return {
            "rope_theta": position.base,
            "rope_parameters": {"rope_type": "default", "rope_theta": position.base},
        }
    ours_to_theirs = {ours: theirs for theirs, ours in NAMES.items()}
    told = {ours_to_theirs[n]: v for n, v in scaling.items() if v is not None}
    rule = {"rope_type": kind, **told}
    return {
        "rope_theta": position.base,
        "rope_scaling": rule,
        "rope_parameters": {**rule, "rope_theta": position.base},
    }
