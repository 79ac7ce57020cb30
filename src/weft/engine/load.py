"""A path or a pulled name -> a LoadedModel."""

from __future__ import annotations

from pathlib import Path

from weft.checkpoint.formats import load_checkpoint
from weft.core.device import choose_device, choose_dtype
from weft.engine.model import LoadedModel


def load(model: str | Path, device: str = "auto", dtype: str = "float32") -> LoadedModel:
    """The model at a path, or of a name that `weft pull` brought, ready for use on a device: auto,
    cpu, cuda, cuda:N or mps."""
    place = choose_device(device)
    return LoadedModel(load_checkpoint(model, place, choose_dtype(dtype, place)))
