"""`weft status`: how far a training run is, from its files; it may run in another terminal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.output import print_json, print_table, status
from weft.cli.run_metrics import check_is_run, is_evaluation, read_curves
from weft.cli.train_progress import clock

Run = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object.")]


def command(run: Run, json: Json = False) -> None:
    """Show a training run: whether it is running, step, loss, evaluations and checkpoints.

    \b
    Example:
      weft status runs/en-de
      watch weft status runs/en-de
    """
    values = describe_run(run)
    if json:
        print_json(values)
        return
    if values["state"] == "stopped":
        status(f"`weft train --out {run}` resumes this run")
    evaluations = values.pop("evaluations")
    rows = [(name.replace("_", " "), shown(name, value)) for name, value in values.items()]
    print_table([str(run), ""], rows)
    if evaluations:
        names = [name for name in evaluations[-1] if name != "step"]
        print_table(["step", *names], [[e["step"], *map(e.get, names)] for e in evaluations[-10:]])


def describe_run(run: Path) -> dict[str, Any]:
    """The state of a run."""
    from weft.checkpoint.run_files import CHECKPOINTS, checkpoint_steps, read_run
    from weft.checkpoint.run_selection import best_step, delivered_step
    from weft.core.errors import DataError

    check_is_run(run)
    recipe, curves = read_run(run)["recipe"]["train"], read_curves(run)
    steps = checkpoint_steps(run / CHECKPOINTS)
    recipe["steps"] = planned_steps(run, steps) or recipe["steps"]
    loss = curves.get("loss")
    step = loss.steps[-1] if loss else 0
    delivered, owner = delivered_step(run), running_process(run)
    try:
        best = best_step(run, steps)
    except DataError:
        best = None
    return {
        "state": state_of(owner is not None, step, delivered),
        "process": owner,
        "step": step,
        "steps": recipe["steps"],
        "loss": loss.values[-1] if loss else None,
        "seconds_since_last_step": seconds_since(run),
        "seconds_left": seconds_left(curves, recipe, step) if owner is not None else None,
        "checkpoints": steps,
        "best": best,
        "delivered": delivered,
        "evaluations": evaluations_of(curves),
    }


def planned_steps(run: Path, steps: list[int]) -> int | None:
    """Steps by the last plan of a run with train.minutes, which its newest checkpoint has."""
    from weft.checkpoint.run_files import CHECKPOINTS, STATE, checkpoint_folder
    from weft.core.config import read_settings
    from weft.core.errors import DataError

    if not steps:
        return None
    try:
        state = read_settings(checkpoint_folder(run / CHECKPOINTS, steps[-1]) / STATE)
    except DataError:  # training has removed it meanwhile
        return None
    replans = state.get("replans", [])
    return int(replans[-1][1]) if replans else None


def running_process(run: Path) -> str | None:
    """The process that trains the run, and since when; None: no process does."""
    from weft.checkpoint.writer_lock import LOCK_FILE, lock_owner

    return lock_owner(run / LOCK_FILE)


def state_of(is_running: bool, step: int, delivered: int | None) -> str:
    if is_running:
        return "running"
    if delivered is not None and delivered >= step:
        return "finished"
    return "stopped"


def seconds_since(run: Path) -> float | None:
    from weft.checkpoint.run_files import METRICS_FILE

    file = run / METRICS_FILE
    return round(time.time() - file.stat().st_mtime, 1) if file.is_file() else None


def seconds_left(curves: dict[str, Any], recipe: dict[str, Any], step: int) -> float | None:
    """By the speed of the last steps: tokens of an update over tokens per second."""
    speed = curves.get("tokens_per_second")
    if speed is None:
        return None
    last = speed.values[-20:]
    mean = len(last) / sum(1 / max(1e-9, value) for value in last)
    return round(float(recipe["batch_tokens"]) * (recipe["steps"] - step) / mean, 3)


def evaluations_of(curves: dict[str, Any]) -> list[dict[str, float]]:
    """One row per evaluation."""
    rows: dict[int, dict[str, float]] = {}
    for name, curve in curves.items():
        if is_evaluation(name):
            for step, value in zip(curve.steps, curve.values, strict=True):
                rows.setdefault(step, {"step": step})[name.removeprefix("valid_")] = value
    return [rows[step] for step in sorted(rows)]


def shown(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or None
    if name.startswith("seconds") and value is not None:
        return clock(value)
    return value
