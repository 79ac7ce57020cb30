"""Checkpoints of a run: exact resume after a kill, the best one, and the mean of the last ones.

    OUT/run.json                 recipe and file hashes of the run, written once
    OUT/checkpoints/00000500/    weights.safetensors, optimiser.safetensors, state.json, SHA256SUMS

A checkpoint folder has its name only while it is complete (checkpoint/atomic.py). Regular
checkpoints, at multiples of save_every, are kept as long as averaging needs them, and the one with
the best evaluation until there is a better one. Those saved on a signal, by time or before an
evaluation are removed after the next save. The state holds no random state and no batches: every
step seeds its random draws from (seed, step, part, rank), and batches of an epoch follow from
(seed, epoch).
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import ConfigDict, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from weft.checkpoint.atomic import WRITE_ERRORS, disk_errors, new_folder, remove_folder
from weft.checkpoint.run_files import (
    CHECKPOINTS,
    OPTIMIZER,
    STATE,
    WEIGHTS,
    check_checkpoint_names,
    checkpoint_folder,
    checkpoint_steps,
)
from weft.checkpoint.run_selection import Metric, is_better
from weft.checkpoint.safetensors_header import is_cut_off, readable
from weft.checkpoint.sha256sums import write_sums
from weft.core.config import read_settings, rule_of
from weft.core.errors import DataError, UnreadableError, shortened, shown
from weft.training.distributed import full_tensor, shard_like

log = logging.getLogger(__name__)

Tensors = dict[str, Tensor]
Contents = TypeVar("Contents")
AGAIN = (
    "Copy the file again, or remove the folder that it is in to continue from the checkpoint "
    "before it."
)
"""What to do about a file of a checkpoint that is damaged."""


@dataclass
class RunState:
    """Progress of a run after `step` updates; the fields of state.json."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    step: int = 0
    epoch: int = 0
    index: int = 0
    """Number of batches of the epoch that are done."""
    tokens: int = 0
    seconds: float = 0.0
    evaluated: int = 0
    """Step of the last evaluation."""
    best_score: float | None = None
    """Best score of the evaluations so far, by train.best_by."""
    best_step: int = 0
    waits: int = 0
    """Number of evaluations since the best one."""
    compared_by: str = "loss"
    """Description of best_score: the loss, or the score and its lines."""
    is_stopped: bool = False
    """Whether early stopping has ended the run."""
    replans: list[tuple[int, int]] = field(default_factory=list)
    """Plans (step, steps) of a run with train.minutes: after `step` it has `steps` steps in all."""
    elapsed: float = 0.0
    """With train.minutes: seconds since the command was started, over all processes."""

    @classmethod
    def read(cls, path: Path) -> RunState:
        """The state in a state.json; earlier versions knew the loss only, as best_loss."""
        values = read_state(path)
        if "best_loss" in values:
            values["best_score"] = values.pop("best_loss")
        try:
            return STATE_ADAPTER.validate_json(json.dumps(values))
        except ValidationError as error:
            detail = error.errors()[0]
            name = ".".join(map(str, detail["loc"]))
            is_unknown = detail["type"] == "unexpected_keyword_argument"
            rule = "this name is not known" if is_unknown else rule_of(detail)
            raise DataError(
                f"{name} is {shown(detail['input'])}: {rule}. The file is damaged or of a later "
                f"version of Weft. {AGAIN}",
                path,
            ) from None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def compare_by(self, what: str) -> None:
        """Forget the best score if evaluations are compared by another score from now on."""
        if self.compared_by != what:
            self.compared_by, self.best_score, self.best_step, self.waits = what, None, 0, 0

    def record_evaluation(self, score: float, metric: Metric, patience: int | None) -> None:
        """Record the score of this step; stop after `patience` evaluations without a better one."""
        self.evaluated = self.step
        best = math.nan if self.best_score is None else self.best_score
        if is_better(score, best, metric):
            self.best_score, self.best_step, self.waits = score, self.step, 0
        else:
            self.waits += 1
        self.is_stopped = patience is not None and self.waits >= patience


STATE_ADAPTER = TypeAdapter(RunState)


@dataclass(frozen=True)
class RunSnapshot:
    """The contents of a checkpoint: everything that a run needs to continue."""

    weights: Tensors
    optimizer: Tensors
    state: RunState


class RunCheckpoints:
    """The checkpoints of one run, in OUT/checkpoints."""

    def __init__(
        self, out: Path, intervals: Sequence[tuple[int, int]], num_averaged: int, has_best: bool
    ) -> None:
        """`intervals`: (step, save_every) in order, where a resumed run may have changed it.
        `has_best`: there is validation data."""
        self.folder, self.intervals = out / CHECKPOINTS, intervals
        self.num_averaged, self.has_best = num_averaged, has_best

    def steps(self) -> list[int]:
        """Steps that have a complete checkpoint, in order."""
        return checkpoint_steps(self.folder)

    def path(self, step: int) -> Path:
        return checkpoint_folder(self.folder, step)

    def save(self, snapshot: RunSnapshot) -> None:
        """Write a checkpoint atomically, then remove those that are no longer needed."""
        path = self.path(snapshot.state.step)
        with disk_errors(self.folder, WRITE_ERRORS):
            if not path.exists():
                with new_folder(path) as folder:
                    save_file(snapshot.weights, folder / WEIGHTS)
                    save_file(snapshot.optimizer, folder / OPTIMIZER)
                    (folder / STATE).write_text(json.dumps(snapshot.state.to_dict()))
                    write_sums(folder)
            # also if a kill came between the two; by the state that is stored, from which a run
            # resumes
            self.prune(RunState.read(path / STATE))

    def prune(self, last: RunState) -> None:
        """Keep the last checkpoint, the best one, and the regular ones that averaging reads."""
        needed = {last.step, last.best_step, *self.averaged_steps(last.step)}
        for step in self.steps():
            if step not in needed:
                remove_folder(self.path(step))

    def averaged_steps(self, last: int) -> list[int]:
        """The steps whose mean is the model of a run that ends at step `last`, in order."""
        regular = (step for step in range(last - 1, 0, -1) if self.is_regular(step))
        return [*list(islice(regular, self.num_averaged - 1))[::-1], last]

    def is_regular(self, step: int) -> bool:
        """Whether a step is a multiple of the save_every that was in effect at that step."""
        save_every = [every for start, every in self.intervals if start < step][-1]
        return step % save_every == 0

    def kept_averaged_steps(self, last: int) -> list[int]:
        """Those of `averaged_steps` that have a checkpoint: with a lower train.average earlier,
        some were removed."""
        steps = self.averaged_steps(last)
        kept = [step for step in steps if self.path(step).is_dir()]
        if kept != steps:
            log.warning(
                "averaging %d checkpoints instead of %d: the others were removed while "
                "train.average was lower",
                len(kept),
                len(steps),
            )
        return kept

    def load(self) -> RunSnapshot | None:
        """The newest checkpoint; None if there is none."""
        steps = self.steps()
        if not steps:
            return None
        path = self.path(steps[-1])
        state = RunState.read(path / STATE)
        return RunSnapshot(read_tensors(path / WEIGHTS), read_tensors(path / OPTIMIZER), state)

    def weights(self, step: int) -> Tensors:
        """The weights of a checkpoint."""
        return read_tensors(self.path(step) / WEIGHTS)

    def peak_bytes(self, weight_bytes: int, num_steps: int) -> tuple[int, int]:
        """(checkpoints, bytes) that a run of `num_steps` has at most on the disk, with the model.
        The optimizers hold two numbers for each weight, or fewer."""
        num_saved = -(-num_steps // self.intervals[-1][1])
        num_kept = min(self.num_averaged, num_saved) + 1  # the one that is being written
        if self.has_best and num_steps > 1:
            num_kept += 1
        return num_kept, num_kept * 3 * weight_bytes + weight_bytes

    def describe_finite(self) -> str:
        """A sentence on the newest checkpoint, and on those whose weights are not finite."""
        steps = self.steps()
        if not steps:
            return "Nothing was saved yet."
        broken = {s for s in steps if non_finite_name(read_tensors(self.path(s) / WEIGHTS))}
        finite = [step for step in steps if step not in broken]
        last = f"The last checkpoint with finite weights is of step {finite[-1]}."
        if not broken:
            return last
        names = ", ".join(str(self.path(step)) for step in sorted(broken))
        return f"{last if finite else 'No checkpoint has finite weights.'} Remove {names}."

    def mean_weights(self, steps: Sequence[int]) -> Tensors:
        """The mean of the weights of checkpoints, accumulated in float64."""
        total: Tensors = {}
        for step in steps:
            for name, tensor in self.weights(step).items():
                total[name] = total.get(name, 0) + tensor.double()
        return {name: (tensor / len(steps)).float() for name, tensor in total.items()}


def list_incomplete(out: Path) -> dict[Path, str]:
    """Checkpoints that lack a file or a part of one, with the reason: a write or, in an earlier
    version, a removal was interrupted. A DataError for one that cannot be read for another
    reason: nobody knows whether it is whole."""
    check_checkpoint_names(out / CHECKPOINTS)
    folders = [checkpoint_folder(out / CHECKPOINTS, s) for s in checkpoint_steps(out / CHECKPOINTS)]
    reasons = {folder: missing_part(folder) for folder in folders}
    return {folder: reason for folder, reason in reasons.items() if reason}


def missing_part(folder: Path) -> str:
    """What a checkpoint lacks; empty if it can be continued from."""
    for name in (WEIGHTS, OPTIMIZER, STATE):
        try:
            (folder / name).lstat()
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            raise UnreadableError(error.strerror or str(error), folder / name) from error
    for name in (WEIGHTS, OPTIMIZER):
        if is_cut_off(folder / name):
            return f"{name} ends before its data does"
        read_safetensors(folder / name, lambda path: safe_open(path, framework="np"))
    RunState.read(folder / STATE)
    return ""


def remove_incomplete(reasons: Mapping[Path, str]) -> None:
    """Remove the checkpoints of `list_incomplete`. Call it under the lock of the run."""
    for folder, reason in reasons.items():
        log.warning("%s: removed, as it is not complete: %s", folder, reason)
        remove_folder(folder)


def non_finite_name(tensors: Mapping[str, Tensor]) -> str | None:
    """The first tensor that contains NaN or infinity."""
    return next((name for name, t in tensors.items() if not bool(torch.isfinite(t).all())), None)


def read_tensors(path: Path) -> Tensors:
    """All tensors of a file; a DataError if it is missing or not complete."""
    return read_safetensors(path, load_file)


def read_safetensors(path: Path, read: Callable[[Path], Contents]) -> Contents:
    """The result of a function of the library, whose errors become DataErrors."""
    with readable(path):
        try:
            return read(path)
        except SafetensorError as error:
            raise DataError(
                f"this checkpoint cannot be read ({shortened(error)}). {AGAIN}", path
            ) from None


def read_state(path: Path) -> dict[str, Any]:
    """The values of a state.json."""
    try:
        return read_settings(path)
    except UnreadableError:
        raise
    except DataError as error:
        reason = str(error).removeprefix(f"{path}: ").partition(". ")[0]
        raise DataError(f"is not the state of a checkpoint: it {reason}. {AGAIN}", path) from None


def optimizer_tensors(optimizers: Sequence[torch.optim.Optimizer]) -> Tensors:
    """Optimizer states by '<optimizer>.<weight>.<key>', such as '0.17.exp_avg'. Collective."""
    return {
        f"{i}.{weight}.{key}": full_tensor(value.detach()).cpu().clone()
        for i, optimizer in enumerate(optimizers)
        for weight, entries in optimizer.state_dict()["state"].items()
        for key, value in entries.items()
    }


def restore_optimizers(optimizers: Sequence[torch.optim.Optimizer], tensors: Tensors) -> None:
    """Load the states of `optimizer_tensors` into new optimizers of the same model."""
    for i, optimizer in enumerate(optimizers):
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            number, weight, key = name.split(".")
            if int(number) == i:
                like = weights[int(weight)]
                state.setdefault(int(weight), {})[key] = shard_like(tensor, like)
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
