"""Writer lock: only one process at a time writes to a run folder, a cache file or a new model.

    with writer_lock(out, out / LOCK_FILE):          a folder: the lock is in it
    with writer_lock(path, lock_path(path)):         a file: the lock is next to it

`flock` on a lock file, which the kernel releases when a process ends, however it ends. The file
contains process id, host and start time for the message; it is removed with the lock. After a kill
it stays, without being locked. Readers take no lock: files and folders are replaced atomically.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from weft.checkpoint.atomic import (
    ProcessId,
    disk_errors,
    host_hash,
    is_running,
    remove_leftovers,
    sync,
    this_process,
)
from weft.core.errors import LockedError

log = logging.getLogger(__name__)

LOCK_FILE = ".lock"
POLL_SECONDS = 0.05
MAX_BYTES = 4096


@dataclass(frozen=True)
class LockOwner:
    """The process that holds a lock, or held it last."""

    pid: int
    host: str
    start: str

    @property
    def process(self) -> ProcessId:
        return ProcessId(self.pid, host_hash(self.host))


def lock_path(path: Path) -> Path:
    """The lock file of a file or of a folder that is replaced as a whole."""
    return path.with_name(f".{path.name}.lock")


@contextmanager
def writer_lock(target: Path, lock_file: Path, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock of `target`, or raise a LockedError that names its owner after `wait` seconds.

    What killed writers left behind is removed first: below `target` if the lock is in it, otherwise
    only temporary files of that name.
    """
    with disk_errors(target):
        handle = acquire(target, lock_file, wait)
        try:
            start_writing(handle, target, lock_file)
            yield
        except BaseException:
            with suppress(OSError):
                lock_file.unlink()
            raise
        else:
            lock_file.unlink()
            sync(lock_file.parent)
        finally:
            os.close(handle)


def lock_owner(lock_file: Path) -> str | None:
    """Process, host and start time of the owner of a lock; None if nobody holds it. It takes no
    lock, which would keep a writer away, and knows of processes of this host whether they run."""
    try:
        handle = os.open(lock_file, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        owner = read_owner(handle)
    finally:
        os.close(handle)
    is_here = owner is not None and owner.process.host == this_process().host
    if owner is None or (is_here and not is_running(owner.pid)):
        return None
    return describe_owner(owner)


def describe_owner(owner: LockOwner | None) -> str:
    if owner is None:
        return "another process"
    return f"process {owner.pid} on host {owner.host} since {owner.start}"


def start_writing(handle: int, target: Path, lock_file: Path) -> None:
    """Remove what the last owner of the lock left behind, and become its owner."""
    owner = read_owner(handle)
    name = None if lock_file.parent == target else target.name
    remove_leftovers(lock_file.parent, name, owner.process if owner else None)
    # only now: until the leftovers of the last owner are removed, the lock names it
    write_owner(handle)


def remove_stale(target: Path) -> None:
    """Remove the lock next to `target`, and leftovers, if the process that locked it was killed."""
    if lock_path(target).exists():
        with suppress(LockedError, OSError), writer_lock(target, lock_path(target)):
            pass


def acquire(target: Path, lock_file: Path, wait: float) -> int:
    """An open file with the lock."""
    deadline = time.monotonic() + wait
    while True:
        handle = os.open(lock_file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        if not try_lock(handle, lock_file):
            owner = read_owner(handle)
            os.close(handle)
            if time.monotonic() >= deadline:
                raise locked(target, owner)
            time.sleep(POLL_SECONDS)
        elif is_same_file(handle, lock_file):
            return handle
        else:  # the last owner removed the file after we had opened it
            os.close(handle)


def try_lock(handle: int, lock_file: Path) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        log.warning("lock=none file=%s reason='%s'", lock_file, error.strerror)
    return True


def is_same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def read_owner(handle: int) -> LockOwner | None:
    """The owner that a lock file names; None if it is empty or incomplete."""
    try:
        return LockOwner(**json.loads(os.pread(handle, MAX_BYTES, 0)))
    except (ValueError, TypeError):
        return None


def write_owner(handle: int) -> None:
    start = time.strftime("%Y-%m-%d %H:%M:%S %z")
    owner = LockOwner(os.getpid(), socket.gethostname(), start)
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(asdict(owner)).encode(), 0)


def locked(target: Path, owner: LockOwner | None) -> LockedError:
    return LockedError(
        f"{target} is being written by {describe_owner(owner)}. "
        "Wait until it has ended, or use another path."
    )
