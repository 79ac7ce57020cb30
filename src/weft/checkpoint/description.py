"""The table of checkpoint formats; path or name of a model -> format, family and settings.

The modules of a format are imported when a path has that format. They define

    describe_model(path)              family and ModelConfig, from headers alone; without torch,
                                      except for pickles with unusual contents
    load_model(path, device, dtype)   a Checkpoint
    load_tokenizer(path)              the tokenizer, without the weights
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from weft.checkpoint.folder_files import CONFIG_FILE
from weft.checkpoint.pulled_models import pull_hint, resolve
from weft.checkpoint.run_selection import is_run_path
from weft.core.config import read_settings
from weft.core.errors import DataError
from weft.models.config import ModelConfig

LOADABLE = (
    "Name a Weft folder, a training run (DIR, DIR@best, DIR@400), a Hugging Face folder, a .gguf "
    "file, or a model that `weft pull` installed."
)


def is_weft_folder(path: Path) -> bool:
    """A folder that `weft train` or `weft convert` wrote."""
    return (path / CONFIG_FILE).is_file() and "weft" in read_settings(path / CONFIG_FILE)


def is_huggingface(path: Path) -> bool:
    """A folder whose config.json has a model_type."""
    return (path / CONFIG_FILE).is_file() and "model_type" in read_settings(path / CONFIG_FILE)


def is_gguf(path: Path) -> bool:
    """A file that starts with GGUF's magic number, or has its suffix."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"GGUF" or path.suffix == ".gguf"


def is_fairseq(path: Path) -> bool:
    """A folder with a fairseq checkpoint and its dictionaries."""
    has_weights = any(path.glob("checkpoint*.pt")) or (path / "model.pt").is_file()
    return has_weights and any(path.glob("dict.*.txt"))


@dataclass(frozen=True)
class CheckpointFormat:
    """One entry of FORMATS."""

    matches: Callable[[Path], bool]
    header: str
    """Module with `describe_model`."""
    weights: str
    """Module with `load_model` and `load_tokenizer`."""

    def describe_model(self, path: Path) -> tuple[str | None, ModelConfig]:
        family, config = import_module(self.header).describe_model(path)
        return family, config

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.weights), name)


FORMATS = {
    "run": CheckpointFormat(
        is_run_path, "weft.checkpoint.run_selection", "weft.checkpoint.run_folder"
    ),
    "native": CheckpointFormat(
        is_weft_folder, "weft.checkpoint.folder_files", "weft.checkpoint.weft_folder"
    ),
    "huggingface": CheckpointFormat(
        is_huggingface, "weft.checkpoint.hf_header", "weft.checkpoint.huggingface"
    ),
    "gguf": CheckpointFormat(
        is_gguf, "weft.checkpoint.gguf.hf_names", "weft.checkpoint.gguf.reader"
    ),
    "fairseq": CheckpointFormat(
        is_fairseq, "weft.checkpoint.fairseq_header", "weft.checkpoint.fairseq_files"
    ),
}
"""By name, in the order in which they are tried."""


@dataclass(frozen=True)
class CheckpointDescription:
    """Format, family and settings of a model, from its headers."""

    format: str
    family: str | None
    config: ModelConfig


def find_format(path: Path) -> str | None:
    return next((name for name, entry in FORMATS.items() if entry.matches(path)), None)


def format_of(path: Path) -> str:
    """Name of the format; a DataError says what is at the path instead."""
    name = find_format(path)
    if name is not None:
        return name
    if not path.exists():
        raise DataError(f"there is no such model. {pull_hint(str(path))}{LOADABLE}", path)
    elif not path.is_dir():
        problem = "is not a model file"
    elif (path / CONFIG_FILE).is_file():
        problem = f"has a {CONFIG_FILE} without model_type"
    else:
        problem = f"has no {CONFIG_FILE}, so it is not a model folder"
    raise DataError(f"{problem}. {LOADABLE}", path)


def describe(model: str | Path) -> CheckpointDescription:
    """Format, family and settings of a model, without reading its weights."""
    path = resolve(model)
    name = format_of(path)
    family, config = FORMATS[name].describe_model(path)
    return CheckpointDescription(name, family, config)
