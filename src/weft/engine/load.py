"""A path -> a LoadedModel, whatever the path holds of what can be loaded."""

from __future__ import annotations

from pathlib import Path

from weft.checkpoint.native import CONFIG, load_folder
from weft.core.config import read_settings
from weft.core.device import choose_device
from weft.core.errors import DataError
from weft.engine.model import LoadedModel

LOADABLE = "A Weft model folder, as `weft train` writes it, is what can be loaded so far."


def load(path: str | Path, device: str = "auto") -> LoadedModel:
    """The model at `path`, ready for use on a device: auto, cpu, cuda, cuda:N or mps."""
    place, folder = choose_device(device), Path(path)
    refuse_other(folder)
    return LoadedModel(load_folder(folder, place))


def refuse_other(path: Path) -> None:
    """A DataError that says what is there instead of a Weft folder."""
    if not path.exists():
        raise DataError(f"there is no such model. {LOADABLE}", path)
    if not path.is_dir():
        raise DataError(f"is a file, not a model folder. {LOADABLE}", path)
    if not (path / CONFIG).is_file():
        raise DataError(f"has no {CONFIG}, so it is not a model folder. {LOADABLE}", path)
    if "weft" not in read_settings(path / CONFIG):
        raise DataError(f"holds a model, but not one of Weft's. {LOADABLE}", path)
