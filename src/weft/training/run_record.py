"""run.json: the settings and files of a run, what a resumed run may change, and what it changed.

    recipe          all settings but [data]
    files           task, columns and SHA-256 of the files: a run is not resumed on other contents
    paths           where the files are, relative to the run folder
    language_codes  source and target, for a translation run that knows them
    threads         threads.py
    data            what is in the files (data/inspection.py)
    command         that started the run, for the model card
    changes         one entry per resume with other settings: from which step, old and new values

Settings that only determine how long a run goes on, how it is evaluated and what is saved may
change (`CHANGEABLE`). All others would make another model of what was learned so far. Runs of
earlier versions have no paths and no changes; settings that they did not know have their defaults.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.checkpoint.folder_files import RUN_FILE, write_json
from weft.checkpoint.run_files import LANGUAGE_CODES, RUN_VERSION, read_run
from weft.core.errors import DataError, UsageError
from weft.training.data.files import TrainingFiles
from weft.training.recipe import Recipe
from weft.training.threads import THREADS

PATHS, CHANGES = "paths", "changes"
CHANGEABLE = (
    "train.steps",
    "train.minutes",
    "train.schedule.decay",
    "train.schedule.floor",
    "train.evaluate_every",
    "train.translate_lines",
    "train.best_by",
    "train.patience",
    "train.save_every",
    "train.save_minutes",
    "train.average",
    "train.tensorboard",
)
"""Settings of a recipe that a resumed run may change."""


@dataclass(frozen=True)
class Difference:
    """A value of run.json that is another one now."""

    name: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.name} was {self.before!r} and is now {self.now!r}"

    @property
    def setting(self) -> str:
        return self.name.removeprefix("recipe.")

    @property
    def is_allowed(self) -> bool:
        return self.name.startswith("recipe.") and self.setting in CHANGEABLE


def describe_run(recipe: Recipe, files: TrainingFiles) -> dict[str, Any]:
    """What identifies a run: its settings, and its files by their contents. Reads the files."""
    settings = recipe.to_dict()
    del settings["data"]
    return {"recipe": settings, "files": files.fingerprint()}


def list_differences(out: Path, description: Mapping[str, Any]) -> list[Difference]:
    """The values of run.json that differ from a description."""
    saved = read_run(out)
    recipe = Recipe.from_dict(saved["recipe"], where=str(out / RUN_FILE)).to_dict()
    del recipe["data"]
    return list(differences({"recipe": recipe, "files": saved.get("files")}, description))


def differences(before: Any, now: Any, name: str = "") -> Iterator[Difference]:
    """One for each value that differs, by name."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        for key in sorted(before.keys() | now.keys()):
            inner = f"{name}.{key}" if name else key
            yield from differences(before.get(key), now.get(key), inner)
    elif before != now:
        yield Difference(name, before, now)


def check_changes(out: Path, changed: list[Difference], step: int, num_steps: int) -> None:
    """A UsageError for changes that a run with a checkpoint of `step` cannot continue with."""
    refused = [each for each in changed if not each.is_allowed]
    if refused:
        allowed = [each for each in changed if each.is_allowed]
        lines = [f"  - {each}" for each in refused]
        lines += [f"  - {each} (this alone may change)" for each in allowed]
        raise UsageError(
            f"{out} holds a run with other settings:\n" + "\n".join(lines) + "\n"
            f"Use the old settings to continue it (`weft train --out {out}` does), or another "
            "--out for a new run."
        )
    if num_steps < step and any(each.setting == "train.steps" for each in changed):
        raise UsageError(
            f"train.steps is {num_steps} but {out} has a checkpoint of step {step}: a run cannot "
            f"go back. Use {step} to end it there, or more."
        )


def new_record(
    description: Mapping[str, Any], files: TrainingFiles, out: Path, num_threads: int
) -> dict[str, Any]:
    """The run.json of a new run."""
    codes = {LANGUAGE_CODES: list(files.languages)} if files.languages else {}
    paths = {PATHS: relative_paths(files, out)}
    return {"weft": RUN_VERSION, **description, **paths, **codes, THREADS: num_threads}


def update_record(
    out: Path, description: Mapping[str, Any], files: TrainingFiles, step: int
) -> list[Difference]:
    """Write changed settings to run.json with the step they apply from, and where the files are
    now. Returns the changes."""
    saved = read_run(out)
    changed = list_differences(out, description)
    values = {**saved, PATHS: relative_paths(files, out)}
    if changed:
        settings = {each.setting: [each.before, each.now] for each in changed}
        entry = {"step": step, "settings": settings}
        values |= {"recipe": description["recipe"], CHANGES: [*saved.get(CHANGES, []), entry]}
    if values != saved:
        write_json(out / RUN_FILE, values)
    return changed


def relative_paths(files: TrainingFiles, out: Path) -> dict[str, list[str]]:
    """Relative to the run folder: a project can be moved, and a run resumed from any folder."""

    def relative(path: Path) -> str:
        return Path(os.path.relpath(os.path.realpath(path), os.path.realpath(out))).as_posix()

    parts = {"train": files.train, "valid": files.valid}
    return {name: [relative(path) for path in paths] for name, paths in parts.items()}


def changes_of(out: Path) -> list[dict[str, Any]]:
    """The changes of the settings of a run, in order: step, and settings with both values."""
    changes: list[dict[str, Any]] = read_run(out).get(CHANGES, [])
    return changes


def num_changes(out: Path) -> int:
    """How often the settings of a run were changed."""
    return len(changes_of(out))


def save_intervals(out: Path, save_every: int) -> list[tuple[int, int]]:
    """(step, save_every) in order: from after which step on the run saves how often."""
    name = "train.save_every"
    changes = changes_of(out) if (out / RUN_FILE).is_file() else []
    changes = [each for each in changes if name in each["settings"]]
    first = changes[0]["settings"][name][0] if changes else save_every
    return [(0, first), *((each["step"], each["settings"][name][1]) for each in changes)]


def stored_recipe(out: Path) -> Recipe:
    """The recipe of a run."""
    return Recipe.from_dict(read_run(out)["recipe"], where=str(out / RUN_FILE))


def stored_files(out: Path) -> TrainingFiles:
    """The files of a run, where they were when it was started or resumed last."""
    saved = read_run(out)
    again = "Name the files again: --pairs SRC TGT, --tsv FILE or --text FILE, and --valid."
    if PATHS not in saved:
        raise UsageError(f"{out} is of a version that did not store where its files are. {again}")
    base = Path(os.path.relpath(os.path.realpath(out)))
    parts = {
        name: tuple(Path(os.path.normpath(base / path)) for path in paths)
        for name, paths in saved[PATHS].items()
    }
    for path in (*parts["train"], *parts["valid"]):
        if not path.exists():
            raise DataError(f"this file of the run is not there any more. {again}", path)
    columns, codes = saved["files"].get("columns"), saved.get(LANGUAGE_CODES)
    return TrainingFiles(
        saved["files"]["task"],
        parts["train"],
        parts["valid"],
        (columns[0], columns[1]) if columns else None,
        (codes[0], codes[1]) if codes else None,
    )
