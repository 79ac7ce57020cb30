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

import torch

from weft.checkpoint.run_files import (
    CHECKPOINTS,
    WEIGHTS,
    checkpoint_folder,
    checkpoint_steps,
    read_run,
    run_model_config,
)
from weft.checkpoint.weft_folder import Checkpoint, load_weights
from weft.core.errors import DataError
from weft.models.build import empty_model
from weft.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


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


def load_tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.load(path)
