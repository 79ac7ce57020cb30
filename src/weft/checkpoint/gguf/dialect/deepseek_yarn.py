"""DeepSeek's rotary positions: yarn that also sharpens the scores (mscale, mscale_all_dim).

    rope.scaling.yarn_log_multiplier    a tenth of mscale_all_dim

The two numbers are one in every model that has been published; a file keeps no more.
"""

from __future__ import annotations

from typing import Any

from weft.checkpoint.families.base import HFConfig
from weft.checkpoint.gguf.dialect.base import GGUFMetadata
from weft.checkpoint.gguf.dialect.rope import ORIGINAL, rope_of
from weft.core.errors import UsageError

MULTIPLIER = "rope.scaling.yarn_log_multiplier"
FIXED = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}
"""Settings of yarn that llama.cpp has by default, and that a file of ours must have."""


def read_deepseek_yarn(gguf: GGUFMetadata) -> dict[str, Any]:
    """rope_theta and, if the angles are scaled, rope_scaling."""
    theta = gguf.number("rope.freq_base", 10000.0)
    kind = gguf.text("rope.scaling.type", "none")
    if kind == "none":
        return {"rope_theta": theta}
    if kind != "yarn":
        gguf.fail("rope.scaling.type", repr(kind), "none or yarn")
    # a tenth in 32 bits: rounding gives back 0.707 and 1.0
    sharpness = round(gguf.number(MULTIPLIER, 0.0) * 10, 6)
    rule = {
        "rope_type": "yarn",
        "factor": gguf.number("rope.scaling.factor"),
        "original_max_position_embeddings": gguf.size(ORIGINAL),
        **({"mscale": sharpness, "mscale_all_dim": sharpness} if sharpness else {}),
    }
    return {"rope_theta": theta, "rope_scaling": rule}


def write_deepseek_yarn(hf: HFConfig, prefix: str) -> dict[str, Any]:
    """The way back; a UsageError for a rule that a file cannot say."""
    rule = rope_of(hf.values)
    found: dict[str, Any] = {f"{prefix}.rope.freq_base": float(rule["rope_theta"])}
    if rule["rope_type"] == "default":
        return found
    sharpness = float(rule.get("mscale_all_dim", 0.0))
    told = {**FIXED, "mscale": sharpness}
    wrong = [name for name, value in told.items() if rule.get(name, value) != value]
    if rule["rope_type"] != "yarn" or wrong or "attention_factor" in rule:
        raise UsageError(
            f"rope_scaling is {rule}, which a GGUF file of architecture {prefix} cannot say. "
            "Convert to hf instead."
        )
    original = rule.get("original_max_position_embeddings")
    return found | {
        f"{prefix}.rope.scaling.type": "yarn",
        f"{prefix}.rope.scaling.factor": float(rule["factor"]),
        f"{prefix}.{ORIGINAL}": int(original or hf.size("max_position_embeddings", 2048)),
        f"{prefix}.{MULTIPLIER}": sharpness / 10,
    }
