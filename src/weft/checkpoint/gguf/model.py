"""A GGUF file <-> a Checkpoint: its words become Hugging Face's, and a family does the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch

from weft.checkpoint.gguf.reader import open_gguf
from weft.checkpoint.gguf.vocabularies.table import read_tokenizer
from weft.checkpoint.gguf.writer import write_gguf
from weft.checkpoint.huggingface import (
    TASKS,
    HFCheckpoint,
    build_hf,
    choose_family,
    generation_config_dict,
    open_hf,
)
from weft.checkpoint.state import split_state
from weft.checkpoint.weft_folder import Checkpoint
from weft.models.build import Model
from weft.models.config import ModelConfig
from weft.text.tokenizer import Tokenizer

TEMPLATE = "tokenizer.chat_template"


def open_model(path: Path) -> HFCheckpoint:
    """What the file's header says."""
    opened = open_gguf(path)
    return open_hf(opened.config, opened.config, path, opened.source)


def load_model(path: Path, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """The model of a file, its numbers turned into `dtype`."""
    opened = open_gguf(path)
    foreign = open_hf(opened.config, opened.config, path, opened.source)
    template = opened.tokenizer.get(TEMPLATE)
    return Checkpoint(
        tokenizer=read_tokenizer(opened.tokenizer, path),
        model=built(foreign, device, dtype),
        task=TASKS[foreign.config.kind],
        generation_config=foreign.generation_config,
        chat_template=template if isinstance(template, str) else None,
        family=foreign.family.name,
    )


def built(foreign: HFCheckpoint, device: torch.device, dtype: torch.dtype) -> Model:
    """The model, its blocks unpacked by the source's own threads. torch's would wait for each other
    after every tensor that is joined here, and burn twice the time of the work."""
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return build_hf(foreign, device, dtype)
    finally:
        # what threads set for themselves is what later ones begin with
        torch.set_num_threads(count)


def pooling_config(checkpoint: Checkpoint) -> dict[str, str]:
    """How texts become vectors, under the word of dialect/bert.py."""
    return (
        {"pooling": checkpoint.generation_config.pooling}
        if checkpoint.model.config.kind == "encoder"
        else {}
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
    config = {**values, **generation_config_dict(checkpoint), **pooling_config(checkpoint)}
    write_gguf(out, config, tensors, checkpoint.tokenizer, checkpoint.chat_template, kind)
    return chosen.name
