"""The folder of a training run, as others see it: which files it has, and reading its newest
checkpoint while training goes on or after it was interrupted.

    OUT/run.json                 settings and file hashes of the run
    OUT/tokenizer.json           the tokenizer, with tokenizer_config.json
    OUT/checkpoints/00000500/    weights.safetensors, optimiser.safetensors, state.json
    OUT/config.json, ...         the model, once the run is finished (weft_folder.py)

Training removes old checkpoints. A reader takes no lock: it uses the next newest checkpoint if one
disappears while it is read.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

import torch

from weft.checkpoint.weft_folder import Checkpoint, has_model, load_weights
from weft.core.config import read_settings
from weft.core.errors import DataError
from weft.models.build import empty_model
from weft.models.config import ModelConfig
from weft.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

RUN_FILE, CHECKPOINTS = "run.json", "checkpoints"
WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimiser.safetensors", "state.json"
RUN_VERSION = 1
"""Stored in run.json; files of the first versions have none."""
KINDS: dict[str, Literal["encoder", "decoder", "encoder-decoder"]] = {
    "translate": "encoder-decoder",
    "lm": "decoder",
    "mlm": "encoder",
}
"""The kind of model that is trained for a task."""


def is_unfinished_run(path: Path) -> bool:
    """A run folder without a finished model."""
    return (path / RUN_FILE).is_file() and not has_model(path)


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


def load_model(path: Path, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """The model of the newest checkpoint that can be read."""
    tokenizer = load_tokenizer(path)
    config = run_model_config(path, tokenizer.vocab_size)
    listed: list[int] = []
    problem = "it has none"
    while (steps := checkpoint_steps(path / CHECKPOINTS)) != listed:
        listed = steps
        for step in reversed(steps):
            file, model = checkpoint_folder(path / CHECKPOINTS, step) / WEIGHTS, empty_model(config)
            try:
                load_weights(file, model, device)
            except (DataError, FileNotFoundError) as error:
                problem = str(error)
                log.info("checkpoint=%s skipped=%r", file, problem)
                continue
            log.warning("%s: training is not finished; using the checkpoint of step %d", path, step)
            task = str(read_run(path)["files"]["task"])
            return Checkpoint(model.to(dtype).eval(), tokenizer, task)
    raise DataError(
        f"this run has no finished model and no checkpoint that can be read ({problem}). Wait "
        "until training has saved one, or run its command again.",
        path,
    )


def describe_model(path: Path) -> tuple[None, ModelConfig]:
    return None, run_model_config(path, load_tokenizer(path).vocab_size)


def load_tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.load(path)
