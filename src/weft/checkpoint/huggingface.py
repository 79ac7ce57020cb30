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
from weft.checkpoint.families.base import Family, Given, Use, family_of
from weft.checkpoint.families.written import MisfitError, written
from weft.checkpoint.native import CONFIG, TEMPLATE, Checkpoint, write_json
from weft.checkpoint.pickles import open_pickle
from weft.checkpoint.safetensors import ONE, open_safetensors
from weft.checkpoint.sentences import read_sentences, write_sentences
from weft.checkpoint.shards import MAX_BYTES, save_shards
from weft.checkpoint.state import split_state
from weft.checkpoint.tensors import Renamed, TensorSource, build_from
from weft.core.config import read_settings
from weft.core.errors import DataError, UsageError
from weft.models.build import Model
from weft.models.config import ModelConfig
from weft.text import foreign
from weft.text.tokenizer import Tokenizer

TASKS = {"encoder-decoder": "translate", "decoder": "lm", "encoder": "mlm"}


@dataclass(frozen=True)
class Foreign:
    """A foreign checkpoint before its weights are read."""

    family: Family
    config: ModelConfig
    source: TensorSource
    use: Use


def open_folder(path: Path) -> Foreign:
    """Settings and names of a folder, from headers alone."""
    values = read_settings(path / CONFIG)
    defaults = path / "generation_config.json"
    told = {**values, **(read_settings(defaults) if defaults.is_file() else {})}
    opened = open_foreign(values, told, path / CONFIG, open_tensors(path))
    return replace(opened, use=read_sentences(path, opened.use))


def open_foreign(
    values: Mapping[str, Any], told: Mapping[str, Any], path: Path, source: TensorSource
) -> Foreign:
    """Their settings and tensors as one of our families."""
    family = family_of(FAMILIES, values.get("model_type"), path)
    if values.get("quantization_config"):
        raise DataError(
            "has a quantization_config: its weights are packed in a way that Weft does not read. "
            "Use the unpacked weights, or a GGUF file of the model.",
            path,
        )
    given = Given(values, path)
    config, use = family.read_config(given), family.read_use(Given(told, path))
    check_ids(use, config.vocab_size, path)
    return Foreign(family, config, fitting(family, config, source), use)


def check_ids(use: Use, vocab_size: int, path: Path) -> None:
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


def fitting(family: Family, config: ModelConfig, source: TensorSource) -> TensorSource:
    """The source under today's names, with the prefix that its family's files sometimes lack, or
    have too much."""
    wanted = {name for rule in family.rules(config) for name in rule.theirs}
    names = {todays_name(name, family, source): name for name in source.shapes}
    best = names
    for prefix in family.prefixes:
        for renamed in (
            {prefix + new: old for new, old in names.items()},
            {new.removeprefix(prefix): old for new, old in names.items()},
        ):
            if len(wanted & renamed.keys()) > len(wanted & best.keys()):
                best = renamed
    return Renamed(source, best)


def todays_name(name: str, family: Family, source: TensorSource) -> str:
    """What files of earlier days call otherwise; a name that is there already is not taken."""
    for end, new_end in family.older.items():
        new = name.removesuffix(end) + new_end
        if name.endswith(end) and new not in source.shapes:
            return new
    return name


def load_model(path: Path, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """The model of a Hugging Face folder."""
    from weft.text.chat import find_template

    opened = open_folder(path)
    return Checkpoint(
        tokenizer=load_tokenizer(path).limited(opened.use.max_tokens),
        model=build_foreign(opened, device, dtype),
        task=TASKS[opened.config.kind],
        use=opened.use,
        chat_template=find_template(path),
        family=opened.family.name,
    )


def describe_model(path: Path) -> tuple[str, ModelConfig]:
    found = open_folder(path)
    return found.family.name, found.config


def load_tokenizer(path: Path) -> Tokenizer:
    model_type = read_settings(path / CONFIG).get("model_type")
    return foreign.load_tokenizer(path, model_type if isinstance(model_type, str) else None)


def build_foreign(opened: Foreign, device: torch.device | str, dtype: torch.dtype) -> Model:
    """The model, filled from the source one weight at a time."""
    rules, ignored = opened.family.rules(opened.config), opened.family.ignored
    return build_from(opened.config, rules, opened.source, ignored, device, dtype)


def choose_family(checkpoint: Checkpoint, name: str | None = None) -> tuple[Family, dict[str, Any]]:
    """The family to write a model as, and its settings: the one it came from, else the first that
    can say all of it."""
    wanted = name or checkpoint.family
    if wanted is not None:
        known = {family.name: family for family in FAMILIES}
        if wanted not in known:
            raise UsageError(f"there is no family {wanted!r}. Weft writes {', '.join(known)}.")
        return known[wanted], written(known[wanted], checkpoint.model.config)
    misfits = []
    for family in FAMILIES:
        if family.write_config is None:
            continue
        try:
            return family, written(family, checkpoint.model.config)
        except MisfitError as error:
            misfits.append(error)
    closest = min(misfits, key=lambda error: error.distance)
    raise UsageError(f"no family can say all of this model. The closest: {closest}")


def save_foreign(
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
        write_json(folder / CONFIG, {**values, **told_use(checkpoint), "dtype": "float32"})
        save_shards(state, folder, max_shard)
        checkpoint.tokenizer.save(folder)
        write_sentences(folder, checkpoint.use, checkpoint.model.config.width)
        if checkpoint.chat_template is not None:
            (folder / TEMPLATE).write_text(checkpoint.chat_template, encoding="utf-8")
    return chosen.name


def told_use(checkpoint: Checkpoint) -> dict[str, Any]:
    """What `transformers` must know to generate as we do."""
    use, tokenizer = checkpoint.use, checkpoint.tokenizer
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
