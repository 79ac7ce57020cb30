"""A fairseq folder -> settings, tensors and two tokenizers:

    checkpoint_best.pt         weights and the settings of the training (a pickle, see pickles.py)
    dict.SRC.txt dict.TGT.txt  the vocabularies
    bpe.code                   merges, for both sides
    weft.json                  what only the code around the model says; may be absent

Which dictionary is the source's is told by the sizes of the tables, else by the settings' names of
the languages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.checkpoint.fairseq_text import (
    read_codes,
    read_dictionary,
    source_tokenizer,
    target_tokenizer,
)
from weft.checkpoint.families.fairseq import UNKNOWN
from weft.checkpoint.packages import METADATA_FILE
from weft.checkpoint.pickles import read_pickle
from weft.checkpoint.tensor_source import InMemorySource
from weft.core.config import Config, read_settings
from weft.core.errors import DataError
from weft.text.tokenizer import Tokenizer

WEIGHTS = ("checkpoint_best.pt", "checkpoint_last.pt", "model.pt")
CODES = ("bpe.code", "bpe.codes", "bpecodes", "codes")
SOURCE, TARGET = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"


class FairseqOptions(Config):
    """weft.json: what neither checkpoint nor dictionaries say."""

    lowercase: bool | None = None
    """Whether sources are lower-cased; None: where their dictionary has no capital letter."""


@dataclass(frozen=True)
class FairseqFolder:
    """What FAMILIES' fairseq reads, and what turns texts into ids and back."""

    values: dict[str, Any]
    """Settings of the model, with model_type and the sizes of both vocabularies."""
    source: InMemorySource
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer


def open_fairseq(path: Path) -> FairseqFolder:
    """The whole folder; weights stay in the file until a model is built."""
    file, told = first_of(path, WEIGHTS), read_options(path)
    settings, tensors = read_checkpoint(file)
    found = {name: read_dictionary(p) for name, p in dictionaries(path).items()}
    source, target = choose_sides(found, settings, tensors, path)
    merges = read_codes(first_of(path, CODES))
    reader = source_tokenizer(source, merges, told.lowercase)
    writer = target_tokenizer(target, merges)
    if reader.vocab_size > len(source):
        settings, tensors = widened(settings, tensors, reader.vocab_size)
    values = {
        **settings,
        "model_type": "fairseq",
        "source_vocab_size": reader.vocab_size,
        "target_vocab_size": len(target),
    }
    return FairseqFolder(values, InMemorySource(tensors, file), reader, writer)


def read_options(path: Path) -> FairseqOptions:
    file = path / METADATA_FILE
    return (
        FairseqOptions.from_dict(read_settings(file), str(file))
        if file.is_file()
        else FairseqOptions()
    )


def first_of(path: Path, names: tuple[str, ...]) -> Path:
    for name in names:
        if (path / name).is_file():
            return path / name
    raise DataError(f"has none of {', '.join(names)}. Copy the whole model folder.", path)


def dictionaries(path: Path) -> dict[str, Path]:
    """dict.XX.txt by its language."""
    return {p.name.split(".")[1]: p for p in sorted(path.glob("dict.*.txt"))}


def read_checkpoint(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Settings of model and task in one dict, and the weights."""
    values = read_pickle(file)
    state = values.get("model") if isinstance(values, dict) else None
    if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
        raise DataError("has no weights under 'model': it is no checkpoint of fairseq.", file)
    if SOURCE not in state or TARGET not in state:
        raise DataError("has no encoder and decoder: Weft reads fairseq's transformer.", file)
    args, cfg = values.get("args"), values.get("cfg")
    parts = [cfg.get("task"), cfg.get("model")] if isinstance(cfg, dict) else [args]
    settings = {k: v for part in parts if isinstance(part, dict) for k, v in part.items()}
    if "encoder_layers" not in settings:
        raise DataError("has no settings of a model, neither as args nor as cfg.", file)
    return settings, state


def choose_sides(
    found: Mapping[str, list[str]],
    settings: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    path: Path,
) -> tuple[list[str], list[str]]:
    """The dictionaries of source and target."""
    sizes = tensors[SOURCE].shape[0], tensors[TARGET].shape[0]
    with_current_names = [
        (source, target)
        for source in found
        for target in found
        if (len(found[source]), len(found[target])) == sizes and (source != target)
    ]
    told = (settings.get("source_lang"), settings.get("target_lang"))
    pair = (
        told
        if told in with_current_names
        else with_current_names[0]
        if len(with_current_names) == 1
        else None
    )
    if pair is None:
        counts = ", ".join(f"{name} {len(pieces)}" for name, pieces in found.items())
        raise DataError(
            f"has dictionaries of {counts} pieces and tables of {sizes[0]} and {sizes[1]}: one "
            "pair must fit, or the checkpoint name its languages.",
            path,
        )
    return found[str(pair[0])], found[str(pair[1])]


def widened(
    settings: dict[str, Any], tensors: dict[str, Tensor], size: int
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The source's table with the unknown word's row for ids behind the dictionary. A table that
    the target shares is parted from it: outputs have no such ids."""
    words_VD = tensors[SOURCE]
    more_VD = words_VD[UNKNOWN].expand(size - len(words_VD), -1)
    is_all = bool(settings.get("share_all_embeddings"))
    parted = {"share_all_embeddings": False, "share_decoder_input_output_embed": True}
    return (
        {**settings, **parted} if is_all else settings,
        {**tensors, SOURCE: torch.cat((words_VD, more_VD))},
    )
