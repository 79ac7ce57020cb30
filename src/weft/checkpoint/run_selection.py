"""Path of a training run -> one of its checkpoints, without torch.

    DIR         the delivered model; the newest checkpoint if there is none, or if it is older
                because the run was extended
    DIR@last    the newest checkpoint
    DIR@best    the checkpoint with the best evaluation by the run's train.best_by
    DIR@400     the checkpoint of step 400

An existing path wins over a name with '@'. Training may remove a checkpoint after it was selected:
readers select again (run_folder.py).
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from weft.checkpoint.folder_files import MODEL_FILES, RUN_FILE, SCORES_FILE, is_unfinished_run
from weft.checkpoint.folder_reader import read_consistently
from weft.checkpoint.run_files import (
    CHECKPOINTS,
    METRICS_FILE,
    checkpoint_steps,
    read_run,
    run_model_config,
)
from weft.core.config import read_settings
from weft.core.errors import DataError, shown
from weft.models.config import ModelConfig
from weft.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

Metric = Literal["loss", "bleu", "chrf"]
"""The scores that checkpoints can be compared by."""
METRICS = ", ".join(get_args(Metric))
LAST, BEST = "last", "best"
EVALUATION = "valid_"
"""Prefix of the scores of an evaluation in metrics.jsonl, which has a line of its own."""


class RunPath(NamedTuple):
    """The folder of a run and which of its checkpoints is meant."""

    run: Path
    which: str
    """last, best or a step; empty: the newest, since there is no newer delivered model."""

    def __str__(self) -> str:
        return f"{self.run}@{self.which}" if self.which else str(self.run)


class StepScore(NamedTuple):
    """The score of the evaluation of a step."""

    step: int
    score: float


def split_run_path(path: Path) -> RunPath:
    """'DIR@best' -> (DIR, best). A path that exists, that ends with '@', or whose part before '@'
    is no folder, is returned as a whole."""
    folder, _, which = str(path).rpartition("@")
    if not folder or not which or path.exists() or not Path(folder).is_dir():
        return RunPath(path, "")
    return RunPath(Path(folder), which)


def is_run_path(path: Path) -> bool:
    """Whether a path means a checkpoint of a run, and not a model folder."""
    run, which = split_run_path(path)
    return bool(which) or run != path or is_unfinished_run(path) or is_past_model(path)


def is_past_model(path: Path) -> bool:
    """Whether a run that has delivered a model was extended and has a newer checkpoint."""
    if not (path / RUN_FILE).is_file():
        return False
    step, steps = delivered_step(path), checkpoint_steps(path / CHECKPOINTS)
    return step is not None and bool(steps) and steps[-1] > step


def delivered_step(path: Path) -> int | None:
    """The number of steps after which a run delivered its model; None: it has delivered none."""

    def read(folder: Path) -> Any:
        file = folder / SCORES_FILE
        return read_settings(file).get("steps") if file.is_file() else None

    step = read_consistently(path, MODEL_FILES, read)
    return step if isinstance(step, int) else None


def candidate_steps(path: RunPath) -> list[int]:
    """The steps of the checkpoints that a path may mean, the first choice first."""
    run, which = path
    if not (run / RUN_FILE).is_file():
        raise DataError(
            f"has no {RUN_FILE}, so it is not a training run and has no checkpoints. Leave "
            f"'@{which}' out.",
            run,
        )
    steps = checkpoint_steps(run / CHECKPOINTS)
    if which == LAST and not steps:
        raise DataError(f"there is no checkpoint. {describe_steps(steps)}", str(path))
    if which in ("", LAST):
        return steps[::-1]
    if which == BEST:
        return [best_step(run, steps)]
    if not (which.isascii() and which.isdigit()):
        raise DataError(
            f"{shown(which)} is not a checkpoint: use @{LAST}, @{BEST} or a step. "
            f"{describe_steps(steps)}",
            str(path),
        )
    if int(which) not in steps:
        raise DataError(
            f"there is no checkpoint of step {int(which)}. {describe_steps(steps)}", str(path)
        )
    return [int(which)]


def describe_steps(steps: Iterable[int]) -> str:
    """A sentence with the available steps."""
    names = ", ".join(map(str, steps))
    return f"Available steps: {names}." if names else "The run has saved no checkpoint yet."


def best_step(run: Path, steps: list[int]) -> int:
    """The step of the best evaluation of which there is a checkpoint. Runs of earlier versions did
    not keep the checkpoint of the best one: that is logged."""
    metric = best_metric(run)
    scores = list(read_scores(run, metric))
    kept = [score for score in scores if score.step in steps]
    if not kept:
        raise DataError(
            f"there is no checkpoint with an evaluation by {metric}. {describe_steps(steps)}",
            f"{run}@{BEST}",
        )
    best, best_kept = (best_of(metric, each) for each in (scores, kept))
    if best.step != best_kept.step:
        log.warning(
            "%s: the evaluation of step %d had a better %s, but its checkpoint was not kept",
            run,
            best.step,
            metric,
        )
    return best_kept.step


def best_metric(run: Path) -> Metric:
    """The score by which the checkpoints of a run are compared."""
    name = read_run(run)["recipe"].get("train", {}).get("best_by", "loss")
    if name not in get_args(Metric):
        raise DataError(f"train.best_by is {shown(name)}: allowed are {METRICS}.", run / RUN_FILE)
    metric: Metric = name
    return metric


def best_of(metric: Metric, scores: Iterable[StepScore]) -> StepScore:
    """The best score, and of equal ones the first."""
    return reduce(lambda a, b: b if is_better(b.score, a.score, metric) else a, scores)


def is_better(score: float, than: float, metric: Metric) -> bool:
    """Whether a score is better: a loss that is lower, or a BLEU or chrF that is higher. One that
    is not finite is never better, and worse than any other."""
    if not (math.isfinite(score) and math.isfinite(than)):
        return math.isfinite(score) and not math.isfinite(than)
    return score < than if metric == "loss" else score > than


def read_scores(run: Path, metric: Metric) -> Iterator[StepScore]:
    """The scores of the evaluations in metrics.jsonl. A last line that is being written is left
    out."""
    file = run / METRICS_FILE
    for line in file.read_text("utf-8", "replace").splitlines() if file.is_file() else ():
        try:
            values = json.loads(line)
            yield StepScore(int(values["step"]), float(values[EVALUATION + metric]))
        except (ValueError, KeyError, TypeError, OverflowError):
            continue


def describe_model(path: Path) -> tuple[None, ModelConfig]:
    """Settings of the model of a run, which has no family."""
    run_path = split_run_path(path)
    candidate_steps(run_path)
    run = run_path.run
    return None, run_model_config(run, Tokenizer.load(run).vocab_size)
