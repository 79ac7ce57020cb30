"""`GGUFMetadata`: the metadata of a GGUF file with typed access; `GGUFArchitecture`: one value of
general.architecture, in Hugging Face's terms; and the rotary positions that most of them share.

    read_gguf    metadata -> the values of a config.json
    write_gguf   the values of a config.json -> metadata
    rules        which GGUF tensors make up which Hugging Face tensors (weight_rules.py)

A GGUF file is read as if it were a Hugging Face folder: the family then reads the config.json and
the tensor names. Rotary positions in the metadata:

    rope.freq_base                                          the base
    rope.scaling.type = linear | yarn, rope.scaling.factor  RoPE scaling
    tensor rope_freqs.weight                                Llama 3: divisors of the frequencies

Llama 3's rule has four settings, of which a file contains only the resulting divisors. Weft assumes
the settings of Llama 3 and compares the divisors that follow from them with the file's. Files that
Weft writes contain the settings too (weft.rope.*), which other programs ignore.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.checkpoint.families.hf_config import MAX_EXPERTS, MAX_SIZE, ORIGINAL_LENGTH, HFConfig
from weft.checkpoint.weight_rules import WeightRule
from weft.core.errors import DataError, UsageError, shown
from weft.models.config import MAX_LAYERS

HFValues = Mapping[str, Any]
"""The values of a config.json."""
NEUTRAL: dict[str, float] = {
    "attention.clamp_kqv": 0,
    "attention.max_alibi_bias": 0,
    "attention.scale": 0,
    "attn_logit_softcapping": 0,
    "embedding_scale": 1,
    "logit_scale": 1,
    "residual_scale": 1,
}
"""Settings of other architectures that change the computation, and the value that does not."""
ROPE_DIVISORS = "rope_freqs.weight"
ROPE_ORIGINAL_LENGTH = "rope.scaling.original_context_length"
YARN_KEYS = {
    ORIGINAL_LENGTH: ROPE_ORIGINAL_LENGTH,
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
}
YARN_FIXED = {"attention_factor": None, "mscale": None, "mscale_all_dim": None, "truncate": True}
"""Settings of YaRN that a GGUF file does not store, and the only value that can be written."""


class GGUFMetadata:
    """Metadata and tensor shapes of a file; each accessor raises a DataError that names the key."""

    def __init__(
        self,
        metadata: Mapping[str, Any],
        shapes: Mapping[str, tuple[int, ...]],
        read: Callable[[str], Any],
        path: Path,
    ) -> None:
        self.metadata, self.shapes, self.path = metadata, shapes, path
        self.read = read
        """Numbers of a tensor, as an array or anything that np.asarray accepts."""
        self.prefix = str(metadata.get("general.architecture"))

    def get(self, key: str, default: Any = None) -> Any:
        """A value of this architecture. An array with one entry per layer must be constant."""
        value = self.metadata.get(f"{self.prefix}.{key}", default)
        if isinstance(value, np.ndarray):
            values = set(value.tolist())
            if len(values) != 1:
                self.fail(key, "an array with different values", "the same in every layer")
            return values.pop()
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """An integer of at least 1."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.fail(key, shown(value), "an integer above 0")
        if value > MAX_SIZE:
            self.fail(key, shown(value), f"at most {MAX_SIZE:,}")
        if key.endswith("block_count") and value > MAX_LAYERS:
            self.fail(key, shown(value), f"at most {MAX_LAYERS:,}")
        if key == "expert_count" and value > MAX_EXPERTS:
            self.fail(key, shown(value), f"at most {MAX_EXPERTS:,}")
        return int(value)

    def sizes(self, keys: Mapping[str, str]) -> dict[str, int]:
        """Several sizes, from a table {key of config.json: key of the metadata}."""
        return {hf_key: self.size(key) for hf_key, key in keys.items()}

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(key, shown(value), "a number")
        if not math.isfinite(value):
            self.fail(key, shown(value), "a finite number")
        return shortest_decimal(float(value))

    def count(self, key: str, default: int) -> int:
        """An integer of at least 0."""
        return 0 if self.get(key, default) == 0 else self.size(key, default)

    def text(self, key: str, default: str) -> str:
        value = self.get(key, default)
        if not isinstance(value, str):
            self.fail(key, shown(value), "a string")
        return str(value)

    def has(self, tensor: str) -> bool:
        return tensor in self.shapes

    def rows(self, tensor: str) -> int:
        """Number of rows of a tensor."""
        if tensor not in self.shapes:
            raise DataError(f"has no tensor {tensor}. Use a file with a whole model.", self.path)
        return self.shapes[tensor][0]

    def require(self, key: str, supported: Any) -> None:
        """A DataError unless the value is absent or the one that Weft supports."""
        value = self.get(key, supported)
        if value != supported:
            self.fail(key, shown(value), f"{supported!r}, the only value that Weft supports here")

    def check_no_window(self) -> None:
        """A DataError for a sliding window, unless it is as long as the context."""
        window = self.get("attention.sliding_window", 0)
        if window and window < self.size("context_length"):
            self.fail("attention.sliding_window", shown(window), "absent in this architecture")

    def check_supported(self) -> None:
        """A DataError for settings of architectures that Weft does not have."""
        for key, neutral in NEUTRAL.items():
            self.require(key, neutral)
        if self.get("expert_count", 0) and self.prefix != "deepseek2":
            self.fail("expert_count", shown(self.get("expert_count")), "0 in this architecture")

    def fail(self, key: str, value: str, allowed: str) -> None:
        raise DataError(
            f"{self.prefix}.{key} is {value}: it must be {allowed}. Use another file.", self.path
        )


def shortest_decimal(value: float) -> float:
    """The shortest decimal of the same 32-bit number: 1e-05, not 9.999999747378752e-06."""
    narrow = np.float32(value)
    return float(str(narrow)) if float(narrow) == value else value


def no_tensors(hf: HFConfig) -> dict[str, NDArray[np.float32]]:
    return {}


def no_rules(values: HFValues) -> list[WeightRule]:
    return []


def no_stacks(values: HFValues) -> dict[str, list[str]]:
    return {}


@dataclass(frozen=True)
class GGUFArchitecture:
    """How one value of general.architecture corresponds to a Hugging Face model."""

    name: str
    """Value of general.architecture."""
    read_gguf: Callable[[GGUFMetadata], dict[str, Any]]
    write_gguf: Callable[[HFConfig], dict[str, Any]]
    """Metadata by full key: int, float, bool, str or a list of one of these."""
    rules: Callable[[HFValues], list[WeightRule]]
    """For values that `read_gguf` returned, or that are to be written."""
    legacy_rules: Callable[[HFValues], list[WeightRule]] = no_rules
    """Rules for tensors of older files; read, never written."""
    extra_tensors: Callable[[HFConfig], dict[str, NDArray[np.float32]]] = no_tensors
    """Tensors that GGUF has where Hugging Face has a setting."""
    stacks: Callable[[HFValues], dict[str, list[str]]] = no_stacks
    """GGUF tensors that contain several Hugging Face tensors along a new first axis: experts."""
    metadata_tensors: tuple[str, ...] = ()
    """GGUF tensors that `read_gguf` turns into settings."""
    dropped: tuple[str, ...] = ()
    """Patterns (re.fullmatch) of Hugging Face tensors that GGUF does not store."""


def write_gguf_sizes(
    hf: HFConfig, prefix: str, keys: Mapping[str, str], **defaults: int
) -> dict[str, int]:
    """Metadata for several sizes, from a table {key of config.json: key of the metadata}."""
    return {
        f"{prefix}.{key}": hf.size(hf_key, defaults.get(hf_key)) for hf_key, key in keys.items()
    }


def check_writable(hf: HFConfig, key: str, supported: Any) -> None:
    """A UsageError unless the setting is absent or the one that GGUF implies."""
    value = hf.get(key, supported)
    if value != supported:
        raise UsageError(
            f"{key} is {value!r}, which a GGUF file cannot express: it implies {supported!r}. "
            "Convert to hf instead."
        )


def read_gguf_rope(gguf: GGUFMetadata, head_size: int) -> dict[str, Any]:
    """rope_theta and, with RoPE scaling, rope_scaling."""
    gguf.require("rope.dimension_count", head_size)
    theta = gguf.number("rope.freq_base", 10000.0)
    scaling = read_gguf_scaling(gguf, head_size, theta)
    return {"rope_theta": theta, **({} if scaling is None else {"rope_scaling": scaling})}


def read_gguf_scaling(gguf: GGUFMetadata, head_size: int, theta: float) -> dict[str, Any] | None:
    kind = gguf.text("rope.scaling.type", "none")
    if gguf.get("rope.scale_linear") is not None:
        return {"rope_type": "linear", "factor": gguf.number("rope.scale_linear")}
    if kind == "linear":
        return {"rope_type": "linear", "factor": gguf.number("rope.scaling.factor")}
    if kind == "yarn":
        return read_yarn(gguf)
    if kind != "none":
        gguf.fail("rope.scaling.type", shown(kind), "none, linear or yarn")
    return read_llama3(gguf, head_size, theta) if gguf.has(ROPE_DIVISORS) else None


def read_yarn(gguf: GGUFMetadata) -> dict[str, Any]:
    gguf.require("rope.scaling.attn_factor", 1.0)
    gguf.require("rope.scaling.yarn_log_multiplier", 0.0)
    rule: dict[str, Any] = {"rope_type": "yarn", "factor": gguf.number("rope.scaling.factor")}
    for hf_key, key in YARN_KEYS.items():
        if gguf.get(key) is not None:
            rule[hf_key] = gguf.size(key) if hf_key == ORIGINAL_LENGTH else gguf.number(key)
    return rule


def read_llama3(gguf: GGUFMetadata, head_size: int, theta: float) -> dict[str, Any] | None:
    """The rule whose divisors the file contains; None if they are all 1."""
    divisors = np.asarray(gguf.read(ROPE_DIVISORS))
    factor = float(divisors.max())
    if factor == 1 and float(divisors.min()) == 1:
        return None
    weft = GGUFMetadata({**gguf.metadata, "general.architecture": "weft"}, {}, gguf.read, gguf.path)
    rule = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": weft.number("rope.low_freq_factor", 1.0),
        "high_freq_factor": weft.number("rope.high_freq_factor", 4.0),
        ORIGINAL_LENGTH: gguf.size(ROPE_ORIGINAL_LENGTH, 8192),
    }
    has_size = divisors.shape == (head_size // 2,)
    if not has_size or not np.allclose(
        divisors, llama3_divisors(rule, head_size, theta), rtol=1e-4
    ):
        raise DataError(
            f"{ROPE_DIVISORS} does not contain the divisors of Llama 3's rule with factor "
            f"{factor:g}, {rule['low_freq_factor']:g}, {rule['high_freq_factor']:g} and "
            f"{rule[ORIGINAL_LENGTH]} tokens, the only rule that Weft supports there. Use the "
            "model's safetensors files.",
            gguf.path,
        )
    return rule


@np.errstate(all="ignore")
def llama3_divisors(rule: HFValues, head_size: int, theta: float) -> NDArray[np.float32]:
    """Divisors of the frequencies: 1 for short wavelengths, `factor` for long ones, and between
    the two an interpolation."""
    exponents = np.arange(0, head_size, 2, dtype=np.float64) / head_size
    rotations = rule[ORIGINAL_LENGTH] * theta**-exponents / (2 * math.pi)
    low, high = float(rule["low_freq_factor"]), float(rule["high_freq_factor"])
    weight = ((rotations - low) / (high - low)).clip(0, 1)
    return (1 / ((1 - weight) / rule["factor"] + weight)).astype(np.float32)


def rope_rule(values: HFValues) -> dict[str, Any]:
    """Base and scaling rule of either spelling of a config.json, as one dictionary."""
    scaling = values.get("rope_parameters") or values.get("rope_scaling") or {}
    rule = {name: value for name, value in scaling.items() if value is not None}
    rule.setdefault("rope_theta", values.get("rope_theta") or 10000.0)
    rule["rope_type"] = rule.pop("type", None) or rule.get("rope_type", "default")
    return rule


def write_gguf_rope(hf: HFConfig, prefix: str, has_divisors: bool = False) -> dict[str, Any]:
    """Metadata for rope_theta and rope_scaling. `has_divisors`: whether this architecture supports
    Llama 3's divisors."""
    rule = rope_rule(hf.values)
    metadata: dict[str, Any] = {f"{prefix}.rope.freq_base": float(rule["rope_theta"])}
    kind = rule["rope_type"]
    if kind in ("linear", "yarn"):
        metadata[f"{prefix}.rope.scaling.type"] = kind
        metadata[f"{prefix}.rope.scaling.factor"] = float(rule["factor"])
    if kind == "yarn":
        metadata |= write_yarn(rule, prefix)
    elif kind == "llama3" and has_divisors:
        metadata[f"{prefix}.{ROPE_ORIGINAL_LENGTH}"] = int(rule[ORIGINAL_LENGTH])
        for name in ("low_freq_factor", "high_freq_factor"):
            metadata[f"weft.rope.{name}"] = float(rule[name])
    elif kind not in ("default", "linear"):
        raise UsageError(
            f"rope_type is {kind!r}, which a GGUF file of architecture {prefix} cannot express: "
            "it has default, linear and yarn. Convert to hf instead."
        )
    return metadata


def write_yarn(rule: HFValues, prefix: str) -> dict[str, Any]:
    for name, supported in YARN_FIXED.items():
        if rule.get(name, supported) != supported:
            raise UsageError(
                f"rope_scaling.{name} is {rule[name]!r}, which a GGUF file cannot express. Convert "
                "to hf instead."
            )
    return {
        f"{prefix}.{key}": int(rule[name]) if name == ORIGINAL_LENGTH else float(rule[name])
        for name, key in YARN_KEYS.items()
        if name in rule
    }


def write_llama3_divisors(hf: HFConfig, head_size: int) -> dict[str, NDArray[np.float32]]:
    """The tensor for Llama 3's rule; empty for any other rule."""
    rule = rope_rule(hf.values)
    if rule["rope_type"] != "llama3":
        return {}
    return {ROPE_DIVISORS: llama3_divisors(rule, head_size, float(rule["rope_theta"]))}
