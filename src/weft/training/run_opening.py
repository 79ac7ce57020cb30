"""Opens the folder of a run: starts, resumes or reports a run, depending on the files in it.

    no run.json                        a new run
    a run without a checkpoint         starts again; its settings may be different
    a run with a checkpoint            resumes; changed settings are recorded in run.json
    a run that has delivered           is finished, unless settings have changed since

A run that is rejected before its first step (a file that cannot be read, a full disk) leaves
nothing behind. A new run takes no file for its own that was there before.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from weft.checkpoint.atomic import (
    COMMITTED,
    PREFIX,
    finish_replacing,
    make_folder,
    remove_folder,
    sync,
)
from weft.checkpoint.folder_files import (
    MODEL_FILES,
    OPTIONAL_FILES,
    RUN_FILE,
    SCORES_FILE,
    TOKENIZER_FILES,
    has_model,
    is_finished,
    write_json,
)
from weft.checkpoint.folder_reader import read_consistently
from weft.checkpoint.run_files import (
    CHECKPOINTS,
    METRICS_FILE,
    RECIPE_FILE,
    checkpoint_folder,
    checkpoint_steps,
    read_run,
)
from weft.checkpoint.weft_folder import CARD_FILE
from weft.checkpoint.writer_lock import LOCK_FILE, writer_lock
from weft.core.config import read_settings
from weft.core.errors import DataError, LockedError, UsageError, shown
from weft.training.checkpointing import list_incomplete, remove_incomplete
from weft.training.data.files import TrainingFiles
from weft.training.data.inspection import DataReport, inspect_files
from weft.training.observer import RunObserver
from weft.training.recipe import Recipe
from weft.training.run_record import (
    CHANGES,
    check_changes,
    describe_run,
    list_differences,
    new_record,
    num_changes,
    update_record,
)

log = logging.getLogger(__name__)

DATA = "data"
"""Key in run.json: the data report."""
TOKENS = "tokens"
"""The folder of the token ids of a text run."""
RUN_NAMES = (CARD_FILE, RECIPE_FILE, METRICS_FILE, CHECKPOINTS, TOKENS, *MODEL_FILES)
"""What a run writes into its folder, after run.json."""


def is_delivered(out: Path) -> bool:
    """Whether a run has delivered its model, and its settings were not changed since."""
    if not is_finished(out) or not (out / RUN_FILE).is_file():
        return False
    scores = read_consistently(out, MODEL_FILES, lambda folder: read_settings(folder / SCORES_FILE))
    changes = scores.get(CHANGES, 0)
    if not isinstance(changes, int):
        raise DataError(
            f"{CHANGES} is {shown(changes)}: it must be a number. Remove the file: `weft train "
            f"--out {out}` writes it again.",
            out / SCORES_FILE,
        )
    return changes == num_changes(out)


def open_run_folder(
    recipe: Recipe,
    files: TrainingFiles,
    out: Path,
    lock: ExitStack,
    observer: RunObserver,
    command: str,
) -> None:
    """Create the folder with run.json, or check that it holds the same run. Unless the run is
    finished, `lock` then holds the writer lock, and what killed processes left is removed."""
    description = describe_run(recipe, files)
    has_run = (out / RUN_FILE).is_file()
    if has_run and is_delivered(out) and not list_differences(out, description):
        remove_rest(out)
        return
    data = report_data(recipe, files, out, description["files"], observer)
    try:
        lock.enter_context(removed_if_empty(out))
        make_folder(out)
        lock.enter_context(writer_lock(out, out / LOCK_FILE))
        if not (out / RUN_FILE).is_file():
            check_nothing_replaced(out)
        incomplete = list_incomplete(out)
        step = last_step(out, incomplete)
        if (out / RUN_FILE).is_file() and not (step or is_finished(out)):
            remove_incomplete(incomplete)
            incomplete = {}
            discard_other(out, description)
        if (out / RUN_FILE).is_file():
            check_changes(out, list_differences(out, description), step, recipe.train.steps)
            check_checkpoints_exist(out, step)
            remove_incomplete(incomplete)
            for change in update_record(out, description, files, step):
                log.info("out=%s step=%d change='%s'", out, step, change)
        else:
            record = new_record(description, files, out, torch.get_num_threads())
            record |= {DATA: data.to_dict(), **({"command": command} if command else {})}
            lock.enter_context(removed_if_unstarted(out))
            write_json(out / RUN_FILE, record)
    except (NotADirectoryError, FileExistsError, PermissionError) as error:
        reason = error.strerror
        raise DataError(f"cannot be written to ({reason}). Choose another --out.", out) from None


def last_step(out: Path, incomplete: Collection[Path]) -> int:
    """The step of the newest complete checkpoint; 0 if there is none."""
    folder = out / CHECKPOINTS
    steps = [s for s in checkpoint_steps(folder) if checkpoint_folder(folder, s) not in incomplete]
    return max(steps, default=0)


def report_data(
    recipe: Recipe,
    files: TrainingFiles,
    out: Path,
    fingerprint: Mapping[str, Any],
    observer: RunObserver,
) -> DataReport:
    """Report what is in the files of a run and what contradicts itself in its settings; a DataError
    if too many pairs would be skipped. A resumed run has stored the report."""
    saved = read_run(out) if (out / RUN_FILE).is_file() else {}
    values = saved.get(DATA) if saved.get("files") == fingerprint else None
    if values is None:
        observer.stage("inspecting the files", 0, None)
        data = inspect_files(files, lambda n: observer.stage("inspecting the files", n, None))
    else:
        data = DataReport.from_dict(values)
    observer.report(f"data: {data.summary()}")
    data.check(recipe.train.skip_limit)
    for warning in (*data.warnings(), *recipe.contradictions()):
        observer.warn(warning)
    return data


def check_checkpoints_exist(out: Path, step: int) -> None:
    """A UsageError for a finished run whose checkpoints were removed."""
    if not step and is_finished(out):
        raise UsageError(
            f"{out} is finished and its checkpoints were removed: there is nothing to continue "
            "from. Use another --out for a new run."
        )


def check_nothing_replaced(out: Path) -> None:
    """A UsageError for a folder that is no run and has files of the names that a run writes: they
    would be replaced, removed, or read as its own."""
    if has_model(out):
        raise UsageError(
            f"{out} holds a model that was not trained there. Choose another --out, or remove it."
        )
    names = [name for name in RUN_NAMES if os.path.lexists(out / name)]
    if names:
        raise UsageError(
            f"{out} holds no run, but {' and '.join(names)}: the run would replace what is there. "
            "Choose another --out, or move it away."
        )


def discard_other(out: Path, description: dict[str, Any]) -> None:
    """Remove a run of other settings that has saved nothing."""
    if list_differences(out, description):
        log.warning("%s: replacing a run of other settings that has saved no checkpoint", out)
        remove_start(out)


@contextmanager
def removed_if_empty(out: Path) -> Iterator[None]:
    """Remove the folders that were created for a run if it left nothing in them."""
    new = [path for path in (out, *out.parents) if not path.exists()]
    try:
        yield
    finally:
        for path in new:
            with suppress(OSError):  # not empty
                path.rmdir()


@contextmanager
def removed_if_unstarted(out: Path) -> Iterator[None]:
    """Remove the files of a new run if an error ends it before its first step."""
    try:
        yield
    except Exception:
        is_started = (out / METRICS_FILE).exists() or checkpoint_steps(out / CHECKPOINTS)
        if not is_started:
            with suppress(OSError):
                remove_start(out)
        raise


def remove_start(out: Path) -> None:
    """Remove what a run writes before its first checkpoint, run.json last: until then the run can
    be continued with its settings, and its tokenizer must not be taken for that of another run."""
    remove_tokens(out)
    for name in (*TOKENIZER_FILES, METRICS_FILE, RECIPE_FILE):
        (out / name).unlink(missing_ok=True)
    sync(out)
    (out / RUN_FILE).unlink(missing_ok=True)
    sync(out)


def remove_rest(out: Path) -> None:
    """Remove what a process killed just after finishing the run left, unless another does."""
    is_clean = not any((out / name).exists() for name in (COMMITTED, LOCK_FILE, TOKENS))
    if is_clean and not any(out.glob(f"{PREFIX}*")):
        return
    with suppress(LockedError, OSError), writer_lock(out, out / LOCK_FILE):
        finish_replacing(out, SCORES_FILE, OPTIONAL_FILES)
        remove_tokens(out)


def remove_tokens(out: Path) -> None:
    """Remove the token ids, which a finished run does not read again."""
    if (out / TOKENS).is_dir():
        remove_folder(out / TOKENS)
