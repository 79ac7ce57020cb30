"""The files of a run folder that describe it, without torch (run_folder.py lists all)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from weft.checkpoint.folder_files import RUN_FILE
from weft.core.config import read_settings
from weft.core.errors import DataError
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
    if not folder.is_dir():
        return []
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def checkpoint_folder(folder: Path, step: int) -> Path:
    return folder / f"{step:08d}"
