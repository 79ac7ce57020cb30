"""`RunObserver`: callbacks of a run. They do not affect its result.

watch     Progress, after every step and every evaluation
report    a line of text: bytes to be written, the data report, warnings, the step it resumes from
stage     before the first step: name of the current stage, lines done, total lines
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from weft.checkpoint.disk_space import Report, no_report
from weft.training.loop import ProgressCallback

Stage = Callable[[str, int, int | None], None]
"""Receives the name of a stage, the lines that are done, and all lines; None: not known."""
Item = TypeVar("Item")
EVERY = 1000
"""Lines between two calls of `stage`."""


def no_stage(name: str, done: int, total: int | None) -> None:
    """Discards the stage."""


@dataclass(frozen=True)
class RunObserver:
    """The callbacks of a run."""

    watch: ProgressCallback = lambda progress: None
    report: Report = no_report
    stage: Stage = no_stage

    def warn(self, text: str) -> None:
        self.report(f"warning: {text}.")

    def counted(self, items: Iterable[Item], name: str, total: int | None = None) -> Iterator[Item]:
        """Pass items on, and report how many there were."""
        self.stage(name, 0, total)
        number = 0
        for number, item in enumerate(items, start=1):
            yield item
            if number % EVERY == 0:
                self.stage(name, number, total)
        self.stage(name, number, total)
