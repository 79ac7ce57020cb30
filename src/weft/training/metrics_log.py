"""The metrics of a run: OUT/metrics.jsonl, one JSON object per line, and TensorBoard on request.

A run that starts or resumes removes the lines of later steps, which it repeats, so that each step
occurs once; TensorBoard is told to discard them (`purge_step`). `sync` is called before a
checkpoint gets its name, so that the lines of its steps survive a power failure.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from weft.checkpoint.atomic import WRITE_ERRORS, disk_errors, sync, write_file
from weft.checkpoint.run_files import METRICS_FILE
from weft.checkpoint.run_selection import EVALUATION
from weft.core.errors import UsageError


class MetricsLog:
    """Appends to OUT/metrics.jsonl. Only rank 0 of a run writes it."""

    def __init__(self, out: Path, tensorboard: bool = False) -> None:
        self.path = out / METRICS_FILE
        self.has_tensorboard = tensorboard
        self.tensorboard: Any = None

    def start(self, step: int, evaluated: int) -> None:
        """Prepare for the steps after `step`: remove what a killed process wrote beyond the
        checkpoint of that step, whose last evaluation was at step `evaluated`."""
        lines = self.path.read_text("utf-8", "replace").split("\n") if self.path.is_file() else []
        kept = [line for line in lines if is_before(line, step, evaluated)]
        if lines not in ([], [*kept, ""]):
            write_file(self.path, "".join(f"{line}\n" for line in kept).encode())
        if self.has_tensorboard:
            self.open_tensorboard(step, kept)

    def open_tensorboard(self, step: int, kept: Iterable[str]) -> None:
        """Continue the curves at `step`. TensorBoard discards all points from there on, including
        an evaluation that is repeated; the other points of that step are written again."""
        folder = self.path.parent / "tensorboard"
        self.tensorboard = tensorboard_writer(folder, step if folder.is_dir() else None)
        for values in map(json.loads, kept):
            if values["step"] == step:
                self.add_scalars(values)

    def append(self, step: int, values: dict[str, float]) -> None:
        """Add a line. A write that fails leaves no part of it."""
        line = {"step": step, **values}
        with disk_errors(self.path, WRITE_ERRORS), self.path.open("ab", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            content = (json.dumps(line) + "\n").encode()
            try:
                while content:
                    content = content[file.write(content) :]
            except OSError:
                with suppress(OSError):
                    file.truncate(size)
                raise
        self.add_scalars(line)

    def add_scalars(self, line: dict[str, float]) -> None:
        if self.tensorboard is not None:
            for name, value in line.items():
                if name != "step":
                    self.tensorboard.add_scalar(name, value, line["step"])

    def sync(self) -> None:
        """Flush everything appended so far to the disk."""
        with disk_errors(self.path, WRITE_ERRORS):
            if self.path.is_file():
                sync(self.path)
                sync(self.path.parent)
            if self.tensorboard is not None:
                self.tensorboard.flush()


def is_before(line: str, step: int, evaluated: int) -> bool:
    """Whether a line is complete and belongs to what is done after `step` steps, the last of them
    evaluated at `evaluated`."""
    try:
        values = json.loads(line)
        line_step = int(values["step"])
    except (ValueError, KeyError, TypeError, OverflowError):
        return False
    is_evaluation = any(name.startswith(EVALUATION) for name in values)
    return line_step <= (evaluated if is_evaluation else step)


def tensorboard_writer(path: Path, purge_step: int | None) -> Any:
    """TensorBoard's SummaryWriter, from an optional package."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError(
            "train.tensorboard is true but the package tensorboard is not installed. "
            "Install it with pip install tensorboard, or set it to false."
        ) from None
    return SummaryWriter(str(path), purge_step=purge_step)
