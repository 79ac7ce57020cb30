"""DeepSeek's YaRN in GGUF: it also scales the scores (mscale, mscale_all_dim).

    rope.scaling.yarn_log_multiplier    a tenth of mscale_all_dim

The two numbers are equal in every published model; a file stores only one.
"""

from __future__ import annotations

from typing import Any

from weft.checkpoint.families.gguf_metadata import ROPE_ORIGINAL_LENGTH, GGUFMetadata, rope_rule
from weft.checkpoint.families.hf_config import ORIGINAL_LENGTH, HFConfig
from weft.core.errors import UsageError, shown

MULTIPLIER = "rope.scaling.yarn_log_multiplier"
FIXED = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}
"""Defaults of llama.cpp, the only values that can be written."""


def read_deepseek_yarn(gguf: GGUFMetadata) -> dict[str, Any]:
    """rope_theta and, with RoPE scaling, rope_scaling."""
    theta = gguf.number("rope.freq_base", 10000.0)
    kind = gguf.text("rope.scaling.type", "none")
    if kind == "none":
        return {"rope_theta": theta}
    if kind != "yarn":
        gguf.fail("rope.scaling.type", shown(kind), "none or yarn")
    # a tenth in 32 bits: rounding restores 0.707 and 1.0
    mscale = round(gguf.number(MULTIPLIER, 0.0) * 10, 6)
    rule = {
        "rope_type": "yarn",
        "factor": gguf.number("rope.scaling.factor"),
        ORIGINAL_LENGTH: gguf.size(ROPE_ORIGINAL_LENGTH),
        **({"mscale": mscale, "mscale_all_dim": mscale} if mscale else {}),
    }
    return {"rope_theta": theta, "rope_scaling": rule}


def write_deepseek_yarn(hf: HFConfig, prefix: str) -> dict[str, Any]:
    """Metadata of RoPE; a UsageError for a rule that a file cannot express."""
    rule = rope_rule(hf.values)
    metadata: dict[str, Any] = {f"{prefix}.rope.freq_base": float(rule["rope_theta"])}
    if rule["rope_type"] == "default":
        return metadata
    mscale = float(rule.get("mscale_all_dim", 0.0))
    expected = {**FIXED, "mscale": mscale}
    wrong = [name for name, value in expected.items() if rule.get(name, value) != value]
    if rule["rope_type"] != "yarn" or wrong or "attention_factor" in rule:
        raise UsageError(
            f"rope_scaling is {rule}, which a GGUF file of architecture {prefix} cannot express. "
            "Convert to hf instead."
        )
    original = rule.get(ORIGINAL_LENGTH) or hf.size("max_position_embeddings", 2048)
    return metadata | {
        f"{prefix}.rope.scaling.type": "yarn",
        f"{prefix}.rope.scaling.factor": float(rule["factor"]),
        f"{prefix}.{ROPE_ORIGINAL_LENGTH}": int(original),
        f"{prefix}.{MULTIPLIER}": mscale / 10,
    }
