"""The folder of a training run: reads one of its checkpoints as a model, while the run trains,
after it was interrupted, or after it has finished.

    OUT/run.json                 settings, files and file hashes of the run
    OUT/tokenizer.json           the tokenizer, with tokenizer_config.json
    OUT/metrics.jsonl            losses and evaluations
    OUT/checkpoints/00000500/    weights.safetensors, optimiser.safetensors, state.json
    OUT/config.json, ...         the model, once the run is finished (weft_folder.py)

run_selection.py maps a path to a checkpoint. Training removes old checkpoints, and readers take no
lock: if a checkpoint disappears while it is read, the next one is selected.
"""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from weft.checkpoint.run_files import (
    CHECKPOINTS,
    LANGUAGE_CODES,
    WEIGHTS,
    checkpoint_folder,
    read_run,
    run_model_config,
)
from weft.checkpoint.run_selection import (
    RunPath,
    candidate_steps,
    delivered_step,
    is_past_model,
    split_run_path,
)
from weft.checkpoint.weft_folder import Checkpoint, load_weights
from weft.core.errors import DataError
from weft.models.build import empty_model
from weft.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


def load_model(path: Path, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """The model of the checkpoint that a path means, or of the next one that can be read."""
    run_path = split_run_path(path)
    run = run_path.run
    listed: list[int] = []
    problem = "it has none"
    while (steps := candidate_steps(run_path)) != listed:
        listed = steps
        tokenizer = load_tokenizer(path)
        config = run_model_config(run, tokenizer.vocab_size)
        for step in steps:
            file, model = checkpoint_folder(run / CHECKPOINTS, step) / WEIGHTS, empty_model(config)
            try:
                load_weights(file, model, device)
            except (DataError, FileNotFoundError) as error:
                problem = str(error)
                log.info("checkpoint=%s skipped=%r", file, problem)
                continue
            log.warning("%s: %susing the checkpoint of step %d", path, reason(run_path), step)
            values = read_run(run)
            codes = values.get(LANGUAGE_CODES)
            languages = (str(codes[0]), str(codes[1])) if codes else None
            task = str(values["files"]["task"])
            return Checkpoint(model.to(dtype).eval(), tokenizer, task, languages=languages)
    raise DataError(
        f"this run has no finished model and no checkpoint that can be read ({problem}). Wait "
        "until training has saved one, or run its command again.",
        path,
    )


def reason(path: RunPath) -> str:
    """Why a checkpoint is used where none was named; empty if one was."""
    if path.which:
        return ""
    step = delivered_step(path.run)
    if step is None:
        return "training is not finished; "
    if is_past_model(path.run):
        return f"training has gone on after the model of step {step} was delivered; "
    return f"the model that was delivered after step {step} is incomplete; "


def load_tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.load(split_run_path(path).run)
