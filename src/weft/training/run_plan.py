"""Plans a run of a given duration: recipe -> probe -> recipe whose steps fit into the time.

    recipe -> probe -> recipe with steps, evaluations, checkpoints ... -> run.json, recipe.json

run.json has the planned recipe, and the requested one under REQUESTED, so that the same command
resumes the run. recipe.json is the planned recipe with all later plans of the steps and without
train.minutes; training with it gives the same bits. New steps or a new time of a resumed run are a
new plan too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.checkpoint.folder_files import RUN_FILE, write_json
from weft.checkpoint.run_files import (
    CHECKPOINTS,
    RECIPE_FILE,
    REQUESTED,
    checkpoint_steps,
    read_run,
)
from weft.core.errors import UsageError
from weft.training.data.files import TrainingFiles
from weft.training.default_recipe import describe_changes, describe_plan, fit_to_time
from weft.training.loop import Data, Trainer
from weft.training.observer import RunObserver
from weft.training.probe import PROBE_SECONDS, ProbeResult, run_probe
from weft.training.recipe import Recipe
from weft.training.run_record import changes_of, describe_run, stored_recipe
from weft.training.time_budget import TARGET

STEPS = "train.steps"
LENGTHS = {STEPS, "train.minutes"}
"""The settings that say how long a run goes on."""
Tuning = Callable[[Recipe, ProbeResult], Recipe]


@dataclass(frozen=True)
class Invocation:
    """How a run was started."""

    command: str = ""
    """The command line, for the model card."""
    tuning: Tuning | None = None
    """Function that plans the recipe of a new run after a probe. None: fit_to_time if train.minutes
    is set."""
    began: float = field(default_factory=time.monotonic)
    """When the command was started, by the clock `now`."""
    now: Callable[[], float] = time.monotonic

    def tuning_of(self, recipe: Recipe) -> Tuning | None:
        return self.tuning or (fit_to_time if recipe.train.minutes is not None else None)


def continued_recipe(recipe: Recipe, files: TrainingFiles, out: Path) -> Recipe:
    """The planned recipe of the run in `out` if it was started with the same recipe and files;
    otherwise `recipe`."""
    if not (out / RUN_FILE).is_file():
        return recipe
    saved, description = read_run(out), describe_run(recipe, files)
    is_same = saved.get("files") == description["files"]
    if is_same and saved.get(REQUESTED) == description["recipe"]:
        return stored_recipe(out)
    return recipe


def is_planned(out: Path) -> bool:
    """Whether a run is planned already, or has started without a plan."""
    return REQUESTED in read_run(out) or bool(checkpoint_steps(out / CHECKPOINTS))


def plan_run(
    recipe: Recipe,
    out: Path,
    invocation: Invocation,
    observer: RunObserver,
    make_trainer: Callable[[], Trainer],
    valid: Data | None,
) -> Recipe:
    """Probe and plan a run if it needs a plan and has none; returns the recipe to train."""
    tuning = invocation.tuning_of(recipe)
    if tuning is None or is_planned(out):
        return recipe
    trainer = make_trainer()
    if trainer.distributed.world_size > 1:
        raise UsageError(
            f"train.minutes needs a probe, which runs in one process, and torchrun started "
            f"{trainer.distributed.world_size}. Set train.steps instead."
        )
    observer.stage(f"measuring a step for {PROBE_SECONDS:g} s", 0, None)
    probe = run_probe(trainer, valid, invocation.began, now=invocation.now)
    planned = tuning(recipe, probe)
    values = read_run(out)
    requested = values["recipe"]
    description = planned.to_dict()
    del description["data"]
    write_json(out / RUN_FILE, {**values, "recipe": description, REQUESTED: requested})
    write_recipe(out, planned, [])
    for line in describe_plan(planned, probe):
        observer.report(line)
    observer.report(f"changed for this plan: {describe_changes(recipe, planned)}")
    return planned


def follow_changes(trainer: Trainer, out: Path) -> None:
    """A new plan if the steps or the time of the run were changed when its checkpoint was the
    newest; later checkpoints have the plan. Collective."""
    state, budget = trainer.state, trainer.budget
    changes = [each for each in changes_of(out) if LENGTHS & each["settings"].keys()]
    if not changes or changes[-1]["step"] != state.step:
        return
    if STEPS in changes[-1]["settings"]:
        trainer.set_steps(changes[-1]["settings"][STEPS][1])
    elif budget is not None and budget.elapsed < TARGET * budget.seconds:
        budget.step_seconds.append(state.seconds / state.step)
        trainer.plan_steps()


def write_recipe(out: Path, recipe: Recipe, replans: list[tuple[int, int]]) -> None:
    """Write recipe.json, if the run was planned."""
    if REQUESTED not in read_run(out):
        return
    values: dict[str, Any] = recipe.to_dict()
    del values["data"]
    values["train"] |= {"minutes": None, "replans": [*values["train"]["replans"], *replans]}
    given = [each["settings"][STEPS] for each in changes_of(out) if STEPS in each["settings"]]
    if given:
        values["train"]["steps"] = given[0][0]  # of the first plan
    write_json(out / RECIPE_FILE, values)
