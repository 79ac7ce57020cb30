"""A GGUF file <-> a Checkpoint: its words become Hugging Face's, and a family does the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from weft.checkpoint.gguf.load import open_gguf
from weft.checkpoint.gguf.save import write_gguf
from weft.checkpoint.gguf.vocabulary.table import read_tokenizer
from weft.checkpoint.huggingface import (
    TASKS,
    Foreign,
    build_foreign,
    choose_family,
    open_foreign,
    told_use,
)
from weft.checkpoint.native import Checkpoint
from weft.checkpoint.tensors import split_state
from weft.models.config import ModelConfig
from weft.text.tokenizer import Tokenizer

TEMPLATE = "tokenizer.chat_template"


def open_model(path: Path) -> Foreign:
    """What the file's header says."""
    opened = open_gguf(path)
    return open_foreign(opened.config, opened.config, path, opened.source)


def load_model(path: Path, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """The model of a file, its numbers turned into `dtype`."""
    opened = open_gguf(path)
    foreign = open_foreign(opened.config, opened.config, path, opened.source)
    template = opened.tokenizer.get(TEMPLATE)
    return Checkpoint(
        tokenizer=read_tokenizer(opened.tokenizer, path),
        model=build_foreign(foreign, device, dtype),
        task=TASKS[foreign.config.kind],
        use=foreign.use,
        chat_template=template if isinstance(template, str) else None,
        family=foreign.family.name,
    )


def describe_model(path: Path) -> tuple[str, ModelConfig]:
    found = open_model(path)
    return found.family.name, found.config


def load_tokenizer(path: Path) -> Tokenizer:
    return read_tokenizer(open_gguf(path).tokenizer, path)


def save_gguf(
    checkpoint: Checkpoint, out: Path, family: str | None, kind: Literal["f32", "f16", "q8_0"]
) -> str:
    """Write a file; the name of the family that it was written as."""
    chosen, values = choose_family(checkpoint, family)
    tensors = split_state(checkpoint.model, chosen.rules(checkpoint.model.config))
    config = {**values, **told_use(checkpoint)}
    write_gguf(out, config, tensors, checkpoint.tokenizer, checkpoint.chat_template, kind)
    return chosen.name
