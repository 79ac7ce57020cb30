"""A path or a pulled name -> a LoadedModel; and what its headers tell before it is loaded."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.checkpoint.formats import describe, load_checkpoint
from weft.core.device import choose_device, choose_dtype
from weft.core.errors import UsageError
from weft.engine.config import DYNAMIC_SCALING, EngineConfig
from weft.engine.kinds import Task, refuse_kind
from weft.engine.model import LoadedModel
from weft.models.build import Model
from weft.nn.packed_modules import use_int8_activations

log = logging.getLogger(__name__)


def load(
    model: str | Path,
    device: str = "auto",
    dtype: str = "float32",
    engine: EngineConfig | Mapping[str, Any] | None = None,
) -> LoadedModel:
    """The model at a path, or of a name that `weft pull` brought, ready for use on a device: auto,
    cpu, cuda, cuda:N or mps. `engine`: how much memory and company its requests have, as an
    EngineConfig or its fields, such as {"cache_gib": 4, "speculate": True}."""
    place = choose_device(device)
    settings = EngineConfig.from_dict(engine, "engine") if isinstance(engine, Mapping) else engine
    checkpoint = load_checkpoint(model, place, choose_dtype(dtype, place))
    if settings is not None and settings.activations == "int8":
        round_if_possible(checkpoint.model)
    return LoadedModel(checkpoint, settings)


def round_if_possible(model: Model) -> None:
    """One line of talk where the setting has no effect."""
    if not use_int8_activations(model):
        log.warning(
            "activations=float32 asked=int8 reason='only weights of few bits on a CPU with a C++ "
            "compiler take inputs of 8 bits, and this model has none here'"
        )


def check_model(model: str | Path, task: Task, max_tokens: int | None = None) -> None:
    """Refuse what the headers of a model tell that it cannot do: no weights are read."""
    config = describe(model).config
    refuse_kind(config.kind, task)
    limit = config.max_cached_len
    if max_tokens is not None and max_tokens >= limit:
        note = DYNAMIC_SCALING if limit < config.max_len else ""
        raise UsageError(
            f"max_tokens is {max_tokens} but the model's max_len is {limit}{note}, and what "
            f"comes before takes at least one. Ask for at most {limit - 1}."
        )
