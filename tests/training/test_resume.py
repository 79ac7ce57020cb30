"""`weft train --out DIR` continues a run; settings that may change are recorded with their step."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from weft.checkpoint.folder_files import is_finished
from weft.cli.app import main
from weft.core.errors import DataError, UsageError
from weft.training.data.files import TrainingFiles
from weft.training.loop import Progress
from weft.training.run import run_training

from .material import files, recipe, write_pairs

RECIPE = """
[model]
width = 16
num_layers = 1
max_len = 32
attention = { num_heads = 2 }
[tokenizer]
vocab_size = 300
[train]
steps = 6
batch_tokens = 200
save_every = 2
evaluate_every = 2
translate_lines = 2
schedule = { warmup = 2 }
"""


class Killed(BaseException):
    """Simulates a kill at a chosen step."""


def kill_at(step: int, folder: Path, out: Path, **changes: object) -> None:
    def watch(progress: Progress) -> None:
        if progress.step == step and not progress.scores:
            raise Killed

    with pytest.raises(Killed):
        run_training(recipe(**changes), files(folder), out, watch)


def everything(out: Path) -> dict[str, bytes]:
    """The weights of the model and of all checkpoints."""
    paths = sorted(out.rglob("*.safetensors"))
    return {str(path.relative_to(out)): path.read_bytes() for path in paths}


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """A command line that trains a small model, in the folder `out`."""
    source, target = write_pairs(tmp_path)
    (tmp_path / "small.toml").write_text(RECIPE)
    files = ["--pairs", str(source), str(target), "--valid", str(source), str(target)]
    out = ["--out", str(tmp_path / "out"), "--languages", "en", "de"]
    return ["train", str(tmp_path / "small.toml"), *files, *out]


def test_the_folder_alone_resumes_and_says_from_where(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    out = tmp_path / "out"
    assert main(command) == 0
    whole = everything(out)
    shutil.rmtree(out)
    assert main([*command, "--set", "train.steps=3"]) == 0
    (tmp_path / "small.toml").unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    capsys.readouterr()
    assert main(["train", "--out", "../out", "--set", "train.steps=6"]) == 0
    assert "resuming from step 3" in capsys.readouterr().err
    assert everything(out) == whole
    assert json.loads((out / "config.json").read_text())["languages"] == ["en", "de"]
    assert main(["train", "--out", "../out"]) == 0, "a finished run prints its scores"


def test_a_moved_project_resumes_and_a_missing_file_is_named(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--set", "train.steps=3"]) == 0
    moved = tmp_path / "moved"
    moved.mkdir()
    for name in ("out", "words.src", "words.tgt"):
        (tmp_path / name).rename(moved / name)
    resume = ["train", "--out", str(moved / "out"), "--set", "train.steps=4"]
    assert main(resume) == 0
    (moved / "words.src").rename(moved / "other")
    assert main(resume) == 1
    assert "words.src: this file of the run is not there any more. Name the files" in (
        capsys.readouterr().err
    )
    arguments = [str(moved / "other"), str(moved / "words.tgt")]
    resume[-1] = "train.steps=5"
    assert main([*resume, "--pairs", *arguments, "--valid", *arguments]) == 0


@pytest.mark.parametrize("stop", [None, 9])
def test_an_extended_run_equals_one_of_all_steps(tmp_path: Path, stop: int | None) -> None:
    """Evaluations at steps 4, 8, 12 and 16; the shorter run is evaluated at its end, 10, too."""
    short, long = tmp_path / "short", tmp_path / "long"
    run_training(recipe(steps=18, average=3), files(tmp_path), long)
    if stop is not None:
        kill_at(stop, tmp_path, short, steps=10, average=3)
    run_training(recipe(steps=10, average=3), files(tmp_path), short)
    kill_at(13, tmp_path, short, steps=18, average=3)
    scores = run_training(recipe(steps=18, average=3), files(tmp_path), short)
    assert everything(short) == everything(long)
    assert scores["steps"] == 18
    values = json.loads((short / "run.json").read_text())
    assert values["changes"] == [{"step": 10, "settings": {"train.steps": [10, 18]}}]
    lines = [json.loads(line) for line in (short / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "valid_loss" in line] == [4, 8, 12, 16, 18]


def test_changes_are_recorded_with_their_step_and_regular_steps_follow_them(tmp_path: Path) -> None:
    out = tmp_path / "run"
    kill_at(9, tmp_path, out)
    changes = {"save_every": 5, "patience": 7, "average": 3, "best_by": "loss"}
    scores = run_training(recipe(**changes), files(tmp_path), out)
    [entry] = json.loads((out / "run.json").read_text())["changes"]
    assert entry["step"] == 8
    assert entry["settings"] == {
        "train.save_every": [4, 5], "train.patience": [None, 7], "train.average": [2, 3],
    }  # fmt: skip
    compared = [scores["delivered"]["steps"], *(o["steps"] for o in scores["delivered"]["others"])]
    assert [8, 10, 12] in compared
    assert scores["changes"] == 1


def test_changes_after_the_end_deliver_again(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_training(recipe(), files(tmp_path), out)
    run_training(recipe(patience=9), files(tmp_path), out)
    before = everything(out), (out / "scores.json").stat().st_ino
    run_training(recipe(patience=9), files(tmp_path), out)
    assert before == (everything(out), (out / "scores.json").stat().st_ino)


def test_a_run_cannot_go_back_and_can_end_where_it_is(tmp_path: Path) -> None:
    out = tmp_path / "run"
    kill_at(9, tmp_path, out)
    with pytest.raises(UsageError, match=r"steps is 5 but .*run has a checkpoint of step 8"):
        run_training(recipe(steps=5), files(tmp_path), out)
    assert run_training(recipe(steps=8), files(tmp_path), out)["steps"] == 8


def test_other_settings_are_refused_with_a_way_out(tmp_path: Path) -> None:
    out = tmp_path / "run"
    kill_at(5, tmp_path, out)
    with pytest.raises(UsageError) as caught:
        run_training(recipe(seed=2, steps=13), files(tmp_path), out)
    text = str(caught.value)
    assert "  - recipe.train.seed was 1 and is now 2\n" in text
    assert "  - recipe.train.steps was 12 and is now 13 (this alone may change)" in text
    assert f"(`weft train --out {out}` does), or another --out for a new run." in text


def test_a_run_that_has_saved_nothing_starts_again_with_any_settings(tmp_path: Path) -> None:
    out, other = tmp_path / "run", tmp_path / "other"
    kill_at(2, tmp_path, out)
    run_training(recipe(seed=2), files(tmp_path), out)
    run_training(recipe(seed=2), files(tmp_path), other)
    assert everything(out) == everything(other)


@pytest.mark.parametrize("content", [b"good\nbad \xff byte\n", b"\n\n\n\nword\n"])
def test_a_run_rejected_before_its_first_step_leaves_nothing(
    tmp_path: Path, content: bytes
) -> None:
    broken, out = tmp_path / "broken", tmp_path / "new" / "run"
    broken.write_bytes(content)
    pairs = TrainingFiles("translate", (broken, broken))
    with pytest.raises(DataError):
        run_training(recipe(), pairs, out)
    assert os.listdir(tmp_path) == ["broken"]
    run_training(recipe(), files(tmp_path), out)


def test_a_rejected_run_keeps_what_was_in_its_folder(tmp_path: Path) -> None:
    broken, out = tmp_path / "broken", tmp_path / "run"
    broken.write_bytes(b"\xff\n")
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(DataError):
        run_training(recipe(), TrainingFiles("lm", (broken,)), out)
    assert os.listdir(out) == ["notes.txt"]
    kill_at(5, tmp_path, out)
    before = everything(out)
    broken.write_text("a\n")
    with pytest.raises(UsageError):
        run_training(recipe(), TrainingFiles("lm", (broken,)), out)
    assert everything(out) == before


def test_a_model_that_is_no_run_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run_training(recipe(steps=1), files(tmp_path), out)
    (out / "run.json").unlink()
    with pytest.raises(UsageError, match="holds a model that was not trained there"):
        run_training(recipe(), files(tmp_path), out)
    assert is_finished(out)


@pytest.mark.parametrize(
    "name",
    ["README.md", "config.json", "tokenizer.json", "metrics.jsonl", "checkpoints/500/weights.bin"],
)
def test_files_that_a_run_has_not_written_are_neither_replaced_nor_removed(
    tmp_path: Path, name: str
) -> None:
    out, broken = tmp_path / "project", tmp_path / "broken"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("mine")
    broken.write_bytes(b"\xff\n")
    message = rf"project holds no run, but {name.partition('/')[0]}: the run would replace"
    with pytest.raises(UsageError, match=message):
        run_training(recipe(), files(tmp_path), out)
    with pytest.raises((UsageError, DataError)):
        run_training(recipe(), TrainingFiles("lm", (broken,)), out)
    left = [path.relative_to(out) for path in out.rglob("*") if path.is_file()]
    assert left == [Path(name)] and (out / name).read_text() == "mine"


def test_checkpoints_by_time_change_nothing(tmp_path: Path) -> None:
    """Here after every step: 1e-9 minutes."""
    plain, timed, saved = tmp_path / "plain", tmp_path / "timed", []
    run_training(recipe(save_minutes=None, average=3), files(tmp_path), plain)
    kill_at(7, tmp_path, timed, save_minutes=1e-9, average=3)

    def watch(progress: Progress) -> None:
        saved.append(
            (progress.step, sorted(int(p.name) for p in (timed / "checkpoints").iterdir()))
        )

    run_training(recipe(save_minutes=1e-9, average=3), files(tmp_path), timed, watch)
    assert (7, [4, 6]) in saved, "the run resumed from a checkpoint that was saved by time"
    assert everything(plain) == everything(timed)
