"""Hugging Face folders: config.json, weights and a tokenizer <-> a Checkpoint, through a family.

A folder written here can be loaded by `transformers` and by Weft; it is complete or absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.atomic import new_folder
from weft.checkpoint.disk_space import Report, check_space, no_report
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.families.base import Family
from weft.checkpoint.families.export_check import ExportMismatchError, export_config
from weft.checkpoint.families.generation_config import GenerationConfig
from weft.checkpoint.folder_files import CONFIG_FILE, TEMPLATE_FILE, write_json
from weft.checkpoint.hf_header import (
    HFHeader,
    missing_weights,
    read_folder_header,
    read_hf_header,
)
from weft.checkpoint.pickle_files import open_pickles
from weft.checkpoint.safetensors_files import MAX_SHARD_BYTES, open_safetensors, save_shards
from weft.checkpoint.sentence_transformers import write_pooling_files
from weft.checkpoint.sha256sums import write_sums
from weft.checkpoint.tensor_source import (
    RenamedSource,
    TensorSource,
    build_from_source,
    split_state,
)
from weft.checkpoint.weft_folder import Checkpoint
from weft.core.config import read_settings
from weft.core.errors import UsageError
from weft.models.build import AnyModel
from weft.models.config import ModelConfig
from weft.text import hf
from weft.text.tokenizer import Tokenizer

TASKS = {"encoder-decoder": "translate", "decoder": "lm", "encoder": "mlm"}


@dataclass(frozen=True)
class HFCheckpoint:
    """A checkpoint with Hugging Face names, before its weights are read."""

    family: Family
    config: ModelConfig
    source: TensorSource
    """Under the names of the family's rules."""
    generation_config: GenerationConfig


def open_folder(path: Path) -> HFCheckpoint:
    """Settings and tensors of a folder, from headers alone."""
    source = open_tensors(path)
    return with_source(read_folder_header(path, source.shapes, source.path), source)


def open_hf(
    values: Mapping[str, Any],
    generation_values: Mapping[str, Any],
    path: Path,
    source: TensorSource,
) -> HFCheckpoint:
    """`read_hf_header` with the tensors of a source."""
    header = read_hf_header(values, generation_values, path, source.shapes, source.path)
    return with_source(header, source)


def with_source(header: HFHeader, source: TensorSource) -> HFCheckpoint:
    renamed = RenamedSource(source, header.file_names)
    return HFCheckpoint(header.family, header.config, renamed, header.generation_config)


def open_tensors(path: Path) -> TensorSource:
    """The weights of a folder: safetensors if there are any, otherwise pickles."""
    source = open_safetensors(path) or open_pickles(path)
    if source is None:
        raise missing_weights(path)
    return source


def load_model(path: Path, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """The model of a Hugging Face folder."""
    from weft.text.chat_template import find_template

    opened = open_folder(path)
    return Checkpoint(
        tokenizer=load_tokenizer(path).with_max_len(opened.generation_config.max_tokens),
        model=build_hf(opened, device, dtype),
        task=TASKS[opened.config.kind],
        generation_config=opened.generation_config,
        chat_template=find_template(path),
        family=opened.family.name,
    )


def load_tokenizer(path: Path) -> Tokenizer:
    model_type = read_settings(path / CONFIG_FILE).get("model_type")
    return hf.load_tokenizer(path, model_type if isinstance(model_type, str) else None)


def build_hf(opened: HFCheckpoint, device: torch.device | str, dtype: torch.dtype) -> AnyModel:
    """The model, filled from the source one weight at a time."""
    rules, ignored = opened.family.rules(opened.config), opened.family.ignored
    return build_from_source(opened.config, rules, opened.source, ignored, device, dtype)


def choose_family(checkpoint: Checkpoint, name: str | None = None) -> tuple[Family, dict[str, Any]]:
    """The family to write a model as, and its config.json: the family it was read from, otherwise
    the first that can represent all of its settings."""
    name = name or checkpoint.family
    if name is not None:
        known = {family.name: family for family in FAMILIES}
        if name not in known:
            raise UsageError(f"there is no family {name!r}. Weft writes {', '.join(known)}.")
        return known[name], export_config(known[name], checkpoint.model.config)
    mismatches = []
    for family in FAMILIES:
        if family.write_hf is None:
            continue
        try:
            return family, export_config(family, checkpoint.model.config)
        except ExportMismatchError as error:
            mismatches.append(error)
    closest = min(mismatches, key=lambda error: error.distance)
    raise UsageError(f"no family can represent this model. The closest: {closest}")


def save_hf(
    checkpoint: Checkpoint,
    out: Path,
    family: str | None = None,
    max_shard: int = MAX_SHARD_BYTES,
    report: Report = no_report,
) -> str:
    """Write a folder that `transformers` can load, with weights in files of at most `max_shard`
    bytes; returns the name of the family."""
    if out.exists():
        raise UsageError(f"{out} already exists: choose another path, or remove it.")
    chosen, values = choose_family(checkpoint, family)
    state = split_state(checkpoint.model, chosen.rules(checkpoint.model.config))
    check_space(out, sum(tensor.nbytes for tensor in state.values()), report)
    with new_folder(out) as folder:
        write_json(
            folder / CONFIG_FILE,
            {**values, **generation_config_dict(checkpoint), "dtype": "float32"},
        )
        save_shards(state, folder, max_shard)
        checkpoint.tokenizer.save(folder)
        write_pooling_files(folder, checkpoint.generation_config, checkpoint.model.config.width)
        if checkpoint.chat_template is not None:
            (folder / TEMPLATE_FILE).write_text(checkpoint.chat_template, encoding="utf-8")
        write_sums(folder)
    return chosen.name


def generation_config_dict(checkpoint: Checkpoint) -> dict[str, Any]:
    """Token ids that `transformers` needs to generate as Weft does."""
    generation_config, tokenizer = checkpoint.generation_config, checkpoint.tokenizer
    ends = list(generation_config.ends)
    if not ends and tokenizer.end_id is not None:
        ends = [tokenizer.end_id]
    values: dict[str, Any] = {
        "bos_token_id": tokenizer.begin_id,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": tokenizer.pad_id,
    }
    if checkpoint.model.config.kind == "encoder-decoder":
        start = generation_config.start
        values["decoder_start_token_id"] = tokenizer.begin_id if start is None else start
        values["forced_bos_token_id"] = generation_config.first
    return {name: value for name, value in values.items() if value is not None}
