"""The metrics of a run: OUT/metrics.jsonl, one JSON object per line, and TensorBoard on request.

A resumed run truncates the file after the step of its checkpoint, so that each step occurs once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from weft.checkpoint.atomic import write_file
from weft.core.errors import UsageError


class MetricsLog:
    """Appends to OUT/metrics.jsonl; every line is flushed when it is written."""

    def __init__(self, out: Path, tensorboard: bool = False) -> None:
        self.path = out / "metrics.jsonl"
        self.tensorboard = open_tensorboard(out / "tensorboard") if tensorboard else None

    def append(self, step: int, values: dict[str, float]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        if self.tensorboard is not None:
            for name, value in values.items():
                self.tensorboard.add_scalar(name, value, step)

    def truncate_after(self, step: int) -> None:
        """Remove the lines of later steps, and an incomplete line at the end."""
        if not self.path.is_file():
            return
        kept = [line for line in self.path.read_text("utf-8").splitlines() if step_of(line) <= step]
        write_file(self.path, "".join(f"{line}\n" for line in kept).encode())


def step_of(line: str) -> float:
    """The step of a line; infinity for an incomplete line."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def open_tensorboard(path: Path) -> Any:
    """TensorBoard's SummaryWriter, from an optional package."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError(
            "train.tensorboard is true but the package tensorboard is not installed. "
            "Install it with pip install tensorboard, or set it to false."
        ) from None
    return SummaryWriter(str(path))
