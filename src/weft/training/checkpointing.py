"""Checkpoints of a run: exact resume after a kill, and averaging of the last checkpoints.

    OUT/run.json                 recipe and file hashes of the run, written once
    OUT/checkpoints/00000500/    weights.safetensors, optimiser.safetensors, state.json

A checkpoint folder gets its name when it is complete (checkpoint/atomic.py). Regular checkpoints,
at multiples of save_every, are kept as long as averaging needs them; one saved on a signal is
removed after the next save. The state holds no random state and no batches: every step seeds its
random draws from (seed, step, part, rank), and batches of an epoch follow from (seed, epoch).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from weft.checkpoint.atomic import new_folder, remove_leftovers
from weft.core.config import read_settings
from weft.core.errors import UsageError
from weft.training.distributed import full_tensor, shard_like
from weft.training.threads import THREADS

WEIGHTS, OPTIMIZER, STATE = "weights.safetensors", "optimiser.safetensors", "state.json"
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
        self.folder, self.save_every = out / "checkpoints", save_every
        self.num_averaged = num_averaged
        if self.folder.is_dir():
            remove_leftovers(self.folder)

    def steps(self) -> list[int]:
        """Steps that have a complete checkpoint, in order."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())

    def path(self, step: int) -> Path:
        return self.folder / f"{step:08d}"

    def save(self, snapshot: RunSnapshot) -> None:
        """Write a checkpoint atomically, then remove those that are no longer needed."""
        path = self.path(snapshot.state.step)
        if path.exists():
            return
        with new_folder(path) as folder:
            save_file(snapshot.weights, folder / WEIGHTS)
            save_file(snapshot.optimizer, folder / OPTIMIZER)
            (folder / STATE).write_text(json.dumps(snapshot.state.to_dict()))
        self.prune(snapshot.state.step)

    def prune(self, last: int) -> None:
        """Keep the last checkpoint and the regular ones that averaging reads."""
        needed = {last, *self.averaged_steps(last)}
        for step in self.steps():
            if step not in needed:
                shutil.rmtree(self.path(step))

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
        return RunSnapshot(load_file(path / WEIGHTS), load_file(path / OPTIMIZER), state)

    def mean_weights(self, last: int) -> Tensors:
        """The mean of the checkpoints of `averaged_steps`, accumulated in float64."""
        steps = self.averaged_steps(last)
        total: Tensors = {}
        for step in steps:
            for name, tensor in load_file(self.path(step) / WEIGHTS).items():
                total[name] = total.get(name, 0) + tensor.double()
        return {name: (tensor / len(steps)).float() for name, tensor in total.items()}


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
    """Whether run.json exists with this description; an error that lists what differs. The number
    of threads is not compared."""
    if not path.is_file():
        return False
    saved = {key: value for key, value in read_settings(path).items() if key != THREADS}
    differences = sorted(list_differences(saved, description))
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
