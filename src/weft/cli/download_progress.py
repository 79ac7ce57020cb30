"""Progress of a download: a bar on a terminal, otherwise a line for every tenth.

    45.2 MB of 92.9 MB  12.3 MB/s  left 0:04  ------------

The numbers come first and are never cut off.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task
from rich.text import Text

from weft.checkpoint.disk_space import format_bytes
from weft.cli.output import status
from weft.cli.train_progress import bar_line, clock

NUM_LINES = 10
"""Lines of a download without a terminal."""

Watch = Callable[[int, int], None]


@contextmanager
def watch_download() -> Iterator[tuple[Callable[[str], None], Watch]]:
    """(report, watch) of a download: print a line; show (bytes so far, bytes in all)."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield status, DownloadLines()
        return
    with Progress(DownloadColumn(console), console=console) as progress:
        task = progress.add_task("", total=None, visible=False)

        def report(text: str) -> None:
            progress.console.print(Text(text), soft_wrap=True)

        def watch(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total, visible=True)

        yield report, watch


class DownloadColumn(ProgressColumn):
    """One line: bytes, speed and time left, then a bar."""

    max_refresh = None

    def __init__(self, console: Console) -> None:
        super().__init__()
        self.console = console

    def render(self, task: Task) -> Text:
        text = f"{format_bytes(round(task.completed))} of {format_bytes(round(task.total or 0))}"
        if task.speed:
            text += f"  {format_bytes(round(task.speed))}/s"
        if task.time_remaining is not None:
            text += f"  left {clock(task.time_remaining)}"
        share = task.completed / task.total if task.total else 0.0
        return bar_line(text, "", share, self.console.width - 1)


class DownloadLines:
    """Prints NUM_LINES lines per download."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.now, self.began, self.printed = now, now(), 0

    def __call__(self, done: int, total: int) -> None:
        part = NUM_LINES * done // max(1, total)
        if part > self.printed:
            self.printed = part
            seconds = clock(self.now() - self.began)
            status(f"{format_bytes(done)} of {format_bytes(total)} after {seconds}")
