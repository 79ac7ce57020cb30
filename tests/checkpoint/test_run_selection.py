"""DIR, DIR@last, DIR@best and DIR@400: a run is a model at any time."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import weft
from tests.training.material import files, recipe
from weft.checkpoint.description import describe
from weft.checkpoint.formats import convert, load_checkpoint
from weft.checkpoint.run_selection import read_scores
from weft.checkpoint.tensor_source import unique_state
from weft.checkpoint.verification import verify
from weft.cli.app import main
from weft.core.errors import DataError
from weft.training.run import run_training


class StopError(Exception):
    """Ends a run in the middle of its work."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps whose best evaluation is not its last one."""
    folder = tmp_path_factory.mktemp("finished")
    schedule = {"kind": "constant", "warmup": 2}
    settings = recipe(average=1, evaluate_every=3, optimiser={"lr": 0.3}, schedule=schedule)
    run_training(settings, files(folder), folder / "run")
    return folder / "run"


def stop_at(step: int, folder: Path, **changes: object) -> Path:
    def watch(progress: object) -> None:
        if progress.step == step:
            raise StopError

    with pytest.raises(StopError):
        run_training(recipe(**changes), files(folder), folder / "run", watch)
    return folder / "run"


def is_step(model: str | Path, run: Path, step: int) -> bool:
    expected = load_file(run / "checkpoints" / f"{step:08d}" / "weights.safetensors")
    state = unique_state(load_checkpoint(model).model)
    return all(torch.equal(tensor, expected[name]) for name, tensor in state.items())


def best_of(run: Path) -> int:
    scores = {each.step: each.score for each in read_scores(run, "loss")}
    return min(scores, key=lambda step: scores[step])


def test_the_best_checkpoint_is_kept_and_delivered(finished: Path) -> None:
    best = best_of(finished)
    assert best not in (12, 0), "this test needs a run that gets worse at its end"
    steps = sorted(int(path.name) for path in (finished / "checkpoints").iterdir())
    assert steps == [best, 12]
    assert is_step(f"{finished}@best", finished, best) and is_step(finished, finished, best)
    assert is_step(f"{finished}@last", finished, 12) and is_step(f"{finished}@12", finished, 12)
    scores = json.loads((finished / "scores.json").read_text())
    assert scores["delivered"] == {
        "by": "loss",
        "steps": [best],
        "loss": scores["valid"]["loss"],
        "others": [],
    }


def test_which_checkpoint_is_used_is_said_on_stderr(finished: Path) -> None:
    command = [sys.executable, "-m", "weft", "translate", f"{finished}@best", "-"]
    done = subprocess.run(command, input=b"abc\n", capture_output=True, check=True)
    step = best_of(finished)
    assert f"{finished}@best: using the checkpoint of step {step}\n" in done.stderr.decode()
    assert len(done.stdout.splitlines()) == 1
    assert main(["info", f"{finished}@last"]) == 0
    assert len(weft.load(f"{finished}@12").translate(["abc"])) == 1


def test_a_run_that_goes_on_after_its_model_is_its_newest_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_training(recipe(), files(tmp_path), tmp_path / "run")
    run = stop_at(18, tmp_path, steps=20)
    with caplog.at_level(logging.WARNING):
        assert is_step(run, run, 16)
    text = "training has gone on after the model of step 12 was delivered; using the checkpoint of"
    assert f"{run}: {text} step 16" in caplog.text
    run_training(recipe(steps=20), files(tmp_path), run)
    caplog.clear()
    load_checkpoint(run)
    assert not caplog.text and describe(run).format == "native"


def test_a_delivered_model_that_is_incomplete_is_named_as_the_reason(
    finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    weights = run / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert is_step(run, run, 12)
    text = "the model that was delivered after step 12 is incomplete; using the checkpoint of step"
    assert f"{run}: {text} 12" in caplog.text


def test_a_path_that_ends_with_at_names_no_checkpoint(finished: Path) -> None:
    with pytest.raises(DataError, match="@"):
        load_checkpoint(f"{finished}@")


def test_a_path_that_exists_wins(finished: Path, tmp_path: Path) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    shutil.copytree(finished, tmp_path / "run@last")
    shutil.rmtree(tmp_path / "run@last" / "checkpoints")
    assert describe(f"{run}@last").format == "native"
    assert is_step(f"{run}@last", run, best_of(run))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("run@500", "run@500: there is no checkpoint of step 500. Available steps: {}, 12."),
        ("run@first", "'first' is not a checkpoint: use @last, @best or a step. Available"),
        ("data@best", "data: has no run.json, so it is not a training run and has no checkpoints"),
        ("nowhere@best", "nowhere@best: there is no such model"),
    ],
)
def test_a_wrong_name_is_one_sentence_with_the_available_steps(
    finished: Path, name: str, sentence: str
) -> None:
    (finished.parent / "data").mkdir(exist_ok=True)
    with pytest.raises(DataError) as caught:
        load_checkpoint(finished.parent / name)
    assert sentence.format(best_of(finished)) in str(caught.value)
    with pytest.raises(DataError):
        describe(finished.parent / name)


def test_a_run_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    run = stop_at(2, tmp_path)
    (run / "metrics.jsonl").unlink()
    with pytest.raises(DataError, match="there is no checkpoint. The run has saved no checkpoint"):
        load_checkpoint(f"{run}@last")


def test_a_run_of_an_earlier_version_says_that_its_best_checkpoint_is_gone(
    finished: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, best = shutil.copytree(finished, tmp_path / "run"), best_of(finished)
    shutil.rmtree(run / "checkpoints" / f"{best:08d}")
    with caplog.at_level(logging.WARNING):
        assert is_step(f"{run}@best", run, 12)
    assert f"step {best} had a better loss, but its checkpoint was not kept" in caplog.text


def test_checkpoints_can_be_converted_and_verified(finished: Path, tmp_path: Path) -> None:
    convert(f"{finished}@12", tmp_path / "out", "weft")
    assert is_step(tmp_path / "out", finished, 12)
    names = {check.file for check in verify(f"{finished}@12")}
    assert names == {f"checkpoints/00000012/{name}" for name in
                     ("weights.safetensors", "optimiser.safetensors", "state.json")}  # fmt: skip
