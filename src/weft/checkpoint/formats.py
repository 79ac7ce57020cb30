"""Paths and names -> models, in the formats of description.py: loading and conversion."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from weft.checkpoint.atomic import make_folder
from weft.checkpoint.description import FORMATS, describe, find_format, format_of
from weft.checkpoint.disk_space import Report, check_space, no_report
from weft.checkpoint.pulled_models import resolve
from weft.checkpoint.safetensors_files import MAX_SHARD_BYTES, parse_size
from weft.checkpoint.weft_folder import Checkpoint, write_folder
from weft.checkpoint.writer_lock import lock_path, remove_stale, writer_lock
from weft.core.errors import UsageError
from weft.models.cost import cost_of
from weft.text.tokenizer import Tokenizer

BYTES_PER_WEIGHT = {"f32": 4.0, "f16": 2.0, "q8_0": 34 / 32}
"""Of the types of `convert`; q8_0 has a scale of 2 bytes for 32 weights."""


def load_checkpoint(
    model: str | Path,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Checkpoint:
    """The model at a path, or the pulled model of that name."""
    path = resolve(model)
    checkpoint: Checkpoint = FORMATS[format_of(path)].load_model(path, torch.device(device), dtype)
    return checkpoint


def load_tokenizer(model: str | Path) -> Tokenizer:
    """The tokenizer of a model, or of a folder or file that contains only a tokenizer."""
    path = resolve(model)
    name = find_format(path)
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
    num_bytes = int(cost_of(describe(model).config).parameters * BYTES_PER_WEIGHT[dtype or "f32"])
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
