"""A fairseq folder -> a Checkpoint, with a tokenizer for each side. It is only read."""

from __future__ import annotations

from pathlib import Path

import torch

from weft.checkpoint.fairseq_files import FairseqFolder, open_fairseq
from weft.checkpoint.huggingface import TASKS, HFCheckpoint, build_hf, open_hf
from weft.checkpoint.weft_folder import Checkpoint
from weft.models.config import ModelConfig
from weft.text.tokenizer import Tokenizer


def load_model(path: Path, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    folder = open_fairseq(path)
    foreign = open_model(folder, path)
    return Checkpoint(
        model=build_hf(foreign, device, dtype),
        tokenizer=both_sides(folder),
        task=TASKS[foreign.config.kind],
        generation_config=foreign.generation_config,
        family=foreign.family.name,
    )


def open_model(folder: FairseqFolder, path: Path) -> HFCheckpoint:
    return open_hf(folder.values, folder.values, path, folder.source)


def describe_model(path: Path) -> tuple[str, ModelConfig]:
    found = open_model(open_fairseq(path), path)
    return found.family.name, found.config


def load_tokenizer(path: Path) -> Tokenizer:
    return both_sides(open_fairseq(path))


def both_sides(folder: FairseqFolder) -> Tokenizer:
    """The source's tokenizer, which decodes as the target's does."""
    reader = folder.source_tokenizer
    return Tokenizer(reader.backend, reader.specials, target=folder.target_tokenizer)
