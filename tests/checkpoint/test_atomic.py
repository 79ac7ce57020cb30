"""Writes that fail or are killed at any point leave the old content or the new, whole."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from weft.checkpoint import atomic
from weft.checkpoint.atomic import PREFIX, new_folder, remove_leftovers, write_file


class StopError(Exception):
    """What a test lets a write fail with."""


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
    assert steps == [f"{PREFIX}a", "rename", tmp_path.name]


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


def test_leftovers_are_removed_and_nothing_else(tmp_path):
    (tmp_path / f"{PREFIX}folder").mkdir()
    (tmp_path / f"{PREFIX}folder" / "x").write_text("half")
    (tmp_path / f"{PREFIX}file").write_text("half")
    (tmp_path / "kept").write_text("whole")
    remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["kept"]


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
