"""Rotary positions in GGUF's metadata <-> rope_theta and rope_scaling of a config.json.

    rope.freq_base                                          the base
    rope.scaling.type = linear | yarn, rope.scaling.factor  a stretched context
    tensor rope_freqs.weight                                Llama 3: divisors of the frequencies

Llama 3's rule has four settings, of which a file keeps only what comes out of them. They are taken
to be the ones that Llama 3 has, and the divisors computed from them must be those of the file. What
Weft writes names them (weft.rope.*), which other programs pass over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from weft.checkpoint.families.base import HFConfig
from weft.checkpoint.gguf.dialect.base import GGUFMetadata
from weft.core.errors import DataError, UsageError

DIVISORS = "rope_freqs.weight"
ORIGINAL = "rope.scaling.original_context_length"
YARN = {
    "original_max_position_embeddings": ORIGINAL,
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
}
YARN_FIXED = {"attention_factor": None, "mscale": None, "mscale_all_dim": None, "truncate": True}
"""Settings of yarn that a file does not keep, and the value with which it may be written."""


def read_rope(gguf: GGUFMetadata, head_size: int) -> dict[str, Any]:
    """rope_theta and, if the angles are scaled, rope_scaling."""
    gguf.refuse("rope.dimension_count", head_size)
    theta = gguf.number("rope.freq_base", 10000.0)
    scaling = read_scaling(gguf, head_size, theta)
    return {"rope_theta": theta, **({} if scaling is None else {"rope_scaling": scaling})}


def read_scaling(gguf: GGUFMetadata, head_size: int, theta: float) -> dict[str, Any] | None:
    kind = gguf.text("rope.scaling.type", "none")
    if gguf.get("rope.scale_linear") is not None:
        return {"rope_type": "linear", "factor": gguf.number("rope.scale_linear")}
    if kind == "linear":
        return {"rope_type": "linear", "factor": gguf.number("rope.scaling.factor")}
    if kind == "yarn":
        return read_yarn(gguf)
    if kind != "none":
        gguf.fail("rope.scaling.type", repr(kind), "none, linear or yarn")
    return read_llama3(gguf, head_size, theta) if gguf.has(DIVISORS) else None


def read_yarn(gguf: GGUFMetadata) -> dict[str, Any]:
    gguf.refuse("rope.scaling.attn_factor", 1.0)
    gguf.refuse("rope.scaling.yarn_log_multiplier", 0.0)
    found: dict[str, Any] = {"rope_type": "yarn", "factor": gguf.number("rope.scaling.factor")}
    for name, key in YARN.items():
        if gguf.get(key) is not None:
            found[name] = gguf.size(key) if name.startswith("original") else gguf.number(key)
    return found


def read_llama3(gguf: GGUFMetadata, head_size: int, theta: float) -> dict[str, Any] | None:
    """The rule that gives the divisors in the file; None where they are all 1."""
    hf = gguf.read(DIVISORS)
    factor = float(hf.max())
    if factor == 1 and float(hf.min()) == 1:
        return None
    own = GGUFMetadata({**gguf.metadata, "general.architecture": "weft"}, {}, gguf.read, gguf.path)
    rule = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": own.number("rope.low_freq_factor", 1.0),
        "high_freq_factor": own.number("rope.high_freq_factor", 4.0),
        "original_max_position_embeddings": gguf.size(ORIGINAL, 8192),
    }
    is_long_enough = hf.shape == (head_size // 2,)
    if not is_long_enough or not hf.allclose(divisors(rule, head_size, theta), rtol=1e-4):
        raise DataError(
            f"{DIVISORS} does not hold the divisors of Llama 3's rule with factor {factor:g}, "
            f"{rule['low_freq_factor']:g}, {rule['high_freq_factor']:g} and "
            f"{rule['original_max_position_embeddings']} tokens, the only rule that Weft knows "
            "such divisors of. Use the model's safetensors files.",
            gguf.path,
        )
    return rule


def divisors(rule: Mapping[str, Any], head_size: int, theta: float) -> Tensor:
    """What Llama 3 divides each frequency by: 1 for short waves, `factor` for long ones, and
    between the two a mixture."""
    steps = torch.arange(0, head_size, 2, dtype=torch.float64) / head_size
    turns = rule["original_max_position_embeddings"] * theta**-steps / (2 * math.pi)
    low, high = float(rule["low_freq_factor"]), float(rule["high_freq_factor"])
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 / ((1 - share) / rule["factor"] + share)).float()


def rope_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The base and the rule of either spelling of a config.json, as one dictionary."""
    hf = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rule = {name: value for name, value in hf.items() if value is not None}
    rule.setdefault("rope_theta", config.get("rope_theta") or 10000.0)
    rule["rope_type"] = rule.pop("type", None) or rule.get("rope_type", "default")
    return rule


def write_rope(hf: HFConfig, prefix: str, can_divide: bool = False) -> dict[str, Any]:
    """Metadata for rope_theta and rope_scaling. `can_divide`: readers of this architecture know
    Llama 3's divisors."""
    rule = rope_of(hf.values)
    found: dict[str, Any] = {f"{prefix}.rope.freq_base": float(rule["rope_theta"])}
    kind = rule["rope_type"]
    if kind in ("linear", "yarn"):
        found[f"{prefix}.rope.scaling.type"] = kind
        found[f"{prefix}.rope.scaling.factor"] = float(rule["factor"])
    if kind == "yarn":
        found |= write_yarn(rule, prefix)
    elif kind == "llama3" and can_divide:
        found[f"{prefix}.{ORIGINAL}"] = int(rule["original_max_position_embeddings"])
        for name in ("low_freq_factor", "high_freq_factor"):
            found[f"weft.rope.{name}"] = float(rule[name])
    elif kind not in ("default", "linear"):
        raise UsageError(
            f"rope_type is {kind!r}, which a GGUF file of architecture {prefix} cannot say: it "
            "says default, linear and yarn. Convert to hf instead."
        )
    return found


def write_yarn(rule: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    for name, allowed in YARN_FIXED.items():
        if rule.get(name, allowed) != allowed:
            raise UsageError(
                f"rope_scaling.{name} is {rule[name]!r}, which a GGUF file cannot say. Convert to "
                "hf instead."
            )
    found: dict[str, Any] = {}
    for name, key in YARN.items():
        if name in rule:
            value = rule[name]
            found[f"{prefix}.{key}"] = int(value) if name.startswith("original") else float(value)
    return found


def write_divisors(hf: HFConfig, head_size: int) -> dict[str, Tensor]:
    """The tensor that Llama 3's rule becomes."""
    rule = rope_of(hf.values)
    if rule["rope_type"] != "llama3":
        return {}
    return {DIVISORS: divisors(rule, head_size, float(rule["rope_theta"]))}
