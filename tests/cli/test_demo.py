"""`weft demo`: from nothing to a model folder, its results, and commands that work on it."""

import io
import json
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from datetime import date

import pytest

from weft.cli import demo
from weft.cli.app import COMMANDS, Command, main
from weft.demo import demo as task
from weft.demo.dates import part_of
from weft.look.terminal import display_width

OURS = {
    name: Command(f"weft.cli.{name}", name)
    for name in ("demo", "translate", "eval", "tokenize", "info")
}
STEPS = ["--steps", "2"]
SIZES = {name: getattr(task, name) for name in ("NUM_TRAIN", "NUM_VALID", "NUM_TEST")}
"""The real ones, before `small` changes them."""


def weft(*args):
    return main([str(arg) for arg in args], commands={**COMMANDS, **OURS})


@pytest.fixture(scope="module", autouse=True)
def small():
    with pytest.MonkeyPatch.context() as patch:
        for name, number in (("NUM_TRAIN", 310), ("NUM_VALID", 31), ("NUM_TEST", 62)):
            patch.setattr(task, name, number)
        yield


@pytest.fixture(scope="module")
def folder(small, tmp_path_factory):
    """A folder with a demo that was run for two steps, and what that printed."""
    path, out, err = tmp_path_factory.mktemp("demo") / "run", io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        assert weft("demo", "--out", path, *STEPS) == 0
    return path, out.getvalue(), err.getvalue()


def test_a_run_shows_every_language_a_heat_map_and_the_score(folder):
    _, out, err = folder
    assert all(name in out for name in ("German", "Chinese", "Arabic (EG)", "Hindi"))
    assert demo.EXAMPLE in out
    assert "from 0.05" in out
    assert "of 62 dates never seen in training are right" in out
    assert "tokens/s" in err and "left" in err
    lines = out[out.index(demo.EXAMPLE + " ->") :].splitlines()
    heat = lines[1 : lines.index("Next:") - 1]
    assert max(map(display_width, heat)) <= 80


def test_json_ends_with_one_object(folder, capsys):
    path, _, _ = folder
    assert weft("demo", "--out", path, "--json", *STEPS) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result) == {"exact_match", "seconds", "out"}
    assert 0 <= result["exact_match"] <= 1
    assert result["seconds"] > 0
    assert result["out"] == str(path)


def test_a_second_run_trains_nothing_and_shows_the_same(folder, capsys):
    path, first, _ = folder
    weights = (path / "model.safetensors").stat().st_mtime_ns
    assert weft("demo", "--out", path, *STEPS) == 0
    result = capsys.readouterr()
    assert (path / "model.safetensors").stat().st_mtime_ns == weights
    assert "trained already" in result.err
    assert "tokens/s" not in result.err
    score = "62 dates never seen"
    assert result.out[: result.out.index(score)] == first[: first.index(score)]


def test_another_seed_in_the_same_folder_is_refused(folder, capsys):
    path, _, _ = folder
    assert weft("demo", "--out", path, "--seed", "7", *STEPS) == 2
    assert "another folder" in capsys.readouterr().err


def test_the_next_commands_work_when_pasted(folder, capsys, monkeypatch):
    _, out, _ = folder
    commands = out[out.index("Next:\n") :].splitlines()[1:]
    assert len(commands) >= 4
    for line in commands:
        words = shlex.split(line)
        inputs = words[words.index("|") - 1] if "|" in words else ""
        called = words[words.index("|") + 1 :] if "|" in words else words
        name = next(word for word in called if word in OURS)
        stdin = io.TextIOWrapper(io.BytesIO(f"{inputs}\n".encode()), encoding="utf-8")
        monkeypatch.setattr(sys, "stdin", stdin)
        assert weft(*called[called.index(name) :]) == 0, line
        assert capsys.readouterr().out.strip(), line


def test_the_date_that_is_shown_was_not_trained_on():
    assert demo.EXAMPLE == "Sunday, August 16, 2026"
    assert part_of(date(2026, 8, 16)) == "test"


@pytest.mark.parametrize(
    ("path", "script", "name"),
    [("/bin/weft", "x", "weft"), (None, "some where/bin/weft", "'some where/bin/weft'")],
)
def test_the_program_is_named_as_it_can_be_called(monkeypatch, path, script, name):
    monkeypatch.setattr(demo.shutil, "which", lambda _: path)
    monkeypatch.setattr(sys, "argv", [script])
    assert demo.program() == name


def test_without_a_script_python_runs_the_package(monkeypatch):
    monkeypatch.setattr(demo.shutil, "which", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["somewhere/weft/__main__.py"])
    assert demo.program().endswith(" -m weft")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_real_demo_reaches_97_percent(tmp_path, capsys, monkeypatch):
    for name, number in SIZES.items():
        monkeypatch.setattr(task, name, number)
    assert weft("demo", "--out", tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["exact_match"] >= 0.97
