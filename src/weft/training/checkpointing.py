"""Checkpoints of a run: exact resume after a kill, and averaging of the last checkpoints.

    OUT/run.json                 recipe and file hashes of the run, written once
    OUT/checkpoints/00000500/    weights.safetensors, optimiser.safetensors, state.json, SHA256SUMS

A checkpoint folder has its name only while it is complete (checkpoint/atomic.py). Regular
checkpoints, at multiples of save_every, are kept as long as averaging needs them; one saved on a
signal is removed after the next save. The state holds no random state and no batches: every step
seeds its random draws from (seed, step, part, rank), and batches of an epoch follow from (seed,
epoch).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from weft.checkpoint.atomic import new_folder, remove_folder
from weft.checkpoint.run_files import (
    CHECKPOINTS,
    OPTIMIZER,
    STATE,
    WEIGHTS,
    checkpoint_folder,
    checkpoint_steps,
    read_run,
)
from weft.checkpoint.safetensors_header import open_file
from weft.checkpoint.sha256sums import write_sums
from weft.core.config import read_settings
from weft.core.errors import DataError, UsageError
from weft.training.distributed import full_tensor, shard_like

log = logging.getLogger(__name__)

Tensors = dict[str, Tensor]


@dataclass
class RunState:
    """Progress of a run after `step` updates; the fields of state.json."""

    step: int = 0
    epoch: int = 0
    index: int = 0
    """Batches of the epoch that are done."""
    tokens: int = 0
    seconds: float = 0.0
    evaluated: int = 0
    """Step of the last evaluation."""
    best_loss: float | None = None
    best_step: int = 0
    waits: int = 0
    """Evaluations since the best one."""
    is_stopped: bool = False
    """Ended by early stopping."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def update_early_stopping(self, loss: float, patience: int | None) -> None:
        """Record the validation loss of this step; stop after `patience` evaluations without a
        lower one."""
        self.evaluated = self.step
        if self.best_loss is None or loss < self.best_loss:
            self.best_loss, self.best_step, self.waits = loss, self.step, 0
        else:
            self.waits += 1
        self.is_stopped = patience is not None and self.waits >= patience


@dataclass(frozen=True)
class RunSnapshot:
    """Everything that a run needs to continue."""

    weights: Tensors
    optimizer: Tensors
    state: RunState


class RunCheckpoints:
    """The checkpoints of one run, in OUT/checkpoints."""

    def __init__(self, out: Path, save_every: int, num_averaged: int) -> None:
        self.folder, self.save_every = out / CHECKPOINTS, save_every
        self.num_averaged = num_averaged

    def steps(self) -> list[int]:
        """Steps that have a complete checkpoint, in order."""
        return checkpoint_steps(self.folder)

    def path(self, step: int) -> Path:
        return checkpoint_folder(self.folder, step)

    def save(self, snapshot: RunSnapshot) -> None:
        """Write a checkpoint atomically, then remove those that are no longer needed."""
        path = self.path(snapshot.state.step)
        if not path.exists():
            with new_folder(path) as folder:
                save_file(snapshot.weights, folder / WEIGHTS)
                save_file(snapshot.optimizer, folder / OPTIMIZER)
                (folder / STATE).write_text(json.dumps(snapshot.state.to_dict()))
                write_sums(folder)
        self.prune(snapshot.state.step)  # also if a kill came between the two

    def prune(self, last: int) -> None:
        """Keep the last checkpoint and the regular ones that averaging reads."""
        needed = {last, *self.averaged_steps(last)}
        for step in self.steps():
            if step not in needed:
                remove_folder(self.path(step))

    def remove_incomplete(self) -> None:
        """Remove checkpoints that a run cannot continue from, such as those that an earlier version
        was removing when it was killed. Call it under the lock of the run."""
        for step in self.steps():
            path = self.path(step)
            try:
                open_file(path / WEIGHTS)
                open_file(path / OPTIMIZER)
                read_settings(path / STATE)
            except DataError as error:
                log.warning("%s: removed, as it is not complete: %s", path, error)
                remove_folder(path)

    def averaged_steps(self, last: int) -> list[int]:
        """The steps whose mean is the model of a run that ends at step `last`, in order."""
        regular = range(self.save_every, last + 1, self.save_every)
        steps = [*regular, *([last] if last % self.save_every else [])]
        return steps[-self.num_averaged :]

    def load(self) -> RunSnapshot | None:
        """The newest checkpoint; None if there is none."""
        steps = self.steps()
        if not steps:
            return None
        path = self.path(steps[-1])
        state = RunState(**read_settings(path / STATE))
        return RunSnapshot(read_tensors(path / WEIGHTS), read_tensors(path / OPTIMIZER), state)

    def peak_bytes(self, weight_bytes: int, num_steps: int) -> tuple[int, int]:
        """(checkpoints, bytes) that a run of `num_steps` has at most on the disk, with the model.
        The optimizers hold two numbers for each weight, or fewer."""
        num_saved = -(-num_steps // self.save_every)
        num_kept = min(self.num_averaged, num_saved) + 1  # the one that is being written
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

    def mean_weights(self, last: int) -> Tensors:
        """The mean of the checkpoints of `averaged_steps`, accumulated in float64."""
        steps = self.averaged_steps(last)
        total: Tensors = {}
        for step in steps:
            for name, tensor in read_tensors(self.path(step) / WEIGHTS).items():
                total[name] = total.get(name, 0) + tensor.double()
        return {name: (tensor / len(steps)).float() for name, tensor in total.items()}


def non_finite_name(tensors: Mapping[str, Tensor]) -> str | None:
    """The first tensor that contains NaN or infinity."""
    return next((name for name, t in tensors.items() if not bool(torch.isfinite(t).all())), None)


def read_tensors(path: Path) -> Tensors:
    """All tensors of a file; a DataError if it is missing or not complete."""
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"this checkpoint cannot be read ({error}). Copy it again, or remove its folder to "
            "continue from the checkpoint before it.",
            path,
        ) from None


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


def check_same_run(path: Path, description: dict[str, Any]) -> bool:
    """Whether run.json exists with this description; an error that lists what differs. Only what
    is in the description is compared."""
    if not path.is_file():
        return False
    saved = read_run(path.parent)
    compared = {name: saved.get(name) for name in description}
    differences = sorted(list_differences(compared, description))
    if differences:
        lines = "\n".join(f"  - {line}" for line in differences)
        raise UsageError(
            f"{path.parent} holds a run with other settings:\n{lines}\n"
            "Use the old settings to continue it, or another --out for a new run."
        )
    return True


def list_differences(before: Any, now: Any, name: str = "") -> list[str]:
    """One sentence for each value that differs."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            line
            for key in sorted(before.keys() | now.keys())
            for line in list_differences(
                before.get(key), now.get(key), f"{name}.{key}" if name else key
            )
        ]
    return [] if before == now else [f"{name} was {before!r} and is now {now!r}"]
