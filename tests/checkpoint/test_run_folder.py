"""A run that is not finished can be read; a checkpoint that disappears is replaced by the next."""

import json
import logging
import shutil

import pytest
import torch
from safetensors.torch import load_file

import weft
from tests.training.material import files, recipe
from weft.checkpoint import run_folder
from weft.checkpoint.description import describe
from weft.checkpoint.formats import load_checkpoint
from weft.checkpoint.weft_folder import unique_state
from weft.core.errors import DataError
from weft.training.run import run_training


class StopError(Exception):
    """Ends a run in the middle of its work."""


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A run that ended after step 9, with checkpoints of steps 4 and 8."""
    folder = tmp_path_factory.mktemp("interrupted")

    def watch(progress):
        if progress.step == 9:
            raise StopError

    with pytest.raises(StopError):
        run_training(recipe(), files(folder), folder / "run", watch)
    return folder / "run"


@pytest.fixture
def run(interrupted, tmp_path):
    return shutil.copytree(interrupted, tmp_path / "run")


def weights(run, step):
    return load_file(
        run_folder.checkpoint_folder(run / "checkpoints", step) / "weights.safetensors"
    )


def assert_step(checkpoint, run, step):
    expected = weights(run, step)
    state = unique_state(checkpoint.model)
    assert state.keys() == expected.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in state.items())


def test_the_newest_checkpoint_is_loaded_and_reported(run, caplog):
    with caplog.at_level(logging.WARNING):
        checkpoint = load_checkpoint(run)
    assert_step(checkpoint, run, 8)
    assert checkpoint.task == "translate" and not checkpoint.model.training
    assert f"{run}: training is not finished; using the checkpoint of step 8" in caplog.text
    assert describe(run).format == "run" and describe(run).config == checkpoint.model.config
    assert len(weft.load(run).translate(["abc"])) == 1


def test_a_run_can_be_read_while_it_is_trained(tmp_path):
    out, steps = tmp_path / "run", []

    def watch(progress):
        if progress.step in (6, 10) and not progress.scores:
            assert_step(load_checkpoint(out), out, progress.step - 2)
            steps.append(progress.step)

    run_training(recipe(), files(tmp_path), out, watch)
    assert steps == [6, 10] and describe(out).format == "native"


def test_a_checkpoint_that_disappears_is_replaced_by_the_next(run, monkeypatch):
    real, read = run_folder.load_weights, []

    def remove_first(path, model, device):
        read.append(path.parent.name)
        if len(read) == 1:
            shutil.rmtree(path.parent)
        real(path, model, device)

    monkeypatch.setattr(run_folder, "load_weights", remove_first)
    assert_step(load_checkpoint(run), run, 4)
    assert read == ["00000008", "00000004"]


def test_checkpoints_that_replace_all_others_are_found(run, monkeypatch):
    real, folder = run_folder.load_weights, run / "checkpoints"

    def move_on(path, model, device):
        if not (folder / "00000012").exists():
            shutil.copytree(folder / "00000008", run / "new")
            shutil.rmtree(folder / "00000004")
            shutil.rmtree(folder / "00000008")
            (run / "new").rename(folder / "00000012")
        real(path, model, device)

    monkeypatch.setattr(run_folder, "load_weights", move_on)
    assert_step(load_checkpoint(run), run, 12)


def test_a_run_without_a_checkpoint_is_named(run):
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(DataError, match="no finished model and no checkpoint that can be read"):
        load_checkpoint(run)


def test_a_run_of_a_later_version_is_named(run):
    values = json.loads((run / "run.json").read_text())
    assert values["weft"] == 1
    (run / "run.json").write_text(json.dumps({**values, "weft": 2}))
    with pytest.raises(DataError, match=r"run.json: says weft = 2: this version reads 1. Use the"):
        load_checkpoint(run)
