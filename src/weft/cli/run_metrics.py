"""metrics.jsonl of a run -> the curves of its losses and scores, also while it is written."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from weft.checkpoint.folder_files import RUN_FILE
from weft.checkpoint.run_files import METRICS_FILE
from weft.checkpoint.run_selection import EVALUATION
from weft.core.errors import DataError

SMOOTHING = 50
"""Points of a smoothed training curve: each is the mean of the steps around it."""


@dataclass(frozen=True)
class Curve:
    """A value by step."""

    name: str
    steps: list[int]
    values: list[float]

    def smoothed(self) -> Curve:
        """Means of equally many steps."""
        size = max(1, len(self.steps) // SMOOTHING)
        starts = range(0, len(self.steps), size)
        parts = [(self.steps[i : i + size], self.values[i : i + size]) for i in starts]
        steps = [part[-1] for part, _ in parts]
        return Curve(self.name, steps, [sum(values) / len(values) for _, values in parts])


def check_is_run(run: Path) -> None:
    """A DataError unless a folder is a run."""
    if not (run / RUN_FILE).is_file():
        raise DataError(
            f"has no {RUN_FILE}, so it is not a training run. Name the --out of `weft train`.", run
        )


def read_curves(run: Path) -> dict[str, Curve]:
    """All curves of a run by name: loss, lr, valid_loss, valid_bleu, ..."""
    points: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for line in metrics_lines(run):
        for name, value in line.items():
            if name != "step":
                points[name].append((int(line["step"]), float(value)))
    return {
        name: Curve(name, [step for step, _ in rows], [value for _, value in rows])
        for name, rows in points.items()
    }


def metrics_lines(run: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of metrics.jsonl."""
    check_is_run(run)
    file = run / METRICS_FILE
    for text in file.read_text("utf-8", "replace").splitlines() if file.is_file() else ():
        try:
            line = json.loads(text)
        except ValueError:  # it is being written
            continue
        if isinstance(line, dict) and "step" in line:
            yield line


def is_evaluation(name: str) -> bool:
    return name.startswith(EVALUATION)
