"""Writes that fail or are killed at any point leave the old content or the new, whole."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path

import pytest

from weft.checkpoint import atomic
from weft.checkpoint.atomic import (
    PREFIX,
    ProcessId,
    current_folder,
    host_hash,
    make_folder,
    new_file,
    new_folder,
    remove_folder,
    remove_leftovers,
    replaced_files,
    temporary_name,
    write_file,
    write_output,
)
from weft.core.errors import DataError, DiskError


class StopError(Exception):
    """What a test lets a write fail with."""


def replacing(path):
    """`replaced_files` of a folder that exists."""
    path.mkdir()
    return replaced_files(path, "last")


def stop(*args, **options):
    raise StopError


def test_a_written_file_holds_its_content_and_nothing_else_is_left(tmp_path):
    write_file(tmp_path / "a", b"old")
    write_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("owner", "name"), [(Path, "write_bytes"), (atomic, "sync"), (Path, "replace")]
)
def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch, owner, name):
    write_file(tmp_path / "a", b"old")
    with monkeypatch.context() as patch, pytest.raises(StopError):
        patch.setattr(owner, name, stop)
        write_file(tmp_path / "a", b"new")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    def write_half(path, content):
        with path.open("wb") as file:
            file.write(content[: len(content) // 2])
        raise OSError(28, "No space left on device")

    write_file(tmp_path / "a", b"old")
    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space left"):
        patch.setattr(Path, "write_bytes", write_half)
        write_file(tmp_path / "a", b"new content")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_the_content_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    steps = []
    monkeypatch.setattr(atomic, "sync", lambda path: steps.append(path.name))
    replace = Path.replace
    monkeypatch.setattr(
        Path, "replace", lambda self, to: (steps.append("rename"), replace(self, to))
    )
    write_file(tmp_path / "a", b"new")
    assert steps[0].startswith(PREFIX) and steps[0].endswith("-a")
    assert steps[1:] == ["rename", tmp_path.name]


def test_two_writers_of_one_file_do_not_rename_each_others_parts(tmp_path):
    path = tmp_path / "a"
    first, second = new_file(path), new_file(path)
    first.__enter__().write_bytes(b"first")
    temporary = second.__enter__()
    temporary.write_bytes(b"half of the sec")
    first.__exit__(None, None, None)
    assert path.read_bytes() == b"first"
    temporary.write_bytes(b"second")
    second.__exit__(None, None, None)
    assert path.read_bytes() == b"second"
    assert os.listdir(tmp_path) == ["a"]


def test_two_writers_of_one_folder_do_not_share_files(tmp_path):
    with pytest.raises(OSError), new_folder(tmp_path / "f") as second:
        (second / "x").write_text("second")
        with new_folder(tmp_path / "f") as first:
            (first / "y").write_text("first")
    assert os.listdir(tmp_path) == ["f"] and os.listdir(tmp_path / "f") == ["y"]


def record_calls(monkeypatch) -> list[str]:
    """The order of fsync, mkdir and rename calls, by the name of what they are called on."""
    steps = []
    real_sync, rename, mkdir = atomic.sync, Path.rename, Path.mkdir

    def call(kind, function, path, *args, **options):
        steps.append(f"{kind} {'new' if path.name.startswith(PREFIX) else path.name}")
        return function(path, *args, **options)

    monkeypatch.setattr(atomic, "sync", lambda p: call("sync", real_sync, p))
    monkeypatch.setattr(Path, "rename", lambda p, *a: call("rename", rename, p, *a))
    monkeypatch.setattr(Path, "mkdir", lambda p, *a, **o: call("mkdir", mkdir, p, *a, **o))
    return steps


def test_a_folder_is_on_the_disk_with_its_sub_folders_before_it_has_its_name(tmp_path, monkeypatch):
    (tmp_path / "top").mkdir()
    steps = record_calls(monkeypatch)
    with new_folder(tmp_path / "top" / "f") as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "x").write_text("1")
        (folder / "y").write_text("2")
        steps.clear()
    assert steps == ["sync x", "sync inner", "sync y", "sync new", "rename new", "sync top"]


def test_new_parent_folders_are_on_the_disk(tmp_path, monkeypatch):
    steps = record_calls(monkeypatch)
    make_folder(tmp_path / "a" / "b" / "c")
    synced = [step for step in steps if step.startswith("sync")]
    assert synced == [f"sync {tmp_path.name}", "sync a", "sync b"]


@pytest.fixture
def folder(tmp_path):
    """A folder with old files."""
    (tmp_path / "f" / "inner").mkdir(parents=True)
    for name in ("a", "inner/b", "last", "kept"):
        (tmp_path / "f" / name).write_text("old")
    return tmp_path / "f"


@pytest.mark.parametrize("has_exchange", [True, False])
def test_a_folder_is_replaced_as_a_whole(tmp_path, monkeypatch, has_exchange):
    """tests/faults kills it at every point."""
    if not has_exchange:
        monkeypatch.setattr(atomic, "exchange_names", lambda first, second: False)
    for content in ("old", "new"):
        with new_folder(tmp_path / "f", replace=True) as folder:
            (folder / content).write_text(content)
        assert os.listdir(tmp_path / "f") == [content]
    assert os.listdir(tmp_path) == ["f"]


def test_a_folder_keeps_its_name_while_it_is_replaced(tmp_path, monkeypatch):
    """Between two renames there was none."""
    with new_folder(tmp_path / "f"):
        pass
    seen, rename = [], Path.rename
    monkeypatch.setattr(
        Path, "rename", lambda self, to: (rename(self, to), seen.append((tmp_path / "f").exists()))
    )
    with new_folder(tmp_path / "f", replace=True) as folder:
        (folder / "x").touch()
    assert all(seen) and (tmp_path / "f" / "x").exists()


def replace_all(folder):
    with replaced_files(folder, last="last") as new:
        (new / "inner").mkdir()
        for name in ("a", "inner/b", "last"):
            (new / name).write_text("new")


def texts(folder):
    return {name: (folder / name).read_text() for name in ("a", "inner/b", "last")}


OLD, NEW = (dict.fromkeys(("a", "inner/b", "last"), text) for text in ("old", "new"))


def test_files_are_replaced_all_or_none_wherever_it_stops(folder, monkeypatch):
    """Stopped before each rename and each fsync, readers see the old files or the new ones."""
    seen = []
    for number in count():
        shutil.rmtree(folder)
        for name in OLD:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("old")
        calls = iter(range(number))

        def stop_at(function, calls=calls):
            def call(*args):
                if next(calls, None) is None:
                    raise KeyboardInterrupt
                return function(*args)

            return call

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", stop_at(Path.rename))
            patch.setattr(Path, "replace", stop_at(Path.replace))
            patch.setattr(atomic, "sync", stop_at(atomic.sync))
            try:
                replace_all(folder)
                break
            except KeyboardInterrupt:
                pass
        seen.append(texts(current_folder(folder)))
        replace_all(folder)
        assert texts(folder) == NEW and not list(folder.glob(".c*")), number
    first_new = seen.index(NEW)
    assert seen == [OLD] * first_new + [NEW] * (len(seen) - first_new)
    assert first_new > 3 and len(seen) > 10


def test_files_are_replaced_where_there_are_no_hard_links(folder, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    replace_all(folder)
    assert texts(folder) == NEW and (folder / "kept").read_text() == "old"


def test_a_replacement_that_fails_changes_nothing(folder):
    with pytest.raises(StopError), replaced_files(folder, last="last") as new:
        (new / "a").write_text("new")
        raise StopError
    assert texts(folder) == OLD and sorted(os.listdir(folder)) == ["a", "inner", "kept", "last"]


def test_a_folder_loses_its_name_before_its_files(tmp_path, monkeypatch):
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "x").touch()
    monkeypatch.setattr(atomic.shutil, "rmtree", stop)
    with pytest.raises(StopError):
        remove_folder(tmp_path / "f")
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"),
        OSError("1000 requested and 512 written"),
    ],
    ids=["python", "safetensors", "numpy"],
)
@pytest.mark.parametrize("new", [new_file, new_folder])
def test_a_full_disk_is_one_sentence_whoever_writes(tmp_path, error, new):
    with pytest.raises(DiskError) as caught, new(tmp_path / "a") as temporary:
        if temporary.is_dir():
            (temporary / "part").touch()
        raise error
    text = str(caught.value)
    assert text.startswith(f"{tmp_path / 'a'}: cannot be written (No space left on device). What")
    assert caught.value.errno == 28 and isinstance(caught.value, OSError)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("outer", [new_folder, replacing])
def test_a_file_that_cannot_be_written_in_a_temporary_folder_is_not_named(tmp_path, outer):
    """The message named .new-.../config.json, which was removed by then."""
    with (
        pytest.raises(DiskError) as caught,
        outer(tmp_path / "a") as folder,
        new_file(folder / "config.json"),
    ):
        raise OSError(28, "No space left on device")
    assert str(caught.value).startswith(f"{tmp_path / 'a'}: cannot be written (No space left")
    assert caught.value.errno == 28
    assert not list(tmp_path.rglob("*new*"))


def test_a_folder_appears_with_everything_in_it(tmp_path):
    with new_folder(tmp_path / "f") as folder:
        (folder / "x").write_text("1")
        (folder / "y").write_text("2")
        assert not (tmp_path / "f").exists()
    assert sorted(os.listdir(tmp_path / "f")) == ["x", "y"]
    assert os.listdir(tmp_path) == ["f"]


def test_a_folder_that_fails_never_appears(tmp_path, monkeypatch):
    with pytest.raises(StopError), new_folder(tmp_path / "f") as folder:
        (folder / "x").write_text("1")
        raise StopError
    assert os.listdir(tmp_path) == []
    with (
        monkeypatch.context() as patch,
        pytest.raises(StopError),
        new_folder(tmp_path / "f") as folder,
    ):
        (folder / "x").write_text("1")
        patch.setattr(atomic, "sync", stop)
    assert os.listdir(tmp_path) == []


def test_a_new_folder_begins_empty_whatever_was_left_behind(tmp_path):
    left = tmp_path / f"{PREFIX}f"
    left.mkdir()
    (left / "old").write_text("half")
    with new_folder(tmp_path / "f") as folder:
        (folder / "x").write_text("1")
    assert os.listdir(tmp_path / "f") == ["x"]


def leave_behind(folder, pid, host=None, token="0" * 8, name="a"):
    host = host or atomic.this_process().host
    path = folder / f"{PREFIX}{pid}-{host}-{token}-0-{name}"
    path.write_text("half")
    return path


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_leftovers_of_dead_processes_are_removed_and_nothing_else(tmp_path):
    (tmp_path / f"{PREFIX}00000500").mkdir()
    (tmp_path / f"{PREFIX}00000500" / "x").write_text("half, by an earlier version")
    (tmp_path / f"{PREFIX}scores.json").write_text("half, by an earlier version")
    users = ["kept", f"{PREFIX}ideas.txt", f"{PREFIX}1-2-3-4-notes"]
    for name in users:
        (tmp_path / name).write_text("whole")
    (tmp_path / "inner").mkdir()
    other = host_hash("another host")
    gone = ProcessId(7, other)
    leave_behind(tmp_path / "inner", dead_pid())
    leave_behind(tmp_path, os.getpid(), token="0" * 8)  # our id, before this host was restarted
    leave_behind(tmp_path, gone.pid, other)
    writing = temporary_name(tmp_path / "b")  # by this process
    writing.touch()
    kept = [leave_behind(tmp_path, os.getppid()), leave_behind(tmp_path, 8, other), writing]
    remove_leftovers(tmp_path, dead=gone)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"inner", *users, *(path.name for path in kept)}
    assert not list((tmp_path / "inner").iterdir())


def test_leftovers_of_one_target_are_removed_and_others_stay(tmp_path):
    mine, other = (leave_behind(tmp_path, dead_pid(), name=name) for name in ("a", "b"))
    remove_leftovers(tmp_path, "a")
    assert not mine.exists() and other.exists()


def test_a_write_that_is_not_permitted_names_its_file_and_a_read_elsewhere_stays_as_it_is(tmp_path):
    path, message = tmp_path / "a", r"a: cannot be written \(Permission denied\).*who may write"
    with pytest.raises(DiskError, match=message), new_file(path) as temporary:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(temporary))
    with pytest.raises(PermissionError, match="'/other'"), new_file(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/other")


def test_temporary_names_fit_into_a_file_system(tmp_path):
    path = tmp_path / ("\u00e9" * 125)
    write_file(path, b"content")
    assert path.read_bytes() == b"content"
    left = temporary_name(path)
    assert len(os.fsencode(left.name)) < 255


KILLED = """
import sys
from pathlib import Path
from weft.checkpoint.atomic import write_file
number = 0
while True:
    number += 1
    write_file(Path(sys.argv[1]), (b"%08d" % number) * 4096)
"""


@pytest.mark.parametrize("delay", [0.0, 0.013, 0.031])
def test_a_killed_process_leaves_a_whole_file(tmp_path, delay):
    path = tmp_path / "a"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(path)])
    deadline = time.monotonic() + 60
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.wait()
    content = path.read_bytes()
    assert content == content[:8] * 4096 and int(content[:8]) >= 1
    remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["a"]


def test_a_named_output_replaces_what_a_link_points_to(tmp_path):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "page.html", tmp_path / "link.html"
    link.symlink_to(target)
    for content in (b"one", b"two"):
        write_output(link, content)
        assert link.is_symlink() and target.read_bytes() == content
    write_output(tmp_path / "new", b"three")
    assert (tmp_path / "new").read_bytes() == b"three"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link.html", "new"]


def test_a_named_output_may_be_a_device(tmp_path):
    device = tmp_path / "device"
    device.symlink_to(os.devnull)
    write_output(device, b"dropped")
    assert device.is_symlink() and device.is_char_device()
    if Path("/dev/full").exists():
        with pytest.raises(DiskError, match=r"^/dev/full: cannot be written \(No space left"):
            write_output(Path("/dev/full"), b"content")


def test_a_named_output_that_fails_keeps_the_old_content(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    write_output(path, b"old")

    def fail(path, content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(DiskError, match=r"page.html: cannot be written"):
        write_output(path, b"new")
    assert path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 1


def test_an_output_in_a_missing_folder_names_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "head.svg"
    with pytest.raises(DataError, match="head.svg: there is no folder .*missing. Create it"):
        write_output(path, b"content")
