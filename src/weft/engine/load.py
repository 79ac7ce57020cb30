"""A path or a pulled name -> a LoadedModel."""

from __future__ import annotations

from pathlib import Path

from weft.checkpoint.formats import load_checkpoint
from weft.core.device import choose_device, choose_dtype
from weft.engine.model import LoadedModel
from weft.engine.settings import EngineConfig


def load(
    model: str | Path,
    device: str = "auto",
    dtype: str = "float32",
    engine: EngineConfig | None = None,
) -> LoadedModel:
    """The model at a path, or of a name that `weft pull` brought, ready for use on a device: auto,
    cpu, cuda, cuda:N or mps. `engine`: how much memory and company its requests have."""
    place = choose_device(device)
    return LoadedModel(load_checkpoint(model, place, choose_dtype(dtype, place)), engine)
