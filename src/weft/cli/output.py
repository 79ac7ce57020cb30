"""What every command prints with: results go to stdout, talk and progress to stderr.

print_json({"width": 256})                  one JSON object on one line, UTF-8 as it is
print_table(["kind", "bytes"], rows)        columns for people; numbers to the right
say("3 lines were truncated")               one line of talk
with progress("training", 100) as step:     a bar where stderr is a terminal, nothing elsewhere
    step(1)
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PIPE_WIDTH = 200
"""Columns of a table that is not shown on a terminal: wide enough that no cell is wrapped."""


def print_json(value: Any) -> None:
    """One JSON value on one line. Settings and paths become plain values; NaN is refused."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False, default=plain))


def plain(value: Any) -> Any:
    """What JSON holds in place of a value that it does not know."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no place in JSON: {value!r}")


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None
) -> None:
    """A table on stdout: as wide as the terminal, and without colour where there is none."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(columns):
        numbers = all(isinstance(row[index], int | float) for row in rows)
        table.add_column(Text(name), justify="right" if numbers else "left")
    for row in rows:
        table.add_row(*(Text(shown(cell)) for cell in row))
    is_wide = sys.stdout.isatty() or "COLUMNS" in os.environ
    Console(file=sys.stdout, width=None if is_wide else PIPE_WIDTH, highlight=False).print(table)


def shown(cell: Any) -> str:
    """A cell as people read it: 1,234,567 and 0.1235; a dash where there is nothing."""
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:,.4g}" if isinstance(cell, float) else str(cell)


def say(text: str) -> None:
    """One line of talk."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def progress(
    what: str, total: int | None = None, is_shown: bool = True
) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr, if that is a terminal; yields `step(amount)`."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(file=sys.stderr)
    is_off = not (is_shown and console.is_terminal)
    with Progress(console=console, transient=True, redirect_stdout=False, disable=is_off) as bar:
        task = bar.add_task(what, total=total)
        yield lambda amount: bar.advance(task, amount)
