"""Curves of a run: metrics.jsonl, one object a line, and TensorBoard's files where asked for.

A resumed run cuts the lines after its checkpoint, so that every step stands there once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from weft.checkpoint.atomic import write_file
from weft.core.errors import UsageError


class Metrics:
    """Appends to OUT/metrics.jsonl; a line is flushed when it is written."""

    def __init__(self, out: Path, tensorboard: bool = False) -> None:
        self.path = out / "metrics.jsonl"
        self.board = open_board(out / "tensorboard") if tensorboard else None

    def write(self, step: int, values: dict[str, float]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **values}) + "\n")
        if self.board is not None:
            for name, value in values.items():
                self.board.add_scalar(name, value, step)

    def cut_after(self, step: int) -> None:
        """Forget what was written after a step, a half line at the end included."""
        if not self.path.is_file():
            return
        kept = [line for line in self.path.read_text("utf-8").splitlines() if step_of(line) <= step]
        write_file(self.path, "".join(f"{line}\n" for line in kept).encode())


def step_of(line: str) -> float:
    """The step that a line is about; endless for a line that was cut off."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def open_board(path: Path) -> Any:
    """TensorBoard's writer, from the optional package."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError(
            "train.tensorboard is true but the package tensorboard is not installed. "
            "Install it with pip install tensorboard, or set it to false."
        ) from None
    return SummaryWriter(str(path))
