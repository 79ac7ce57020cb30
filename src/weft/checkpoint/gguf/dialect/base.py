"""`GGUFArchitecture`: one kind of model in GGUF's words and in Hugging Face's, in both directions.

    read_config    metadata -> what a config.json says
    write_config   config.json -> metadata
    rules          which GGUF tensors make which Hugging Face ones (checkpoint/rules.py; there
                   `ours` is Hugging Face's name here, `theirs` GGUF's)
    extra          tensors that GGUF has where Hugging Face has a setting

Nothing here computes a model: families read the config.json and the names that come out, as if they
had come from a folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from weft.checkpoint.families.base import HFConfig
from weft.checkpoint.weight_rules import WeightRule
from weft.core.errors import DataError
from weft.models.config import MOST_LAYERS

Config = Mapping[str, Any]
"""What a config.json says."""
REFUSED: dict[str, float] = {
    "attention.clamp_kqv": 0,
    "attention.max_alibi_bias": 0,
    "attention.scale": 0,
    "attn_logit_softcapping": 0,
    "embedding_scale": 1,
    "logit_scale": 1,
    "residual_scale": 1,
}
"""Settings of other architectures that change what is computed, and the value that does not."""


class GGUFMetadata:
    """A file's metadata and shapes, asked for by name, with clear errors."""

    def __init__(
        self,
        metadata: Mapping[str, Any],
        shapes: Mapping[str, tuple[int, ...]],
        read: Callable[[str], Tensor],
        path: Path,
    ) -> None:
        self.metadata, self.shapes, self.read, self.path = metadata, shapes, read, path
        self.prefix = str(metadata.get("general.architecture"))

    def get(self, key: str, default: Any = None) -> Any:
        """A value of this architecture; of a list with one value a layer, that value."""
        value = self.metadata.get(f"{self.prefix}.{key}", default)
        if isinstance(value, np.ndarray):
            values = set(value.tolist())
            if len(values) != 1:
                self.fail(key, "one list entry a layer, which differ", "the same in every layer")
            return values.pop()
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**31:
            self.fail(key, repr(value), "a whole number above 0")
        if key.endswith("block_count") and value > MOST_LAYERS:
            self.fail(key, repr(value), f"at most {MOST_LAYERS:,}")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(key, repr(value), "a number")
        if not math.isfinite(value):
            self.fail(key, repr(value), "a number that is not infinite")
        return shortest(float(value))

    def count(self, key: str, default: int) -> int:
        """A whole number of at least 0."""
        return 0 if self.get(key, default) == 0 else self.size(key, default)

    def text(self, key: str, default: str) -> str:
        value = self.get(key, default)
        if not isinstance(value, str):
            self.fail(key, repr(value), "a text")
        return str(value)

    def has(self, tensor: str) -> bool:
        return tensor in self.shapes

    def rows(self, tensor: str) -> int:
        """How many rows a tensor has."""
        if tensor not in self.shapes:
            raise DataError(f"has no tensor {tensor}. Use the file of a whole model.", self.path)
        return self.shapes[tensor][0]

    def refuse(self, key: str, allowed: Any) -> None:
        """A DataError unless the value is absent or the one that Weft can compute."""
        value = self.get(key, allowed)
        if value != allowed:
            self.fail(key, repr(value), f"{allowed!r}, all that Weft computes here")

    def check_no_window(self) -> None:
        """A DataError for a window, unless it is as long as the context."""
        window = self.get("attention.sliding_window", 0)
        if window and window < self.size("context_length"):
            self.fail("attention.sliding_window", repr(window), "absent in this architecture")

    def check_supported(self) -> None:
        """A DataError for settings that no architecture of ours has."""
        for key, allowed in REFUSED.items():
            self.refuse(key, allowed)
        if self.get("expert_count", 0) and self.prefix != "deepseek2":
            self.fail("expert_count", repr(self.get("expert_count")), "0 in this architecture")

    def fail(self, key: str, value: str, allowed: str) -> None:
        raise DataError(
            f"{self.prefix}.{key} is {value}: it must be {allowed}. Use another file.", self.path
        )


def shortest(value: float) -> float:
    """The shortest decimal that names the same 32-bit number: 1e-05, not 9.999999747378752e-06."""
    narrow = np.float32(value)
    return float(str(narrow)) if float(narrow) == value else value


def no_extra(hf: HFConfig) -> dict[str, Tensor]:
    return {}


def no_rules(config: Config) -> list[WeightRule]:
    return []


def no_stacks(config: Config) -> dict[str, list[str]]:
    return {}


@dataclass(frozen=True)
class GGUFArchitecture:
    """One entry of ARCHITECTURES."""

    name: str
    """Value of general.architecture."""
    model_types: tuple[str, ...]
    """Values of config.json's model_type that are written as this architecture."""
    read_config: Callable[[GGUFMetadata], dict[str, Any]]
    write_config: Callable[[HFConfig], dict[str, Any]]
    """Metadata by full name: int, float, bool, str or a list of one of these."""
    rules: Callable[[Config], list[WeightRule]]
    """For a config that `read_config` gave, or that is to be written."""
    older_rules: Callable[[Config], list[WeightRule]] = no_rules
    """How files of earlier days have some of the tensors; read, never written."""
    extra: Callable[[HFConfig], dict[str, Tensor]] = no_extra
    """Tensors that GGUF has where Hugging Face has a setting."""
    stacks: Callable[[Config], dict[str, list[str]]] = no_stacks
    """GGUF tensors that hold several of Hugging Face's one behind the other: experts."""
    unread: tuple[str, ...] = ()
    """GGUF tensors that `read_config` has made a setting of."""
    ignored: tuple[str, ...] = ()
    """Patterns (re.fullmatch) of Hugging Face tensors that GGUF has no place for."""
    prefixes: tuple[str, ...] = ()
    """Beginnings that some Hugging Face files leave off or put before every name."""
