"""Atomic files and folders: write under a temporary name, flush to disk, rename.

A process killed at any moment leaves the old content or the new, never a part. What it was writing
stays behind under a name that starts with `.new-`, which the next writer removes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = ".new-"


def sync(path: Path) -> None:
    """fsync a file, or a folder's entries."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(path: Path, content: bytes) -> None:
    """Replace a file's content atomically; on an error the old content stays."""
    with new_file(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to, renamed to `path` when the block ends without an error."""
    temporary = path.with_name(f"{PREFIX}{path.name}")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to fill, renamed to `path` when the block ends without an error. `path`
    must not exist by then."""
    temporary = path.with_name(f"{PREFIX}{path.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in temporary.iterdir():
            sync(file)
        sync(temporary)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync(path.parent)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed process was writing."""
    for leftover in folder.glob(f"{PREFIX}*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
