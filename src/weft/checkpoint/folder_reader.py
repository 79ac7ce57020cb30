"""Consistent reads of several files that another process may replace: all old or all new ones.

`replaced_files` (atomic.py) replaces the files of a folder one after the other, so that a reader
could open the old config.json and the new weights. Readers take no lock: a folder may be read-only.
Instead `read_consistently` compares the version of the files before and after, and reads again if
it has changed.

    version of a folder    device, inode, time and size of its files, if no replacement is going on;
                           otherwise the sub-folder with all new files, which is never changed

If the version is the same before and after, nothing was replaced in between: a replacement that is
in progress has its sub-folder, and one that has ended has other inodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from weft.checkpoint.atomic import current_folder
from weft.core.errors import DataError

MAX_READS = 20
Contents = TypeVar("Contents")


def read_consistently(
    path: Path, names: Iterable[str], read: Callable[[Path], Contents]
) -> Contents:
    """The result of `read` for a folder with these files, none of which was replaced meanwhile.
    `read` gets the folder where they are, and its errors are raised if they are not due to a
    replacement."""
    names = list(names)
    for _ in range(MAX_READS):
        before = folder_version(path, names)
        contents = None  # a model that was read before must not stay in memory beside the next
        try:
            contents = read(current_folder(path))
        except Exception:
            if folder_version(path, names) == before:
                raise
            continue
        if folder_version(path, names) == before:
            return contents
    raise DataError(
        f"was replaced by another process in each of {MAX_READS} attempts to read it. Read it when "
        "that process has finished.",
        path,
    )


def folder_version(path: Path, names: Iterable[str]) -> list[object]:
    """Equal for two calls if the same files are read between them."""
    folder = current_folder(path)
    if folder != path:
        return [file_version(folder)]
    # of the folder itself only the inode: its time changes with other files, such as locks
    own = file_version(path)
    return [own and own[:2], *(file_version(path / name) for name in names)]


def file_version(path: Path) -> tuple[int, ...] | None:
    """Device, inode, time and size; None: there is no such file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
