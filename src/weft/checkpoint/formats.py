"""A path -> the model that lies there. The table of formats is here; each is a module with

    load_model(path, device, dtype)   a Checkpoint
    describe_model(path)              its family and settings, from headers alone
    load_tokenizer(path)              its tokenizer, without the weights

which is imported when a path turns out to have that format.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.hub import resolve
from weft.checkpoint.weft_folder import CONFIG, Checkpoint
from weft.core.config import read_settings
from weft.core.errors import DataError
from weft.models.config import ModelConfig
from weft.text.tokenizer import Tokenizer

LOADABLE = (
    "Name a Weft folder, a Hugging Face folder, a .gguf file, or a name that `weft pull` brought."
)


def is_native(path: Path) -> bool:
    """A folder that `weft train` or `weft convert` wrote."""
    return (path / CONFIG).is_file() and "weft" in read_settings(path / CONFIG)


def is_huggingface(path: Path) -> bool:
    """A folder with a config.json that names a model_type."""
    return (path / CONFIG).is_file() and "model_type" in read_settings(path / CONFIG)


def is_gguf(path: Path) -> bool:
    """A file that begins as GGUF does, or is named so."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"GGUF" or path.suffix == ".gguf"


def is_fairseq(path: Path) -> bool:
    """A folder with a checkpoint of fairseq's and its dictionaries."""
    has_weights = any(path.glob("checkpoint*.pt")) or (path / "model.pt").is_file()
    return has_weights and any(path.glob("dict.*.txt"))


@dataclass(frozen=True)
class CheckpointFormat:
    """One entry of FORMATS."""

    is_it: Callable[[Path], bool]
    module: str

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.module), name)


FORMATS = {
    "native": CheckpointFormat(is_native, "weft.checkpoint.weft_folder"),
    "huggingface": CheckpointFormat(is_huggingface, "weft.checkpoint.huggingface"),
    "gguf": CheckpointFormat(is_gguf, "weft.checkpoint.gguf.model"),
    "fairseq": CheckpointFormat(is_fairseq, "weft.checkpoint.fairseq"),
}
"""In the order in which a path is asked for them."""


@dataclass(frozen=True)
class CheckpointDescription:
    """What a model is, from its headers."""

    format: str
    family: str | None
    config: ModelConfig


def find_format(path: Path) -> str | None:
    return next((name for name, entry in FORMATS.items() if entry.is_it(path)), None)


def format_of(path: Path) -> str:
    """The format's name; a DataError says what is there instead."""
    found = find_format(path) if path.exists() else None
    if found is not None:
        return found
    if not path.exists():
        what = "there is no such model"
    elif not path.is_dir():
        what = "is a file of no kind that holds a model"
    elif (path / CONFIG).is_file():
        what = f"has a {CONFIG} that names no model_type"
    else:
        what = f"has no {CONFIG}, so it is not a model folder"
    raise DataError(f"{what}. {LOADABLE}", path)


def load_checkpoint(
    model: str | Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Checkpoint:
    """The model at a path, or of a name that was pulled."""
    path = resolve(model)
    loaded: Checkpoint = FORMATS[format_of(path)].load_model(path, torch.device(device), dtype)
    return loaded


def describe(model: str | Path) -> CheckpointDescription:
    """What a model is, without reading its weights."""
    path = resolve(model)
    name = format_of(path)
    family, config = FORMATS[name].describe_model(path)
    return CheckpointDescription(name, family, config)


def load_tokenizer(model: str | Path) -> Tokenizer:
    """The tokenizer of a model, or of a folder or file that is nothing but one."""
    path = resolve(model)
    name = find_format(path) if path.exists() else None
    if name is None:
        return Tokenizer.load(path)
    tokenizer: Tokenizer = FORMATS[name].load_tokenizer(path)
    return tokenizer
