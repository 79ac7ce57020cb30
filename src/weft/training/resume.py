"""Remembering a run on disk, so that a kill costs the steps since the last checkpoint, no more.

    OUT/run.json                 the recipe and the files of the run, written once
    OUT/checkpoints/00000500/    weights.safetensors, optimiser.safetensors, state.json

A checkpoint folder takes its name when it is complete (checkpoint/atomic.py). Regular ones, at
multiples of save_every, are kept as far back as averaging needs them; one made on a signal is not
regular and goes when the next one is there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from weft.checkpoint.atomic import new_folder, remove_leftovers
from weft.core.config import read_settings
from weft.core.errors import UsageError
from weft.training.processes import split_like, whole
from weft.training.state import RunState

WEIGHTS, OPTIMISER, STATE = "weights.safetensors", "optimiser.safetensors", "state.json"
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Snapshot:
    """Everything a run needs to go on."""

    weights: Tensors
    optimiser: Tensors
    state: RunState


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, out: Path, save_every: int, keep: int) -> None:
        self.folder, self.save_every, self.keep = out / "checkpoints", save_every, keep
        if self.folder.is_dir():
            remove_leftovers(self.folder)

    def steps(self) -> list[int]:
        """Steps that have a whole checkpoint, in order."""
        if not self.folder.is_dir():
            return []
        return sorted(int(path.name) for path in self.folder.iterdir() if path.name.isdigit())

    def path(self, step: int) -> Path:
        return self.folder / f"{step:08d}"

    def save(self, snapshot: Snapshot) -> None:
        """Write a checkpoint whole, then remove those that nobody needs any more."""
        path = self.path(snapshot.state.step)
        if path.exists():
            return
        with new_folder(path) as folder:
            save_file(snapshot.weights, folder / WEIGHTS)
            save_file(snapshot.optimiser, folder / OPTIMISER)
            (folder / STATE).write_text(json.dumps(snapshot.state.to_dict()))
        self.prune(snapshot.state.step)

    def prune(self, last: int) -> None:
        """Keep the last one and the regular ones that averaging reads."""
        needed = {last, *self.to_average(last)}
        for step in self.steps():
            if step not in needed:
                shutil.rmtree(self.path(step))

    def to_average(self, last: int) -> list[int]:
        """The steps, newest last, whose mean is the model of a run that ends at `last`."""
        regular = range(self.save_every, last + 1, self.save_every)
        chosen = [*regular, *([last] if last % self.save_every else [])]
        return chosen[-self.keep :]

    def load(self) -> Snapshot | None:
        """The newest checkpoint, or None where there is none yet."""
        steps = self.steps()
        if not steps:
            return None
        path = self.path(steps[-1])
        state = RunState(**read_settings(path / STATE))
        return Snapshot(load_file(path / WEIGHTS), load_file(path / OPTIMISER), state)

    def mean_weights(self, last: int) -> Tensors:
        """The mean of the checkpoints that `to_average` names, added up in float64."""
        steps = self.to_average(last)
        total: Tensors = {}
        for step in steps:
            for name, tensor in load_file(self.path(step) / WEIGHTS).items():
                total[name] = total.get(name, 0) + tensor.double()
        return {name: (tensor / len(steps)).float() for name, tensor in total.items()}


def optimiser_tensors(optimisers: Sequence[torch.optim.Optimizer]) -> Tensors:
    """The memory of the optimisers by name: '0.17.exp_avg'."""
    return {
        f"{i}.{weight}.{key}": whole(value.detach()).cpu().clone()
        for i, optimiser in enumerate(optimisers)
        for weight, entries in optimiser.state_dict()["state"].items()
        for key, value in entries.items()
    }


def restore_optimisers(optimisers: Sequence[torch.optim.Optimizer], tensors: Tensors) -> None:
    """Give freshly built optimisers the memory of the run."""
    for i, optimiser in enumerate(optimisers):
        weights = [weight for group in optimiser.param_groups for weight in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            number, weight, key = name.split(".")
            if int(number) == i:
                like = weights[int(weight)]
                state.setdefault(int(weight), {})[key] = split_like(tensor, like)
        groups = optimiser.state_dict()["param_groups"]
        optimiser.load_state_dict({"state": state, "param_groups": groups})


def refuse_changes(path: Path, now: dict[str, Any]) -> bool:
    """True if the run at `path` is the one described by `now`; an error that lists what differs."""
    if not path.is_file():
        return False
    before = read_settings(path)
    differences = sorted(differing(before, now))
    if differences:
        lines = "\n".join(f"  - {line}" for line in differences)
        raise UsageError(
            f"{path.parent} holds a run with other settings:\n{lines}\n"
            "Use the old settings to go on with it, or another --out for a new run."
        )
    return True


def differing(before: Any, now: Any, name: str = "") -> list[str]:
    """Sentences for every value that is not the same."""
    if isinstance(before, dict) and isinstance(now, dict):
        inner = sorted(before.keys() | now.keys())
        return [
            line
            for key in inner
            for line in differing(before.get(key), now.get(key), f"{name}.{key}" if name else key)
        ]
    return [] if before == now else [f"{name} was {before!r} and is now {now!r}"]
