"""`HFConfig`: a config.json with typed access; and its settings that several families share.

Rotary positions have two spellings:

    "rope_theta": 10000.0, "rope_scaling": {"rope_type": "llama3", ...}      until transformers 4
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "llama3", ...}   since transformers 5

and so have sliding windows:

    "sliding_window": 512, "sliding_window_pattern": 6                Gemma 3, until 4.52
    "sliding_window": 4096, "max_window_layers": 28                   Qwen, until 4.52
    "sliding_window": 512, "layer_types": ["sliding_attention", ..., "full_attention"]    since then

All are read; both spellings of RoPE are written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from weft.core.errors import DataError, shown
from weft.models.config import MAX_LAYERS, ModelConfig
from weft.nn.positions.config import RotaryConfig

ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Activations of `transformers` and the kinds of feed-forward layer they mean."""
HF_ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "silu": "silu", "gelu_tanh": "gelu_new"}
"""The inverse, with the name that most files have."""
ROPE_KEYS = {
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
"""Keys of a RoPE scaling rule, and the names of the same settings in ModelConfig."""
ORIGINAL_LENGTH = "original_max_position_embeddings"
ROPE_TYPES = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": (
        "factor",
        ORIGINAL_LENGTH,
        "beta_fast",
        "beta_slow",
        "attention_factor",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
    "llama3": ("factor", ORIGINAL_LENGTH, "low_freq_factor", "high_freq_factor"),
}
"""RoPE scaling rules and the keys that each has."""
MAX_SIZE = 2**31 - 1
MAX_EXPERTS = 10_000
"""More than any model has: the tensors of all experts are named before a file is compared."""
LAYER_TYPES = {"full_attention": False, "sliding_attention": True}
"""Values of layer_types, and whether such a layer has a window."""


class HFConfig:
    """The values of a config.json; each accessor raises a DataError that names key and value."""

    def __init__(
        self, values: Mapping[str, Any], path: Path, tensors: Collection[str] | None = None
    ) -> None:
        self.values, self.path = values, path
        self.tensors = tensors
        """Names of the tensors of the same checkpoint; None: not known."""

    def get(self, key: str, default: Any = None) -> Any:
        """A value, or the default if it is absent or null."""
        value = self.values.get(key)
        return default if value is None else value

    def size(self, key: str, default: int | None = None) -> int:
        """An integer of at least 1."""
        value = self.get(key, default)
        if value is None:
            raise DataError(f"has no {key}, which this family needs.", self.path)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DataError(f"{key} is {shown(value)}: it must be an integer above 0.", self.path)
        limit = MAX_SIZE
        if key.endswith("layers") or "experts" in key:
            limit = MAX_LAYERS if key.endswith("layers") else MAX_EXPERTS
        if value > limit:
            raise DataError(f"{key} is {shown(value)}: it must be at most {limit:,}.", self.path)
        return value

    def has_tensor(self, name: str, default: bool) -> bool:
        """Whether the checkpoint has a tensor; `default` if its names are not known."""
        return default if self.tensors is None else name in self.tensors

    def number(self, key: str, default: float) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DataError(f"{key} is {shown(value)}: it must be a number.", self.path)
        if not abs(value) <= sys.float_info.max:  # NaN, infinity, or an integer beyond all floats
            raise DataError(f"{key} is {shown(value)}: it must be a finite number.", self.path)
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise DataError(f"{key} is {shown(value)}: it must be true or false.", self.path)
        return value

    def one_of(self, key: str, table: Mapping[str, Any], default: str) -> Any:
        """The entry of a table that a value selects."""
        value = self.get(key, default)
        if not isinstance(value, str) or value not in table:
            known = ", ".join(sorted(table))
            raise DataError(f"{key} is {shown(value)}: Weft supports {known}.", self.path)
        return table[value]

    def architecture(self, table: Mapping[str, Any], default: str) -> Any:
        """The entry of a table that `architectures` selects: which heads the file contains."""
        names = self.get("architectures", [default])
        name = names[0] if isinstance(names, list) and names else names
        if not isinstance(name, str) or name not in table:
            known = " and ".join(table)
            raise DataError(f"architectures is {shown(names)}: Weft reads {known}.", self.path)
        return table[name]

    def require(self, key: str, supported: Any, default: Any = None) -> None:
        """A DataError unless the value is absent or the one that Weft supports."""
        value = self.get(key, default)
        if value != supported and key in self.values:
            raise DataError(
                f"{key} is {shown(value)}: Weft supports {supported!r} only.", self.path
            )


def read_rope(hf: HFConfig, layout: str = "halves", base: float = 10000.0) -> dict[str, Any]:
    """Settings of a rotary position encoding from either spelling."""
    values = hf.get("rope_parameters") or hf.get("rope_scaling") or {}
    if not isinstance(values, Mapping):
        raise DataError(f"rope_scaling is {shown(values)}: it must be an object.", hf.path)
    theta = HFConfig(values, hf.path).number("rope_theta", hf.number("rope_theta", base))
    return {
        "kind": "rotary",
        "base": theta,
        "layout": layout,
        "scaling": read_rope_scaling(values, hf),
    }


def read_rope_scaling(values: Mapping[str, Any], hf: HFConfig) -> dict[str, Any]:
    """The scaling rule under the names of ModelConfig."""
    kind = values.get("rope_type", values.get("type", "default"))
    if kind == "default":
        return {"kind": "none"}
    if not isinstance(kind, str) or kind not in ROPE_TYPES:
        known = ", ".join(["default", *ROPE_TYPES])
        raise DataError(f"rope_type is {shown(kind)}: Weft supports {known}.", hf.path)
    keys = ROPE_TYPES[kind]
    settings = {ROPE_KEYS[key]: values[key] for key in keys if values.get(key) is not None}
    # the original length of dynamic scaling is max_position_embeddings, as in transformers, which
    # ignores original_max_position_embeddings there
    if ORIGINAL_LENGTH in keys or kind == "dynamic":
        settings.setdefault("original_max_len", hf.size("max_position_embeddings", 2048))
    return {"kind": kind, **settings}


def read_max_len(hf: HFConfig, default: int = 2048) -> int:
    """max_position_embeddings; with dynamic RoPE scaling, up to `factor` times as many tokens."""
    length, scaling = hf.size("max_position_embeddings", default), read_rope(hf)["scaling"]
    is_dynamic = scaling["kind"] == "dynamic"
    return int(length * HFConfig(scaling, hf.path).number("factor", 1.0)) if is_dynamic else length


def write_rope(config: ModelConfig) -> dict[str, Any]:
    """Both spellings, for old and new versions of `transformers`; with dynamic scaling also
    max_position_embeddings, which is its original length."""
    position = config.position
    if not isinstance(position, RotaryConfig):
        return {}
    theta, scaling = position.base, position.scaling.to_dict()
    kind = scaling.pop("kind")
    if kind == "none":
        return {
            "rope_theta": theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        }
    hf_keys = {setting: key for key, setting in ROPE_KEYS.items()}
    settings = {hf_keys[name]: value for name, value in scaling.items() if value is not None}
    original = {}
    if kind == "dynamic":
        original = {"max_position_embeddings": settings.pop(ORIGINAL_LENGTH)}
    rule = {"rope_type": kind, **settings}
    return {
        **original,
        "rope_theta": theta,
        "rope_scaling": rule,
        "rope_parameters": {**rule, "rope_theta": theta},
    }


def read_window(hf: HFConfig, has_window: Callable[[int], bool]) -> dict[str, Any]:
    """Settings of attention.pattern. `has_window`: for a layer (from 0), if the file has no
    layer_types."""
    count = hf.size("num_hidden_layers")
    windowed = windowed_layers(hf, count) or [has_window(layer) for layer in range(count)]
    if not any(windowed):
        return {"kind": "full"}
    pattern = {"kind": "window", "window": hf.size("sliding_window")}
    if all(windowed):
        return pattern
    every = windowed.index(False) + 1
    if windowed != [bool((layer + 1) % every) for layer in range(count)]:
        raise DataError(
            f"{sum(windowed)} of its {count} layers have a window, beginning with layer "
            f"{windowed.index(True) + 1}: Weft supports a window in every layer, or in all but "
            "each n-th.",
            hf.path,
        )
    return {**pattern, "full_every": every}


def windowed_layers(hf: HFConfig, count: int) -> list[bool] | None:
    """Whether each layer has a window, from layer_types; None if the file has none."""
    types = hf.get("layer_types")
    if types is None:
        return None
    if not isinstance(types, list) or len(types) != count:
        value = f"a list of {len(types)}" if isinstance(types, list) else shown(types)
        raise DataError(f"layer_types is {value}: it must name {count} layers.", hf.path)
    unknown = [kind for kind in types if not isinstance(kind, str) or kind not in LAYER_TYPES]
    if unknown:
        known = ", ".join(LAYER_TYPES)
        raise DataError(f"layer_types has {shown(unknown[0])}: Weft supports {known}.", hf.path)
    return [LAYER_TYPES[kind] for kind in types]


def write_window(config: ModelConfig) -> dict[str, Any]:
    """sliding_window (null: no layer has one) and layer_types."""
    pattern = config.attention.pattern
    windowed = [not pattern.is_full(layer) for layer in range(config.num_layers)]
    names = {has_window: name for name, has_window in LAYER_TYPES.items()}
    return {
        "sliding_window": pattern.window if any(windowed) else None,
        "layer_types": [names[has_window] for has_window in windowed],
    }
