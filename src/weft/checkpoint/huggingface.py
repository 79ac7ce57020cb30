"""Hugging Face folders: config.json, safetensors and a tokenizer <-> a model, through its family.

A folder written here is read by `transformers` and by us alike; it is complete or not there at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.atomic import new_folder
from weft.checkpoint.families import FAMILIES
from weft.checkpoint.families.base import Family, GenerationConfig, HFConfig, family_of
from weft.checkpoint.families.export_check import ExportMismatchError, export_config
from weft.checkpoint.pickles import open_pickle
from weft.checkpoint.safetensors_files import ONE, open_safetensors
from weft.checkpoint.sentence_transformers import read_sentences, write_sentences
from weft.checkpoint.shards import MAX_BYTES, save_shards
from weft.checkpoint.state import split_state
from weft.checkpoint.tensor_source import RenamedSource, TensorSource, build_from_source
from weft.checkpoint.weft_folder import CONFIG, TEMPLATE, Checkpoint, write_json
from weft.core.config import read_settings
from weft.core.errors import DataError, UsageError
from weft.models.build import Model
from weft.models.config import ModelConfig
from weft.text import foreign
from weft.text.tokenizer import Tokenizer

TASKS = {"encoder-decoder": "translate", "decoder": "lm", "encoder": "mlm"}


@dataclass(frozen=True)
class HFCheckpoint:
    """A foreign checkpoint before its weights are read."""

    family: Family
    config: ModelConfig
    source: TensorSource
    generation_config: GenerationConfig


def open_folder(path: Path) -> HFCheckpoint:
    """Settings and names of a folder, from headers alone."""
    values = read_settings(path / CONFIG)
    defaults = path / "generation_config.json"
    told = {**values, **(read_settings(defaults) if defaults.is_file() else {})}
    opened = open_hf(values, told, path / CONFIG, open_tensors(path))
    return replace(opened, generation_config=read_sentences(path, opened.generation_config))


def open_hf(
    values: Mapping[str, Any], told: Mapping[str, Any], path: Path, source: TensorSource
) -> HFCheckpoint:
    """Their settings and tensors as one of our families."""
    family = family_of(FAMILIES, values.get("model_type"), path)
    if values.get("quantization_config"):
        raise DataError(
            "has a quantization_config: its weights are packed in a way that Weft does not read. "
            "Use the unpacked weights, or a GGUF file of the model.",
            path,
        )
    hf = HFConfig(values, path)
    config, use = family.read_config(hf), family.read_generation(HFConfig(told, path))
    check_ids(use, config.vocab_size, path)
    return HFCheckpoint(family, config, with_current_names(family, config, source), use)


def check_ids(use: GenerationConfig, vocab_size: int, path: Path) -> None:
    """An end that no token is would never end a text."""
    found = {"decoder_start_token_id": [use.start], "forced_bos_token_id": [use.first]}
    found |= {"eos_token_id": [*use.ends], "bad_words_ids": [*use.banned]}
    for name, ids in found.items():
        for one in ids:
            if one is not None and one >= vocab_size:
                raise DataError(
                    f"{name} is {one}, but the model has {vocab_size} tokens, 0 to "
                    f"{vocab_size - 1}. Correct it in config.json or generation_config.json.",
                    path,
                )


def open_tensors(path: Path) -> TensorSource:
    """The weights of a folder, whatever file they are in."""
    found = open_safetensors(path)
    if found is not None:
        return found
    if (path / "pytorch_model.bin").is_file():
        return open_pickle(path / "pytorch_model.bin")
    raise DataError(f"has no weights: neither {ONE} nor pytorch_model.bin.", path)


def with_current_names(family: Family, config: ModelConfig, source: TensorSource) -> TensorSource:
    """The source under today's names, with the prefix that its family's files sometimes lack, or
    have too much."""
    wanted = {name for rule in family.rules(config) for name in rule.file_names}
    names = {current_name(name, family, source): name for name in source.shapes}
    best = names
    for prefix in family.prefixes:
        for renamed in (
            {prefix + new: old for new, old in names.items()},
            {new.removeprefix(prefix): old for new, old in names.items()},
        ):
            if len(wanted & renamed.keys()) > len(wanted & best.keys()):
                best = renamed
    return RenamedSource(source, best)


def current_name(name: str, family: Family, source: TensorSource) -> str:
    """What files of earlier days call otherwise; a name that is there already is not taken."""
    for end, new_end in family.older.items():
        new = name.removesuffix(end) + new_end
        if name.endswith(end) and new not in source.shapes:
            return new
    return name


def load_model(path: Path, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """The model of a Hugging Face folder."""
    from weft.text.chat_template import find_template

    opened = open_folder(path)
    return Checkpoint(
        tokenizer=load_tokenizer(path).limited(opened.generation_config.max_tokens),
        model=build_hf(opened, device, dtype),
        task=TASKS[opened.config.kind],
        generation_config=opened.generation_config,
        chat_template=find_template(path),
        family=opened.family.name,
    )


def describe_model(path: Path) -> tuple[str, ModelConfig]:
    found = open_folder(path)
    return found.family.name, found.config


def load_tokenizer(path: Path) -> Tokenizer:
    model_type = read_settings(path / CONFIG).get("model_type")
    return foreign.load_tokenizer(path, model_type if isinstance(model_type, str) else None)


def build_hf(opened: HFCheckpoint, device: torch.device | str, dtype: torch.dtype) -> Model:
    """The model, filled from the source one weight at a time."""
    rules, ignored = opened.family.rules(opened.config), opened.family.ignored
    return build_from_source(opened.config, rules, opened.source, ignored, device, dtype)


def choose_family(checkpoint: Checkpoint, name: str | None = None) -> tuple[Family, dict[str, Any]]:
    """The family to write a model as, and its settings: the one it came from, else the first that
    can say all of it."""
    wanted = name or checkpoint.family
    if wanted is not None:
        known = {family.name: family for family in FAMILIES}
        if wanted not in known:
            raise UsageError(f"there is no family {wanted!r}. Weft writes {', '.join(known)}.")
        return known[wanted], export_config(known[wanted], checkpoint.model.config)
    misfits = []
    for family in FAMILIES:
        if family.write_config is None:
            continue
        try:
            return family, export_config(family, checkpoint.model.config)
        except ExportMismatchError as error:
            misfits.append(error)
    closest = min(misfits, key=lambda error: error.distance)
    raise UsageError(f"no family can say all of this model. The closest: {closest}")


def save_hf(
    checkpoint: Checkpoint, out: Path, family: str | None = None, max_shard: int = MAX_BYTES
) -> str:
    """Write a folder that `transformers` reads, its weights in files of at most `max_shard` bytes;
    the name of the family."""
    if out.exists():
        raise UsageError(f"{out} is there already: choose another place, or remove it.")
    chosen, values = choose_family(checkpoint, family)
    state = split_state(checkpoint.model, chosen.rules(checkpoint.model.config))
    out.parent.mkdir(parents=True, exist_ok=True)
    with new_folder(out) as folder:
        write_json(
            folder / CONFIG, {**values, **generation_config_dict(checkpoint), "dtype": "float32"}
        )
        save_shards(state, folder, max_shard)
        checkpoint.tokenizer.save(folder)
        write_sentences(folder, checkpoint.generation_config, checkpoint.model.config.width)
        if checkpoint.chat_template is not None:
            (folder / TEMPLATE).write_text(checkpoint.chat_template, encoding="utf-8")
    return chosen.name


def generation_config_dict(checkpoint: Checkpoint) -> dict[str, Any]:
    """What `transformers` must know to generate as we do."""
    use, tokenizer = checkpoint.generation_config, checkpoint.tokenizer
    ends = list(use.ends) or ([] if tokenizer.end_id is None else [tokenizer.end_id])
    values: dict[str, Any] = {
        "bos_token_id": tokenizer.begin_id,
        "eos_token_id": ends[0] if len(ends) == 1 else ends or None,
        "pad_token_id": tokenizer.pad_id,
    }
    if checkpoint.model.config.kind == "encoder-decoder":
        values["decoder_start_token_id"] = tokenizer.begin_id if use.start is None else use.start
        values["forced_bos_token_id"] = use.first
    return {name: value for name, value in values.items() if value is not None}
