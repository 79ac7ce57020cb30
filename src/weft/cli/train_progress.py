"""Progress of a training run: a progress bar on a terminal, otherwise a line from time to time."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from weft.cli.output import status

if TYPE_CHECKING:
    from weft.training.loop import Progress, ProgressCallback

NUM_LINES = 20
"""Progress lines of a run without a terminal."""


@contextmanager
def watch_training(steps: int) -> Iterator[ProgressCallback]:
    """The callback that the training loop calls after every step."""
    if not sys.stderr.isatty():
        yield ProgressLines(steps)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}  {task.fields[speed]} tokens/s  left"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(file=sys.stderr)) as bar:
        task = bar.add_task("", total=steps, loss="-", speed="-")

        def watch(progress: Progress) -> None:
            if progress.scores:
                bar.console.print(evaluation(progress))
                return
            speed = f"{progress.tokens_per_second:,.0f}"
            bar.update(task, completed=progress.step, loss=f"{progress.loss:.3f}", speed=speed)

        yield watch


class ProgressLines:
    """Prints NUM_LINES lines per run, and one for every evaluation."""

    def __init__(self, steps: int) -> None:
        self.interval = max(1, steps // NUM_LINES)

    def __call__(self, progress: Progress) -> None:
        if progress.scores:
            status(evaluation(progress))
        elif progress.step % self.interval == 0 or progress.step == progress.steps:
            status(
                f"step {progress.step:,}/{progress.steps:,}  loss {progress.loss:.3f}  "
                f"{progress.tokens_per_second:,.0f} tokens/s  {clock(progress.seconds_left)} left"
            )


def evaluation(progress: Progress) -> str:
    scores = "  ".join(f"{name} {value:.4g}" for name, value in progress.scores.items())
    return f"step {progress.step:,}  validation: {scores}"


def clock(seconds: float) -> str:
    """Seconds as 1:02:03 or 2:03."""
    if not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
