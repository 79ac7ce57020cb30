"""Weft's model folder: everything needed to use a model, in files that other tools can open too.

config.json           settings of the model, the task it was trained for, its languages
model.safetensors     weights; tied ones are stored once, under their first name
tokenizer.json        the tokenizer, with tokenizer_config.json
scores.json           evaluation results; written last: a folder that has it is complete
chat_template.jinja   chat template, if the model has one
examples.json         inputs of the validation data to try it out with, if there are any
README.md             model card of a training run
SHA256SUMS            hashes of the files above
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from weft.checkpoint.atomic import (
    make_folder,
    new_folder,
    replaced_files,
    write_file,
)
from weft.checkpoint.examples import ExampleInput, read_examples, write_examples
from weft.checkpoint.families.generation_config import GenerationConfig
from weft.checkpoint.folder_files import (
    CONFIG_FILE,
    EXAMPLES_FILE,
    MODEL_FILES,
    OPTIONAL_FILES,
    SCORES_FILE,
    TEMPLATE_FILE,
    VERSION,
    read_config,
    write_json,
)
from weft.checkpoint.folder_reader import read_consistently
from weft.checkpoint.safetensors_files import SafetensorsSource, write_shard
from weft.checkpoint.safetensors_header import WEIGHTS_FILE, open_file
from weft.checkpoint.sha256sums import write_sums
from weft.checkpoint.tensor_source import (
    load_weight,
    tied_names,
    unique_state,
)
from weft.checkpoint.weight_rules import same
from weft.checkpoint.writer_lock import LOCK_FILE, lock_path, writer_lock
from weft.core.config import read_settings, read_text
from weft.core.errors import DataError, shown
from weft.models.build import AnyModel, empty_model
from weft.models.config import ModelConfig
from weft.models.cost import cost_of
from weft.nn.packed_modules import check_not_packed
from weft.text.tokenizer import Tokenizer

CARD_FILE = "README.md"


@dataclass(frozen=True)
class Checkpoint:
    """A model and what belongs to it."""

    model: AnyModel
    tokenizer: Tokenizer
    task: str
    """translate, lm or mlm: what it was trained for."""
    scores: dict[str, Any] = field(default_factory=dict)
    generation_config: GenerationConfig = field(default_factory=GenerationConfig)
    chat_template: str | None = None
    family: str | None = None
    """The family it was read from; None: trained with Weft."""
    languages: tuple[str, str] | None = None
    """Codes of source and target of a translation model; None: not known."""
    examples: tuple[ExampleInput, ...] = ()
    """Inputs to try it out with."""
    card: str | None = None
    """README.md for people; None: a README.md in the folder stays as it is."""

    def __repr__(self) -> str:
        return f"Checkpoint({self.summary()})"

    def summary(self) -> str:
        """Kind, family, size and length, in one line."""
        config = self.model.config
        parts = [
            f"{config.kind}, {self.family}" if self.family else config.kind,
            f"{cost_of(config).parameters:,} parameters",
            f"{config.num_layers} layers",
            f"width {config.width}",
            f"vocabulary {config.vocab_size:,}",
            f"max_len {config.max_len:,}",
        ]
        return ", ".join(parts)


def save_folder(path: Path, checkpoint: Checkpoint) -> None:
    """Write a new folder, or replace the files of an existing one, as a whole. One process at a
    time may do so."""
    make_folder(path.parent)
    with ExitStack() as locks:
        if not path.is_dir() or lock_path(path).exists():
            locks.enter_context(writer_lock(path, lock_path(path)))
        if path.is_dir():
            locks.enter_context(writer_lock(path, path / LOCK_FILE))
        write_folder(path, checkpoint)


def write_folder(path: Path, checkpoint: Checkpoint) -> None:
    """`save_folder` for a caller that holds the lock."""
    if path.exists():
        with replaced_files(path, SCORES_FILE, OPTIONAL_FILES) as folder:
            write_contents(folder, checkpoint)
    else:
        with new_folder(path) as folder:
            write_contents(folder, checkpoint)


def write_contents(folder: Path, checkpoint: Checkpoint) -> None:
    """Write all files of a model into an empty folder."""
    config = {
        "weft": VERSION,
        "task": checkpoint.task,
        "family": checkpoint.family,
        **({"languages": checkpoint.languages} if checkpoint.languages else {}),
        "use": checkpoint.generation_config.to_dict(),
        "model": checkpoint.model.config.to_dict(),
    }
    checkpoint.tokenizer.save(folder)
    if checkpoint.chat_template is not None:
        write_file(folder / TEMPLATE_FILE, checkpoint.chat_template.encode())
    if checkpoint.examples:
        write_examples(folder / EXAMPLES_FILE, checkpoint.examples)
    write_json(folder / CONFIG_FILE, config)
    save_weights(folder / WEIGHTS_FILE, checkpoint.model)
    write_json(folder / SCORES_FILE, checkpoint.scores)
    write_sums(folder)
    if checkpoint.card is not None:  # without a hash, as people edit it
        write_file(folder / CARD_FILE, checkpoint.card.encode())


def load_folder(path: Path, device: torch.device | str = "cpu") -> Checkpoint:
    """The model in eval mode, with its tokenizer."""
    return read_consistently(path, MODEL_FILES, lambda folder: read_folder(folder, device))


def read_folder(path: Path, device: torch.device | str) -> Checkpoint:
    """The model of a folder whose files are not being replaced."""
    values = read_config(path)
    model = empty_model(ModelConfig.from_dict(values["model"], where=str(path / CONFIG_FILE)))
    load_weights(path / WEIGHTS_FILE, model, torch.device(device))
    generation_config = GenerationConfig.from_dict(values.get("use", {}), path / CONFIG_FILE)
    template, scores = path / TEMPLATE_FILE, path / SCORES_FILE
    return Checkpoint(
        model=model.eval(),
        tokenizer=Tokenizer.load(path).with_max_len(generation_config.max_tokens),
        task=str(values["task"]),
        scores=read_settings(scores) if scores.is_file() else {},
        generation_config=generation_config,
        chat_template=read_text(template) if template.is_file() else None,
        family=values.get("family"),
        languages=read_languages(values, path / CONFIG_FILE),
        examples=read_examples(path / EXAMPLES_FILE),
    )


def read_languages(values: Mapping[str, Any], path: Path) -> tuple[str, str] | None:
    """The languages in config.json, which only translation models have."""
    languages = values.get("languages")
    if languages is None:
        return None
    if not isinstance(languages, list) or [type(one) for one in languages] != [str, str]:
        raise DataError(
            f"has languages = {shown(languages)}: it must be two codes. Correct it, as "
            '["en", "de"], or remove it.',
            path,
        )
    return languages[0], languages[1]


def load_model(path: Path, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """`load_folder` with a dtype, for formats.py."""
    checkpoint = load_folder(path, device)
    checkpoint.model.to(dtype)
    return checkpoint


def load_tokenizer(path: Path) -> Tokenizer:
    return read_consistently(path, MODEL_FILES, Tokenizer.load)


def save_weights(path: Path, model: nn.Module) -> None:
    state = {name: tensor.cpu().contiguous() for name, tensor in unique_state(model).items()}
    write_shard(state, path)


def load_weights(path: Path, model: nn.Module, device: torch.device) -> None:
    """Fill an empty model from a file; every name and shape must match."""
    source = SafetensorsSource(path, {path: open_file(path)})
    check_names_and_shapes(source.shapes, model, path)
    for names in tied_names(model).values():
        load_weight(model, names, same(names[0], names[0]), source, device, torch.float32)


def copy_state(tensors: Mapping[str, Tensor], model: nn.Module, path: Path) -> None:
    """Copy tensors into the model. If they do not match, the model is unchanged."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    check_names_and_shapes(shapes, model, path)
    check_not_packed(model, "loaded into")
    with torch.no_grad():
        for name, tensor in unique_state(model).items():
            tensor.copy_(tensors[name])


def check_names_and_shapes(
    shapes: Mapping[str, tuple[int, ...]], model: nn.Module, path: Path
) -> None:
    """A DataError that names tensors that are missing, unexpected or of another shape."""
    state = model.state_dict(keep_vars=True)
    expected = {names[0]: tuple(state[names[0]].shape) for names in tied_names(model).values()}
    wrong = [f"{name} is missing" for name in expected if name not in shapes]
    wrong += [f"{name} is not in the model" for name in shapes if name not in expected]
    for name in expected.keys() & shapes.keys():
        if shapes[name] != expected[name]:
            wrong.append(f"{name} has shape {shapes[name]}, expected {expected[name]}")
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise DataError(
            f"does not match config.json: {'; '.join(wrong[:3])[:1000]}{more}. Use the files of "
            "one model.",
            path,
        )
