"""Output of all commands: results on stdout, status and progress on stderr.

print_json({"width": 256})                  one JSON value on one line, UTF-8 without escapes
print_table(["kind", "bytes"], rows)        a table; numbers are right-aligned
status("3 lines were truncated")            one line on stderr
with progress("training", 100) as step:     a progress bar if stderr is a terminal
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
"""Width of a table that is not printed on a terminal, so that no cell is wrapped."""


def print_json(value: Any) -> None:
    """One JSON value on one line. Settings and paths become plain values; NaN is an error."""
    print(json.dumps(value, ensure_ascii=False, allow_nan=False, default=to_json))


def to_json(value: Any) -> Any:
    """Convert a value that JSON does not have."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be converted to JSON: {value!r}")


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str | None = None
) -> None:
    """A table on stdout, as wide as the terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for index, name in enumerate(columns):
        numbers = all(isinstance(row[index], int | float) for row in rows)
        # a signature or a path is of no use without its end: it is continued on the next line
        table.add_column(Text(name), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(format_cell(cell)) for cell in row))
    is_wide = sys.stdout.isatty() or "COLUMNS" in os.environ
    Console(file=sys.stdout, width=None if is_wide else PIPE_WIDTH, highlight=False).print(table)


def format_cell(cell: Any) -> str:
    """1234567 -> 1,234,567; 0.12345 -> 0.1235; None -> -."""
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    return f"{cell:,.4g}" if isinstance(cell, float) else str(cell)


def status(text: str) -> None:
    """Print one line to stderr."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def progress(
    description: str, total: int | None = None, is_shown: bool = True
) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr if that is a terminal; yields `step(count)`."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(file=sys.stderr)
    is_off = not (is_shown and console.is_terminal)
    with Progress(console=console, transient=True, redirect_stdout=False, disable=is_off) as bar:
        task = bar.add_task(description, total=total)
        yield lambda count: bar.advance(task, count)
