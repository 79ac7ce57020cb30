"""The native folder: everything needed to use a model, in files that other tools can open too.

config.json         settings of the model, and what it was trained to do
model.safetensors   weights; a tied table is stored once, under its first name
tokenizer.json      the tokenizer, with tokenizer_config.json beside it
scores.json         what it reached, on what
chat_template.jinja how a conversation is written, where the model has a way
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from weft.checkpoint.atomic import write_file
from weft.checkpoint.families.base import GenerationConfig
from weft.checkpoint.safetensors_files import SafetensorsSource, open_file
from weft.checkpoint.state import owners
from weft.checkpoint.state import unique_state as unique_state
from weft.checkpoint.tensor_source import empty_model, load_weight
from weft.checkpoint.weight_rules import same
from weft.core.config import read_settings
from weft.core.errors import DataError
from weft.models.build import Model
from weft.models.config import ModelConfig
from weft.nn.linear import unpack_model
from weft.text.tokenizer import Tokenizer

CONFIG, WEIGHTS, SCORES = "config.json", "model.safetensors", "scores.json"
TEMPLATE = "chat_template.jinja"
VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """A model and what belongs to it."""

    model: Model
    tokenizer: Tokenizer
    task: str
    """translate, lm or mlm: what it was trained to do."""
    scores: dict[str, Any] = field(default_factory=dict)
    generation_config: GenerationConfig = field(default_factory=GenerationConfig)
    chat_template: str | None = None
    family: str | None = None
    """The family that it was read from; None: trained here."""


def save_folder(path: Path, checkpoint: Checkpoint) -> None:
    """Write or replace the folder's files, each whole; the weights come last."""
    path.mkdir(parents=True, exist_ok=True)
    config = {
        "weft": VERSION,
        "task": checkpoint.task,
        "family": checkpoint.family,
        "use": checkpoint.generation_config.to_dict(),
        "model": checkpoint.model.config.to_dict(),
    }
    checkpoint.tokenizer.save(path)
    if checkpoint.chat_template is not None:
        write_file(path / TEMPLATE, checkpoint.chat_template.encode())
    write_json(path / CONFIG, config)
    write_json(path / SCORES, checkpoint.scores)
    save_weights(path / WEIGHTS, checkpoint.model)


def load_folder(path: Path, device: torch.device | str = "cpu") -> Checkpoint:
    """The model in eval mode, with its tokenizer."""
    values = read_card(path)
    model = empty_model(ModelConfig.from_dict(values["model"], where=str(path / CONFIG)))
    load_weights(path / WEIGHTS, model, torch.device(device))
    template, use = path / TEMPLATE, GenerationConfig.from_dict(values.get("use", {}))
    return Checkpoint(
        model=model.eval(),
        tokenizer=Tokenizer.load(path).limited(use.max_tokens),
        task=str(values["task"]),
        scores=read_settings(path / SCORES) if (path / SCORES).is_file() else {},
        generation_config=use,
        chat_template=template.read_text(encoding="utf-8") if template.is_file() else None,
        family=values.get("family"),
    )


def load_model(path: Path, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """What formats.py calls: `load_folder` in another number format."""
    checkpoint = load_folder(path, device)
    checkpoint.model.to(dtype)
    return checkpoint


def describe_model(path: Path) -> tuple[str | None, ModelConfig]:
    card = read_card(path)
    return card.get("family"), ModelConfig.from_dict(card["model"], where=str(path / CONFIG))


def load_tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.load(path)


def read_card(path: Path) -> dict[str, Any]:
    """The config.json of a native folder, known to be one that this version reads."""
    if not (path / CONFIG).is_file():
        raise DataError(f"has no {CONFIG}: this is not a model folder. Name one that is.", path)
    values = read_settings(path / CONFIG)
    if values.get("weft") != VERSION:
        raise DataError(
            f"says weft = {values.get('weft')!r}: this version reads {VERSION}. Use the Weft that "
            "wrote it.",
            path / CONFIG,
        )
    if not isinstance(values.get("model"), dict) or "task" not in values:
        raise DataError("has no model or no task in it. Copy the file again.", path / CONFIG)
    return values


def save_weights(path: Path, model: nn.Module) -> None:
    state = {name: tensor.cpu().contiguous() for name, tensor in unique_state(model).items()}
    write_file(path, save(state, metadata={"format": "pt"}))


def load_weights(path: Path, model: nn.Module, device: torch.device) -> None:
    """Fill an empty model from a file; every name and shape must match."""
    source = SafetensorsSource(path, {path: open_file(path)})
    check_names_and_shapes(source.shapes, model, path)
    for names in owners(model).values():
        load_weight(model, names, same(names[0], names[0]), source, device, torch.float32)


def copy_state(given: Mapping[str, Tensor], model: nn.Module, path: Path) -> None:
    """Copy tensors into the model, which stays as it was where they do not fit."""
    check_names_and_shapes(
        {name: tuple(tensor.shape) for name, tensor in given.items()}, model, path
    )
    unpack_model(model)
    with torch.no_grad():
        for name, tensor in unique_state(model).items():
            tensor.copy_(given[name])


def check_names_and_shapes(
    given: Mapping[str, tuple[int, ...]], model: nn.Module, path: Path
) -> None:
    """A DataError that names which shapes are missing, left over or others."""
    state = model.state_dict(keep_vars=True)
    wanted = {names[0]: state[names[0]] for names in owners(model).values()}
    wrong = [f"{name} is missing" for name in wanted if name not in given]
    wrong += [f"{name} is not in the model" for name in given if name not in wanted]
    for name in wanted.keys() & given.keys():
        ours, theirs = tuple(wanted[name].shape), given[name]
        if ours != theirs:
            wrong.append(f"{name} has shape {theirs}, expected {ours}")
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise DataError(
            f"does not fit config.json: {'; '.join(wrong[:3])}{more}. Use the files of one model.",
            path,
        )


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
    write_file(path, text.encode())
