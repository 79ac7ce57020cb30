"""Paths and names -> models: the table of checkpoint formats, loading, and conversion.

Each format is a module, imported when a path has that format, with

    load_model(path, device, dtype)   a Checkpoint
    describe_model(path)              family and ModelConfig, from headers alone
    load_tokenizer(path)              the tokenizer, without the weights
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch

from weft.checkpoint.atomic import make_folder
from weft.checkpoint.disk_space import Report, check_space, no_report
from weft.checkpoint.hub import resolve
from weft.checkpoint.run_folder import is_unfinished_run
from weft.checkpoint.safetensors_files import MAX_SHARD_BYTES, parse_size
from weft.checkpoint.weft_folder import CONFIG_FILE, Checkpoint, write_folder
from weft.checkpoint.writer_lock import lock_path, remove_stale, writer_lock
from weft.core.config import read_settings
from weft.core.errors import DataError, UsageError
from weft.models.build import empty_model
from weft.models.config import ModelConfig
from weft.text.tokenizer import Tokenizer

BYTES_PER_WEIGHT = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32}
"""Of the types of `convert`; q8_0 has a scale of 2 bytes for 32 weights."""
LOADABLE = (
    "Name a Weft folder, a Hugging Face folder, a .gguf file, or a model that `weft pull` "
    "installed."
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
    module: str

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.module), name)


FORMATS = {
    "run": CheckpointFormat(is_unfinished_run, "weft.checkpoint.run_folder"),
    "native": CheckpointFormat(is_weft_folder, "weft.checkpoint.weft_folder"),
    "huggingface": CheckpointFormat(is_huggingface, "weft.checkpoint.huggingface"),
    "gguf": CheckpointFormat(is_gguf, "weft.checkpoint.gguf.reader"),
    "fairseq": CheckpointFormat(is_fairseq, "weft.checkpoint.fairseq_files"),
}
"""By name, in the order in which they are tried."""


@dataclass(frozen=True)
class CheckpointDescription:
    """What the headers of a model say."""

    format: str
    family: str | None
    config: ModelConfig


def find_format(path: Path) -> str | None:
    return next((name for name, entry in FORMATS.items() if entry.matches(path)), None)


def format_of(path: Path) -> str:
    """Name of the format; a DataError says what is at the path instead."""
    name = find_format(path) if path.exists() else None
    if name is not None:
        return name
    if not path.exists():
        problem = "there is no such model"
    elif not path.is_dir():
        problem = "is not a model file"
    elif (path / CONFIG_FILE).is_file():
        problem = f"has a {CONFIG_FILE} without model_type"
    else:
        problem = f"has no {CONFIG_FILE}, so it is not a model folder"
    raise DataError(f"{problem}. {LOADABLE}", path)


def load_checkpoint(
    model: str | Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Checkpoint:
    """The model at a path, or the pulled model of that name."""
    path = resolve(model)
    checkpoint: Checkpoint = FORMATS[format_of(path)].load_model(path, torch.device(device), dtype)
    return checkpoint


def describe(model: str | Path) -> CheckpointDescription:
    """Format, family and settings of a model, without reading its weights."""
    path = resolve(model)
    name = format_of(path)
    family, config = FORMATS[name].describe_model(path)
    return CheckpointDescription(name, family, config)


def load_tokenizer(model: str | Path) -> Tokenizer:
    """The tokenizer of a model, or of a folder or file that contains only a tokenizer."""
    path = resolve(model)
    name = find_format(path) if path.exists() else None
    if name is None:
        return Tokenizer.load(path)
    tokenizer: Tokenizer = FORMATS[name].load_tokenizer(path)
    return tokenizer


def convert(
    model: str | Path,
    out: Path,
    to: Literal["hf", "gguf", "weft"],
    family: str | None = None,
    dtype: Literal["f32", "f16", "q8_0"] | None = None,
    max_shard: str | None = None,
    report: Report = no_report,
) -> str:
    """Write a model of any format to `out`; returns the family or format it was written as.

    `dtype`: type of the matrices in a GGUF file (None: f32). `max_shard`: size limit of the files
    in a Hugging Face folder (None: 5GB). `report` receives the bytes that will be written.
    """
    max_bytes = MAX_SHARD_BYTES if max_shard is None else parse_size(max_shard)
    if max_shard is not None and to != "hf":
        raise UsageError(
            f"only an hf folder is divided into files, not {to}. Omit --max-shard-size."
        )
    if dtype is not None and to != "gguf":
        raise UsageError(f"only a gguf file is stored as {dtype}; {to} is float32. Omit --dtype.")
    remove_stale(out)
    if out.exists():
        raise UsageError(f"{out} already exists: choose another path, or remove it.")
    num_weights = sum(w.numel() for w in empty_model(describe(model).config).parameters())
    num_bytes = int(num_weights * BYTES_PER_WEIGHT[dtype or "f32"])
    check_space(out, num_bytes)  # reported below, if the model can be written in this format
    make_folder(out.parent)
    with writer_lock(out, lock_path(out)):
        checkpoint = load_checkpoint(model)
        if to == "weft":
            check_space(out, num_bytes, report)
            write_folder(out, checkpoint)
            return "weft"
        return write_converted(checkpoint, out, to, family, dtype or "f32", max_bytes, report)


def write_converted(
    checkpoint: Checkpoint,
    out: Path,
    to: Literal["hf", "gguf"],
    family: str | None,
    dtype: Literal["f32", "f16", "q8_0"],
    max_bytes: int,
    report: Report,
) -> str:
    """Write a loaded model through a family; returns its name."""
    if to == "hf":
        from weft.checkpoint.huggingface import save_hf

        return save_hf(checkpoint, out, family, max_bytes, report)
    from weft.checkpoint.gguf.writer import save_gguf

    return save_gguf(checkpoint, out, family, dtype, report)
