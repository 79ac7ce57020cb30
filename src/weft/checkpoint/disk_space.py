"""Path and number of bytes -> a report of what will be written; an error if the disk has less."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from weft.core.errors import DataError

Report = Callable[[str], None]
"""Receives one line of progress."""
UNITS = ("bytes", "kB", "MB", "GB", "TB")


def no_report(line: str) -> None:
    """Discards progress."""


def check_space(path: Path, num_bytes: int, report: Report = no_report, what: str = "") -> None:
    """Report that about `num_bytes` will be written at `path`; a DataError if they do not fit.
    `what` says what they are made of."""
    free = free_bytes(path)
    detail = f" ({what})" if what else ""
    if free < num_bytes:
        raise DataError(
            f"needs {format_bytes(num_bytes)} of disk space{detail}, but {format_bytes(free)} are "
            "free. Free some space, or use another disk.",
            path,
        )
    size = format_bytes(num_bytes)
    report(f"{path}: writing up to {size}{detail}; {format_bytes(free)} are free")


def free_bytes(path: Path) -> int:
    """Bytes that can be written at a path that may not exist yet."""
    existing = next(p for p in (path, *path.absolute().parents) if p.exists())
    return shutil.disk_usage(existing).free


def folder_bytes(path: Path) -> int:
    """Bytes of all files below a folder; 0 if there is none."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def format_bytes(num_bytes: int) -> str:
    """1234567 -> 1.2 MB, in powers of 1,000."""
    size, unit = float(num_bytes), 0
    while size >= 999.5 and unit < len(UNITS) - 1:
        size, unit = size / 1000, unit + 1
    return f"{size:.3g} {UNITS[unit]}"
