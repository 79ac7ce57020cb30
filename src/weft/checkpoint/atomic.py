"""Atomic files and folders: write under a temporary name, flush to disk, rename, flush the rename.

A process killed at any moment, or a machine that loses power, leaves the old content or the new,
never a part. Temporary names are unique: .new-PID-HOST-TOKEN-NUMBER-NAME. What a killed process was
writing stays behind under such a name until `remove_leftovers`, which a writer calls under its lock
(writer_lock.py), removes it.

Several files of an existing folder are replaced at once (`replaced_files`): the new ones are
complete in a sub-folder that is renamed to COMMITTED, then take the places of the old ones, then
the sub-folder is removed. While it exists, readers use it (folder_reader.py), and the next writer
completes the replacement.

A disk that is full or fails raises a DiskError, whichever library was writing; the temporary files
are removed and the old content stays.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from weft.core.errors import ADVICE, DISK_ERRORS, DataError, DiskError
from weft.native.rename import exchange_names

PREFIX = ".new-"
COMMITTED = ".committed"
LEFTOVER = re.compile(r"\.new-(\d+)-([0-9a-f]{8})-([0-9a-f]{8})-\d+-(.*)", re.DOTALL)
EARLIER = re.compile(
    r"\.new-(\d{8,}|tokens|tokenizer|train|valid|metrics\.jsonl|model\.safetensors"
    r"|(run|config|scores|tokenizer|tokenizer_config)\.json)"
)
"""What an earlier version left in the folder of a run."""
TOKEN = secrets.token_hex(4)
"""Distinguishes this process from an earlier one with the same id, as in restarted containers."""
COUNTER = count()
MAX_NAME = 100
"""Bytes of the target's name in a temporary name: file systems allow 255 in total."""
WRITE_ERRORS = {*DISK_ERRORS, *ADVICE}
"""The errno of a file that cannot be written, for any reason that a user can remove."""
RUST_ERROR = re.compile(r"\(os error (\d+)\)")
SHORT_WRITE = re.compile(r"requested and \d+ written")
"""numpy's message for a write that failed; it has no errno."""


class ProcessId(NamedTuple):
    """A process and the hash of its host's name."""

    pid: int
    host: str


def this_process() -> ProcessId:
    return ProcessId(os.getpid(), host_hash(socket.gethostname()))


def host_hash(name: str) -> str:
    """Eight hexadecimal digits: host names may contain any of our separators."""
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def temporary_name(path: Path) -> Path:
    """A name next to `path` that no other writer uses."""
    pid, host = this_process()
    return path.with_name(f"{PREFIX}{pid}-{host}-{TOKEN}-{next(COUNTER)}-{cut_name(path.name)}")


def cut_name(name: str) -> str:
    return os.fsdecode(os.fsencode(name)[:MAX_NAME])


def sync(path: Path) -> None:
    """fsync a file, or a folder's entries."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """fsync every file and folder below, each folder after its entries."""
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink():
            continue
        sync_tree(entry) if entry.is_dir() else sync(entry)
    sync(folder)


def make_folder(path: Path) -> None:
    """Create a folder and its parents, so that they survive a power failure."""
    new = [path, *(parent for parent in path.parents if not parent.exists())]
    path.mkdir(parents=True, exist_ok=True)
    for folder in reversed(new):
        with suppress(PermissionError):  # a parent that may be entered but not read
            sync(folder.parent)


def write_file(path: Path, content: bytes) -> None:
    """Replace a file's content atomically; on an error the old content stays."""
    with new_file(path) as temporary:
        temporary.write_bytes(content)


def write_output(path: Path, content: bytes) -> None:
    """`write_file` for a file that the user has named: what a link points to is replaced, and a
    device or a pipe is written to."""
    folder = path.resolve().parent
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}. Create it, or name another file.", path)
    if path.exists() and not path.is_file():
        with disk_errors(path):
            path.write_bytes(content)
    else:
        write_file(path.resolve(), content)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A temporary path to write to, renamed to `path` when the block ends without an error."""
    temporary = temporary_name(path)
    with disk_errors(path, WRITE_ERRORS):
        try:
            yield temporary
            publish(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def publish(temporary: Path, path: Path) -> None:
    """Give a complete file its name."""
    sync(temporary)
    temporary.replace(path)
    sync(path.parent)


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """An empty folder next to `path`, removed with its content when the block ends."""
    temporary = temporary_name(path)
    temporary.mkdir()
    try:
        yield temporary
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    if temporary.exists():
        shutil.rmtree(temporary)


@contextmanager
def new_folder(path: Path, replace: bool = False) -> Iterator[Path]:
    """A temporary folder to fill, renamed to `path` when the block ends without an error. `path`
    must not exist by then, unless `replace` is set: then the two exchange their names."""
    with disk_errors(path, WRITE_ERRORS):
        make_folder(path.parent)
        with temporary_folder(path) as temporary:
            yield temporary
            sync_tree(temporary)
            if replace and path.exists():
                exchange(temporary, path)
            else:
                temporary.rename(path)
            sync(path.parent)


def exchange(first: Path, second: Path) -> None:
    """Exchange the names of two folders. Where the system cannot do it in one step, a kill may
    leave `second` under a temporary name."""
    if exchange_names(first, second):
        return
    between = temporary_name(second)
    second.rename(between)
    first.rename(second)
    between.rename(first)


@contextmanager
def replaced_files(target: Path, last: str, optional: Collection[str] = ()) -> Iterator[Path]:
    """A temporary folder to fill with files for an existing folder. When the block ends without an
    error, they replace those of the same name, all of them or none; `last` comes last. Files in
    `optional` that are not among them are removed; all others stay."""
    with disk_errors(target, WRITE_ERRORS):
        finish_replacing(target, last, optional)
        with temporary_folder(target / "files") as temporary:
            yield temporary
            sync_tree(temporary)
            temporary.rename(target / COMMITTED)
            sync(target)
            finish_replacing(target, last, optional)


def finish_replacing(target: Path, last: str, optional: Collection[str] = ()) -> None:
    """Complete the replacement of files that a process may have been killed in."""
    source = target / COMMITTED
    if not source.is_dir():
        return
    for name in optional:
        if (target / name).is_file() and not (source / name).is_file():
            (target / name).unlink()
            sync((target / name).parent)
    files = [file.relative_to(source) for file in sorted(source.rglob("*")) if file.is_file()]
    for file in sorted(files, key=lambda file: str(file) == last):
        make_folder((target / file).parent)
        link_file(source / file, target / file)
    remove_folder(source)


def link_file(source: Path, target: Path) -> None:
    """Replace a file by a hard link to another, or by a copy where there are no hard links."""
    if target.exists() and target.samefile(source):
        return
    with new_file(target) as temporary:
        try:
            os.link(source, temporary)
        except OSError as error:
            if error.errno in DISK_ERRORS:
                raise
            shutil.copyfile(source, temporary)


def current_folder(path: Path) -> Path:
    """Where the files of a folder are read: while they are being replaced, the complete new ones
    are in a sub-folder."""
    return path / COMMITTED if (path / COMMITTED).is_dir() else path


def move_files(source: Path, target: Path, last: str) -> None:
    """Move all files of a folder to another that does not have `last` yet, which comes last: where
    it exists, the others are complete."""
    sync_tree(source)
    files = [file for file in sorted(source.iterdir()) if file.name != last]
    for file in files:
        file.replace(target / file.name)
    sync(target)
    (source / last).replace(target / last)
    sync(target)


def remove_folder(path: Path) -> None:
    """Remove a folder that is seen complete or not at all: it loses its name first."""
    old = temporary_name(path)
    path.rename(old)
    try:
        sync(path.parent)
    finally:
        shutil.rmtree(old)
    sync(path.parent)


def remove_leftovers(folder: Path, name: str | None = None, dead: ProcessId | None = None) -> None:
    """Remove what killed processes were writing below `folder`, or only for the target `name` in
    it; other files with the same prefix are a user's. Call it under the lock of the writers.
    `dead`: a process known to have ended, such as the last owner of the lock; of others only those
    of this host that do not exist are removed."""
    pattern = f"{PREFIX}*"
    for leftover in folder.rglob(pattern) if name is None else folder.glob(pattern):
        if is_leftover(leftover, name, dead):
            is_folder = leftover.is_dir() and not leftover.is_symlink()
            shutil.rmtree(leftover) if is_folder else leftover.unlink(missing_ok=True)


def is_leftover(path: Path, name: str | None, dead: ProcessId | None) -> bool:
    """Whether the process that wrote a temporary file has ended."""
    match = LEFTOVER.fullmatch(path.name)
    if match is None:  # of a version without process ids in its names, which took no lock
        return EARLIER.fullmatch(path.name) is not None or path.name == f"{PREFIX}{name}"
    if name is not None and match[4] != cut_name(name):
        return False
    writer, token = ProcessId(int(match[1]), match[2]), match[3]
    if writer == dead:
        return True
    if writer.host != this_process().host:
        return False
    return token != TOKEN if writer.pid == os.getpid() else not is_running(writer.pid)


def is_running(pid: int) -> bool:
    """Whether a process of this host exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


@contextmanager
def disk_errors(path: Path, numbers: Collection[int] = DISK_ERRORS) -> Iterator[None]:
    """Raise a DiskError that names `path` for errors of the disk in this block. One that names a
    temporary file, which is gone by then, names `path` instead. With WRITE_ERRORS also for files
    of `path` that cannot be opened, created or renamed; a file that is read may be elsewhere."""
    try:
        yield
    except DiskError as error:
        if error.path is not None and any(map(LEFTOVER.fullmatch, Path(error.path).parts)):
            raise DiskError(error.number, path) from error
        raise
    except Exception as error:
        number = errno_of(error)
        if number is None or number not in numbers:
            raise
        if number not in DISK_ERRORS and not is_about(error, path):
            raise
        raise DiskError(number, path) from error


def is_about(error: Exception, path: Path) -> bool:
    """Whether an error names no file, a temporary one, `path`, its folder or a file below it."""
    name = getattr(error, "filename", None)
    if not isinstance(name, str | bytes):
        return True
    file = Path(os.fsdecode(name))
    is_temporary = any(map(LEFTOVER.fullmatch, file.parts))
    return is_temporary or file == path.parent or file.is_relative_to(path)


def errno_of(error: Exception) -> int | None:
    """The errno of an error of Python, numpy or a library in Rust (safetensors, tokenizers)."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    match = RUST_ERROR.search(str(error))
    if match:
        return int(match[1])
    return errno.ENOSPC if isinstance(error, OSError) and SHORT_WRITE.search(str(error)) else None
