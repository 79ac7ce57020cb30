"""Progress of a training run: a progress bar on a terminal, otherwise lines at intervals.

    training the tokenizer  29,000 lines  0:03             before the first step
    step 120/4000  loss 3.214  left 0:12:03  ------        on a narrow terminal
    step 120/4000  loss 3.214  left 0:12:03  ------------  5,120 tokens/s

Step, loss and time left come first and are never cut off.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.progress import Progress as Bar
from rich.progress import ProgressColumn, Task
from rich.text import Text

from weft.cli.output import status

if TYPE_CHECKING:
    from weft.training.loop import Progress

NUM_LINES = 20
"""Progress lines of a run without a terminal."""
WIDE = 72
"""Columns from which on the speed is shown too."""
BAR, MIN_BAR = "\u2501", 6
"""A character of the bar, and the fewest that are shown."""


class TrainingDisplay(Protocol):
    """Shows the stages of a run."""

    def __call__(self, progress: Progress) -> None:
        """After every step and evaluation."""

    def stage(self, name: str, done: int, total: int | None) -> None:
        """Before the first step: what is done now, and how many of how many lines are done."""

    def note(self, text: str) -> None:
        """Print a line."""

    def note_stop(self) -> None:
        """Say that a signal was received; called from another thread."""


@contextmanager
def watch_training(steps: int) -> Iterator[TrainingDisplay]:
    """The display of a run, whose call is the callback of the training loop."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield ProgressLines(steps)
        return
    with Bar(StepColumn(console), console=console) as bar:
        yield ProgressBar(bar, steps)


class ProgressBar:
    """A bar at the bottom of a terminal, for one stage after the other."""

    def __init__(self, bar: Bar, steps: int) -> None:
        self.bar, self.steps = bar, steps
        self.is_training = False
        self.task = bar.add_task("reading the files", total=None)

    def __call__(self, progress: Progress) -> None:
        self.is_training = True
        if progress.scores:
            self.note(evaluation(progress))
            return
        self.bar.update(
            self.task,
            description="",
            completed=progress.step,
            total=progress.steps,
            loss=progress.loss,
            left=progress.seconds_left,
            speed=progress.tokens_per_second,
        )

    def stage(self, name: str, done: int, total: int | None) -> None:
        if self.bar.tasks[0].description != name:
            self.bar.reset(self.task, total=total, description=name)
        self.bar.update(self.task, completed=done, total=total)

    def note(self, text: str) -> None:
        self.bar.console.print(Text(text), soft_wrap=True)

    def note_stop(self) -> None:
        self.note(stopping(self.is_training))


class StepColumn(ProgressColumn):
    """One line: the stage, or step, loss and time left, then a bar, then the speed. rich would
    divide a narrow line evenly between several columns and cut the numbers off."""

    max_refresh = None

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def render(self, task: Task) -> Text:
        width = self.console.width - 1
        if task.description:
            lines = f"  {task.completed:,.0f} lines" if task.completed else ""
            text, speed = f"{task.description}{lines}  {clock(task.elapsed or 0)}", ""
        else:
            fields: dict[str, Any] = task.fields
            text = f"step {task.completed:,.0f}/{task.total or 0:,.0f}  loss {fields['loss']:.3f}"
            text = f"{text}  left {clock(fields['left'])}"
            speed = f"  {fields['speed']:,.0f} tokens/s" if width >= WIDE else ""
        share = task.completed / task.total if task.total else None
        return bar_line(text, speed, share, width)


def bar_line(text: str, end: str, share: float | None, width: int) -> Text:
    """`text`, then a bar if there is room for it, then `end`."""
    room = width - len(text) - len(end) - 2
    if share is None or room < MIN_BAR:
        return Text(text[:width], no_wrap=True)
    filled = round(room * min(1.0, share))
    line = Text(f"{text}  ", no_wrap=True)
    line.append(BAR * filled, style="bar.complete").append(BAR * (room - filled), style="dim")
    return line.append(end)


class ProgressLines:
    """Prints NUM_LINES lines per run, one for every evaluation, and one for every stage."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.current = ""
        self.is_training = False

    def __call__(self, progress: Progress) -> None:
        self.is_training = True
        interval = max(1, progress.steps // NUM_LINES)
        if progress.scores:
            status(evaluation(progress))
        elif progress.step % interval == 0 or progress.step == progress.steps:
            status(
                f"step {progress.step:,}/{progress.steps:,}  loss {progress.loss:.3f}  "
                f"{progress.tokens_per_second:,.0f} tokens/s  {clock(progress.seconds_left)} left"
            )

    def stage(self, name: str, done: int, total: int | None) -> None:
        if name != self.current:
            self.current = name
            status(f"{name}{f' ({total:,} lines)' if total else ''}")

    def note(self, text: str) -> None:
        status(text)

    def note_stop(self) -> None:
        self.note(stopping(self.is_training))


def stopping(is_training: bool) -> str:
    """What a signal does."""
    if is_training:
        return "stopping after this step, with a checkpoint; Ctrl-C again stops now, without one"
    return "stopping; Ctrl-C again stops now"


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
