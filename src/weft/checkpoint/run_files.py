"""The files of a run folder that describe it, without torch (run_folder.py lists all)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from weft.checkpoint.folder_files import RUN_FILE
from weft.core.config import read_settings
from weft.core.errors import DataError, UnreadableError
from weft.models.config import ModelConfig

CHECKPOINTS, METRICS_FILE, RECIPE_FILE = "checkpoints", "metrics.jsonl", "recipe.json"
REQUESTED = "requested"
"""Key in run.json: the recipe before it was planned."""
WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimiser.safetensors", "state.json"
LANGUAGE_CODES = "language_codes"
"""Key in run.json: source and target of a translation run, which are stored with the model."""
RUN_VERSION = 1
"""Stored in run.json; files of the first versions have none."""
KINDS: dict[str, Literal["encoder", "decoder", "encoder-decoder"]] = {
    "translate": "encoder-decoder",
    "lm": "decoder",
    "mlm": "encoder",
}
"""The kind of model that is trained for a task."""


def read_run(path: Path) -> dict[str, Any]:
    """The run.json of a folder, of the version that is supported."""
    file = path / RUN_FILE
    values = read_settings(file)
    version = values.get("weft", RUN_VERSION)
    if version != RUN_VERSION:
        raise DataError(
            f"says weft = {version!r}: this version reads {RUN_VERSION}. Use the Weft version that "
            "wrote it.",
            file,
        )
    return values


def run_model_config(path: Path, vocab_size: int) -> ModelConfig:
    """The settings of the model of a run, whose vocabulary is the tokenizer's."""
    values = read_run(path)
    config = ModelConfig.from_dict(values["recipe"]["model"], where=str(path / RUN_FILE))
    return config.with_changes({"vocab_size": vocab_size, "kind": KINDS[values["files"]["task"]]})


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps that have a checkpoint in OUT/checkpoints, in order."""
    return sorted(int(name) for name in names_in(folder) if is_checkpoint_name(name))


def names_in(folder: Path) -> list[str]:
    """The names in a folder, in order; none if there is no such folder."""
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UnreadableError(error.strerror or str(error), folder) from error


def check_checkpoint_names(folder: Path) -> None:
    """A DataError for a checkpoint that was given another name, which no reader would find."""
    for name in names_in(folder):
        if name.isdigit() and not is_checkpoint_name(name):
            raise DataError(
                "is not the name of a checkpoint, which has eight digits, such as 00000500. Give "
                "it its name, or move it to another folder.",
                folder / name,
            )


def is_checkpoint_name(name: str) -> bool:
    """Whether `checkpoint_folder` gives this name to a step."""
    return name.isascii() and name.isdigit() and name == checkpoint_name(int(name))


def checkpoint_folder(folder: Path, step: int) -> Path:
    return folder / checkpoint_name(step)


def checkpoint_name(step: int) -> str:
    return f"{step:08d}"
