"""The entry of a model in /server_info: sizes, kinds of its components, examples.

    model_facts(config, tokenizer)      the settings of a model, under the field's usual names

Sizes are computed from the settings, so that a model that is loaded on demand has them too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from weft.checkpoint.description import describe
from weft.core.errors import WeftError
from weft.models.config import ModelConfig
from weft.models.cost import cost_of
from weft.serve.served_model import ServedModel

MAX_DESCRIBED = 256


def model_facts(config: ModelConfig) -> dict[str, Any]:
    """Sizes and kinds of the components."""
    heads = config.attention
    layers = [config.layers_of("encoder"), config.layers_of("decoder")]
    return {
        "parameters": cost_of(config).parameters,
        "layers": layers if config.kind == "encoder-decoder" else config.num_layers,
        "heads": heads.num_heads,
        "kv_heads": heads.kv_heads,
        "head_size": config.head_size,
        "width": config.width,
        "vocab_size": config.vocab_size,
        "attention": heads.kind,
        "pattern": pattern_name(config),
        "position": config.position.kind,
        "norm": f"{config.norm.kind}, {config.norm.placement}",
        "feedforward": config.feedforward.kind,
    }


def pattern_name(config: ModelConfig) -> str:
    """full, or the kind of the pattern with its window."""
    pattern = config.attention.pattern
    window = f" of {pattern.window:,}" if pattern.kind in ("window", "dilated", "global") else ""
    full = f", every {pattern.full_every}. layer full" if pattern.full_every else ""
    return f"{pattern.kind}{window}{full}"


def loaded_facts(served: ServedModel) -> dict[str, Any]:
    """The facts of a loaded model, with its tokenizer and the type of its weights."""
    model, tokenizer = served.loaded.model, served.tokenizer
    facts = model_facts(model.config)
    return facts | {
        "tokenizer": type(tokenizer.backend.model).__name__,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "family": served.loaded.checkpoint.family,
    }


@lru_cache(MAX_DESCRIBED)
def described_facts(model: str) -> dict[str, Any]:
    """What the files of a model that is not loaded say; empty if they cannot be read."""
    try:
        description = describe(model)
        facts = model_facts(description.config) | {"family": description.family}
    except (WeftError, OSError):
        return {}
    return {"kind": description.config.kind, "architecture": facts}
