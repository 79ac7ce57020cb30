"""Windows in a config.json, in both of its spellings, <-> our attention.pattern.

"sliding_window": 512, "sliding_window_pattern": 6               Gemma 3, until transformers 4.52
"sliding_window": 4096, "max_window_layers": 28                  Qwen, the same
"sliding_window": 512, "layer_types": ["sliding_attention", ..., "full_attention"]       since then
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from weft.checkpoint.families.base import HFConfig
from weft.core.errors import DataError
from weft.models.config import ModelConfig

TYPES = {"full_attention": False, "sliding_attention": True}
"""Their names of layers, and whether these have a window."""


def read_window(hf: HFConfig, has_window: Callable[[int], bool]) -> dict[str, Any]:
    """Settings of attention.pattern. `has_window` answers for a layer (counted from 0) where the
    file has no layer_types."""
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
            f"{windowed.index(True) + 1}: Weft computes a window in every layer, or in all but "
            "each n-th.",
            hf.path,
        )
    return {**pattern, "full_every": every}


def windowed_layers(hf: HFConfig, count: int) -> list[bool] | None:
    """Whether each layer has a window, from layer_types; None: the file has none."""
    types = hf.get("layer_types")
    if types is None:
        return None
    if not isinstance(types, list) or len(types) != count:
        told = f"a list of {len(types)}" if isinstance(types, list) else repr(types)
        raise DataError(f"layer_types is {told}: it must name {count} layers.", hf.path)
    unknown = [kind for kind in types if not isinstance(kind, str) or kind not in TYPES]
    if unknown:
        known = ", ".join(TYPES)
        raise DataError(f"layer_types holds {unknown[0]!r}: Weft knows {known}.", hf.path)
    return [TYPES[kind] for kind in types]


def write_window(config: ModelConfig) -> dict[str, Any]:
    """sliding_window (null: no layer has one) and layer_types."""
    pattern = config.attention.pattern
    windowed = [not pattern.is_full(layer) for layer in range(config.num_layers)]
    names = {has_window: name for name, has_window in TYPES.items()}
    return {
        "sliding_window": pattern.window if any(windowed) else None,
        "layer_types": [names[has_window] for has_window in windowed],
    }
