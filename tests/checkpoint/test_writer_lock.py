"""One process writes at a time; the others are told which one."""

import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from weft.checkpoint.atomic import PREFIX, host_hash
from weft.checkpoint.writer_lock import LOCK_FILE, lock_path, writer_lock
from weft.core.errors import LockedError

HOLD = """
import sys
from pathlib import Path
from weft.checkpoint.atomic import temporary_name
from weft.checkpoint.writer_lock import LOCK_FILE, writer_lock
folder = Path(sys.argv[1])
with writer_lock(folder, folder / LOCK_FILE):
    temporary_name(folder / "a").write_text("half")
    print("locked", flush=True)
    sys.stdin.read()
"""


def hold(folder):
    """A process that holds the lock of a folder and is writing to it."""
    command = [sys.executable, "-c", HOLD, str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"locked\n"
    return process


def test_a_second_writer_is_told_about_the_first(tmp_path):
    process = hold(tmp_path)
    expected = (
        rf"is being written by process {process.pid} on host {socket.gethostname()} since "
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}\. Wait until it has ended, or use another path"
    )
    with pytest.raises(LockedError, match=expected), writer_lock(tmp_path, tmp_path / LOCK_FILE):
        pass
    assert list(tmp_path.glob(f"{PREFIX}*")), "a running process goes on writing"
    process.communicate(b"")
    with writer_lock(tmp_path, tmp_path / LOCK_FILE):
        pass
    assert not (tmp_path / LOCK_FILE).exists()


def test_a_killed_writer_leaves_no_lock_and_its_files_are_removed(tmp_path):
    process = hold(tmp_path)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (tmp_path / LOCK_FILE).exists() and list(tmp_path.glob(f"{PREFIX}*"))
    with writer_lock(tmp_path, tmp_path / LOCK_FILE):
        assert os.listdir(tmp_path) == [LOCK_FILE]
    assert not list(tmp_path.iterdir())


def test_files_of_a_killed_writer_of_another_host_are_removed_by_its_lock(tmp_path):
    for host in ("a", "b"):
        (tmp_path / f"{PREFIX}1-{host_hash(host)}-{'0' * 8}-0-x").touch()
    (tmp_path / LOCK_FILE).write_text('{"pid": 1, "host": "a", "start": ""}')
    with writer_lock(tmp_path, tmp_path / LOCK_FILE):
        assert len(list(tmp_path.glob(f"{PREFIX}*"))) == 1
    (tmp_path / LOCK_FILE).write_text('{"pid": 1, "ho')  # killed while it wrote its name
    with writer_lock(tmp_path, tmp_path / LOCK_FILE):
        assert len(list(tmp_path.glob(f"{PREFIX}*"))) == 1


def test_a_writer_may_wait(tmp_path):
    target = tmp_path / "a"
    first = writer_lock(target, lock_path(target))
    first.__enter__()
    released = []

    def release():
        released.append(True)
        first.__exit__(None, None, None)

    timer = threading.Timer(0.1, release)
    timer.start()
    with writer_lock(target, lock_path(target), wait=60):
        assert released
    timer.join()
    assert not list(tmp_path.iterdir())


def test_many_writers_take_turns(tmp_path):
    """Removing the lock file with the lock lets no two in."""
    target, inside, seen = tmp_path / "a", [], []

    def write():
        for _ in range(20):
            with writer_lock(target, lock_path(target), wait=60):
                inside.append(1)
                seen.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1] * 80
