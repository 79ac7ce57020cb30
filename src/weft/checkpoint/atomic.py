"""Files and folders that are there whole or not at all: write beside the place, flush, rename.

A process killed at any moment leaves the old content or the new, never a part; what it was writing
stays behind under a name that begins with `.new-`, and the next writer removes it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = ".new-"


def sync(path: Path) -> None:
    """Have the system put a file, or a folder's list of names, on the disk now."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_file(path: Path, content: bytes) -> None:
    """The file holds `content` afterwards, or, if anything goes wrong, what it held before."""
    with new_file(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A name to write to; the file takes its own name only when the block ends well."""
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
    """A folder to fill; it takes its name only when the block ends well. `path` must not exist."""
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
    """Take away what a killed process was writing."""
    for leftover in folder.glob(f"{PREFIX}*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
