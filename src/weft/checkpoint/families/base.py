"""`Family`: one model architecture in the files of other projects, in both directions.

    read_hf       config.json -> ModelConfig
    write_hf      ModelConfig -> config.json (None: this family is only read)
    rules         which tensors of a Hugging Face file make up which of Weft's (weight_rules.py)
    gguf          the same model in GGUF files, expressed in Hugging Face's terms (gguf_metadata.py)

Whether a model can be written as a family is decided by export_check.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from weft.checkpoint.families.generation_config import GenerationConfig, default_generation
from weft.checkpoint.families.gguf_metadata import GGUFArchitecture
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.weight_rules import WeightRule
from weft.models.config import ModelConfig


@dataclass(frozen=True)
class Family:
    """One entry of FAMILIES."""

    name: str
    model_types: tuple[str, ...]
    """Values of config.json's model_type."""
    read_hf: Callable[[HFConfig], ModelConfig]
    rules: Callable[[ModelConfig], list[WeightRule]]
    write_hf: Callable[[ModelConfig], dict[str, Any]] | None = None
    """Everything that `transformers` needs, model_type and architectures included."""
    ignored: tuple[str, ...] = ()
    """Patterns (re.fullmatch) of tensors in files that contain nothing learned."""
    prefixes: tuple[str, ...] = ()
    """Prefixes that some files put before, or leave off, every name ('model.', 'bert.')."""
    legacy_suffixes: Mapping[str, str] = field(default_factory=dict)
    """Legacy suffixes of names and their current form ('.gamma': '.weight')."""
    read_generation: Callable[[HFConfig], GenerationConfig] = default_generation
    gguf: GGUFArchitecture | None = None
    """None: GGUF has no such architecture, or Weft does not read it."""


def inner_width(config: ModelConfig) -> int:
    """Inner width of the feed-forward layers."""
    return config.feedforward.inner_width(config.width)


def has_bias(config: ModelConfig) -> bool:
    """Whether the feed-forward layers have a bias; experts never do."""
    return bool(getattr(config.feedforward, "bias", False))
