"""A run keeps its number of threads, so that a resumed one ends with the same bits."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from weft.core.errors import DataError
from weft.training.loop import Progress
from weft.training.recipe import Recipe
from weft.training.run import run_training
from weft.training.threads import saved_threads

from .material import files, recipe
from .test_checkpointing import Killed, weights

STEPS = 4


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def wide() -> Recipe:
    """So large that threads share the sums of a gradient."""
    changes = {"model.width": 96, "model.feedforward.width": 256, "train.batch_tokens": 900}
    return recipe(steps=STEPS, save_every=2, evaluate_every=4, average=1).with_changes(changes)


def train(folder: Path, out: Path, threads: int, last: int = STEPS) -> None:
    """Train in a process with this many threads; `last`: it ends after this step."""

    def watch(progress: Progress) -> None:
        if last < STEPS and progress.step == last and not progress.scores:
            raise Killed

    torch.set_num_threads(threads)
    try:
        run_training(wide(), files(folder), out, watch)
    except Killed:
        assert last < STEPS


def test_a_run_resumed_with_fewer_threads_ends_with_the_same_weights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    straight, other, broken = tmp_path / "straight", tmp_path / "other", tmp_path / "broken"
    train(tmp_path, straight, 2)
    train(tmp_path, other, 1)
    assert weights(straight) != weights(other), "the task is too small to show the difference"
    train(tmp_path, broken, 2, last=3)
    assert json.loads((broken / "run.json").read_text())["threads"] == 2
    with caplog.at_level(logging.WARNING):
        train(tmp_path, broken, 1)
    assert weights(broken) == weights(straight)
    assert "threads=2 requested=1 reason='a run keeps the number of threads" in caplog.text
    assert torch.get_num_threads() == 1, "the process keeps its own number"


def test_a_run_without_the_number_continues_with_that_of_the_process(tmp_path: Path) -> None:
    straight, old = tmp_path / "straight", tmp_path / "old"
    train(tmp_path, straight, 1)
    train(tmp_path, old, 1, last=3)
    path = old / "run.json"
    saved = json.loads(path.read_text())
    del saved["threads"]
    path.write_text(json.dumps(saved))
    train(tmp_path, old, 1)
    assert weights(old) == weights(straight)


def test_a_number_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    for number in (0, -1, 1.5, True, "two"):
        path.write_text(json.dumps({"threads": number}))
        with pytest.raises(DataError, match=r"run.json.*threads is .*: it must be an integer"):
            saved_threads(path)
