"""`Family`: what is known of one kind of foreign checkpoint, in both directions.

    read_config    their settings -> ModelConfig
    write_config   ModelConfig -> their settings (None: this family is only read)
    rules          which of their tensors make which of ours (rules.py)

Whether a model can be written as a family is found out in written.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.checkpoint.weight_rules import WeightRule
from weft.core.errors import DataError
from weft.models.config import MOST_LAYERS, ModelConfig


class HFConfig:
    """Their settings, with clear errors: every value is asked for by name."""

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self.values, self.path = values, path

    def get(self, name: str, default: Any = None) -> Any:
        """A value, or the default where it is absent or null."""
        value = self.values.get(name)
        return default if value is None else value

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self.get(name, default)
        if value is None:
            raise DataError(f"has no {name}, which this kind of model needs.", self.path)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            raise DataError(f"{name} is {value!r}: it must be a whole number above 0.", self.path)
        if name.endswith("layers") and value > MOST_LAYERS:
            raise DataError(f"{name} is {value}: it must be at most {MOST_LAYERS:,}.", self.path)
        return value

    def number(self, name: str, default: float) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DataError(f"{name} is {value!r}: it must be a number.", self.path)
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise DataError(f"{name} is {value!r}: it must be true or false.", self.path)
        return value

    def one_of(self, name: str, table: Mapping[str, Any], default: str) -> Any:
        """The entry of a table that a value names."""
        value = self.get(name, default)
        if not isinstance(value, str) or value not in table:
            known = ", ".join(sorted(table))
            raise DataError(f"{name} is {value!r}: Weft knows {known}.", self.path)
        return table[value]

    def architecture(self, table: Mapping[str, Any], default: str) -> Any:
        """The entry of a table that `architectures` names: what the file holds besides layers."""
        names = self.get("architectures", [default])
        name = names[0] if isinstance(names, list) and names else names
        if not isinstance(name, str) or name not in table:
            known = " and ".join(table)
            raise DataError(f"architectures is {names!r}: Weft reads {known}.", self.path)
        return table[name]

    def refuse(self, name: str, allowed: Any, default: Any = None) -> None:
        """A DataError unless the value is the one that Weft can compute."""
        value = self.get(name, default)
        if value != allowed and name in self.values:
            raise DataError(f"{name} is {value!r}: Weft computes {allowed!r} only.", self.path)


@dataclass(frozen=True)
class GenerationConfig:
    """How a checkpoint is to be used, apart from its weights; None and (): as the tokenizer has
    it."""

    start: int | None = None
    """The first id that a decoder with a source reads."""
    ends: tuple[int, ...] = ()
    """Ids that end a text."""
    first: int | None = None
    """Id that every translation begins with (BART's forced_bos_token_id)."""
    banned: tuple[int, ...] = ()
    """Ids that are never written (Marian's padding)."""
    pooling: str = "mean"
    """mean, first or last: how the vectors of a text's tokens become one."""
    max_tokens: int | None = None
    """Texts that become a vector are cut there; None: at the model's max_len."""

    def to_dict(self) -> dict[str, Any]:
        return {k: list(v) if isinstance(v, tuple) else v for k, v in vars(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> GenerationConfig:
        fields: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in values.items()
        }
        return cls(**fields)


def no_generation_config(hf: HFConfig) -> GenerationConfig:
    return GenerationConfig()


@dataclass(frozen=True)
class Family:
    """One entry of FAMILIES."""

    name: str
    model_types: tuple[str, ...]
    """Values of config.json's model_type that mean this family."""
    read_config: Callable[[HFConfig], ModelConfig]
    rules: Callable[[ModelConfig], list[WeightRule]]
    write_config: Callable[[ModelConfig], dict[str, Any]] | None = None
    """Everything that `transformers` needs, model_type and architectures included."""
    ignored: tuple[str, ...] = ()
    """Patterns (re.fullmatch) of tensors in their files that hold nothing learned."""
    prefixes: tuple[str, ...] = field(default=())
    """Beginnings that some files put before, or leave off, every name ('model.', 'bert.')."""
    legacy_suffixes: Mapping[str, str] = field(default_factory=dict)
    """Ends of names in files of earlier days, and what they are today ('.gamma': '.weight')."""
    read_generation: Callable[[HFConfig], GenerationConfig] = no_generation_config


def inner_width(config: ModelConfig) -> int:
    """Width inside the feed-forward layers."""
    return config.feedforward.inner_width(config.width)


def has_bias(config: ModelConfig) -> bool:
    """Whether the feed-forward layers have one; experts never do."""
    return bool(getattr(config.feedforward, "bias", False))


def family_of(families: Sequence[Family], model_type: Any, path: Path) -> Family:
    """The family that a config.json names; a DataError lists the known ones."""
    for family in families:
        if model_type in family.model_types:
            return family
    known = ", ".join(sorted(name for family in families for name in family.model_types))
    raise DataError(f"model_type is {model_type!r}: Weft reads {known}.", path)
