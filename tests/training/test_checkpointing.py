"""An interrupted run continues to the same bits as an uninterrupted one."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from weft.checkpoint.weft_folder import load_folder
from weft.core.errors import DataError, LockedError, UsageError
from weft.training import checkpointing
from weft.training.loop import NonFiniteLossError, Progress, Trainer
from weft.training.run import run_training
from weft.training.signals import StoppedBySignal

from .material import files, recipe, write_pairs

RECIPE = """
[model]
width = 16
num_layers = 1
max_len = 32
dropout = 0.1
attention = { num_heads = 2 }
feedforward = { kind = "relu", width = 32 }
[tokenizer]
vocab_size = 300
[train]
batch_tokens = 200
save_every = 7
evaluate_every = 10
average = 3
bpe_dropout = 0.1
rdrop = 1.0
schedule = { warmup = 10 }
"""


def weights(out: Path) -> bytes:
    return (out / "model.safetensors").read_bytes()


class Killed(BaseException):
    """Simulates a kill at a chosen step."""


def train_until(step: int, folder: Path, out: Path, **changes: object) -> None:
    """Train until a step, then raise Killed."""

    def watch(progress: Progress) -> None:
        if progress.step == step and not progress.scores:
            raise Killed

    with pytest.raises(Killed):
        run_training(recipe(**changes), files(folder), out, watch)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rdrop": 2.0, "bpe_dropout": 0.2},
        {"rdrop": 2.0, "rdrop_from": 6},
        {"optimiser": {"kind": "muon"}, "accumulate": 2},
    ],
    ids=["plain", "rdrop and bpe-dropout", "rdrop from the seventh step", "muon, accumulated"],
)
def test_a_run_cut_off_at_any_step_ends_with_the_same_weights(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    scores = run_training(recipe(**changes), files(tmp_path), straight)
    for step in (2, 4, 5, 9, 11, 12):
        if step != 4 or not broken.exists():
            train_until(step, tmp_path, broken, **changes)
    again = run_training(recipe(**changes), files(tmp_path), broken)
    assert weights(straight) == weights(broken)
    assert scores["valid"] == again["valid"] and scores["steps"] == again["steps"] == 12


def test_rdrop_starts_after_the_step_of_rdrop_from(tmp_path: Path) -> None:
    plain, later = tmp_path / "plain", tmp_path / "later"
    run_training(recipe(average=3), files(tmp_path), plain)
    run_training(recipe(average=3, rdrop=2.0, rdrop_from=8), files(tmp_path), later)
    checkpoint = Path("checkpoints") / "00000008" / "weights.safetensors"
    assert (plain / checkpoint).read_bytes() == (later / checkpoint).read_bytes()
    assert weights(plain) != weights(later)


def test_metrics_hold_every_step_once_after_a_resume(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train_until(6, tmp_path, out)
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "lo')
    run_training(recipe(), files(tmp_path), out)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))


def test_a_finished_run_returns_its_scores_at_once(tmp_path: Path) -> None:
    out = tmp_path / "run"
    first = run_training(recipe(), files(tmp_path), out)
    before = (out / "metrics.jsonl").stat().st_mtime_ns
    assert run_training(recipe(), files(tmp_path), out) == first
    assert (out / "metrics.jsonl").stat().st_mtime_ns == before
    loaded = load_folder(out)
    assert loaded.task == "translate" and loaded.scores == first


@pytest.mark.parametrize("damage", ["missing", "cut off", "empty", "no config"])
def test_a_run_with_scores_but_without_its_model_finishes_again(
    tmp_path: Path, damage: str
) -> None:
    """Earlier versions wrote scores.json first: a kill then left no model, for ever."""
    out = tmp_path / "run"
    first = run_training(recipe(), files(tmp_path), out)
    file, whole = out / "model.safetensors", weights(out)
    if damage == "no config":
        (out / "config.json").unlink()
    elif damage == "missing":
        file.unlink()
    else:
        file.write_bytes(b"" if damage == "empty" else whole[:-1])
    again = run_training(recipe(), files(tmp_path), out)
    assert weights(out) == whole and again["valid"] == first["valid"]
    assert load_folder(out).scores == again
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 13))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_the_scores_are_written_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    out, real = tmp_path / "run", Path.replace

    def replace(self: Path, target: Path) -> Path:
        if Path(target) == out / name and "checkpoints" in os.listdir(out):
            raise Killed
        return real(self, target)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Path, "replace", replace)
        run_training(recipe(), files(tmp_path), out)
    assert not (out / "scores.json").exists()
    scores = run_training(recipe(), files(tmp_path), out)
    assert load_folder(out).scores == scores
    assert not [path for path in out.rglob(".*") if path.name.startswith(".")]


def test_a_second_process_is_told_who_writes(tmp_path: Path) -> None:
    out = tmp_path / "run"

    def watch(progress: Progress) -> None:
        if progress.step == 2:
            with pytest.raises(LockedError, match=f"is being written by process {os.getpid()} on"):
                run_training(recipe(), files(tmp_path), out)

    run_training(recipe(), files(tmp_path), out, watch)
    assert not (out / ".lock").exists()


def test_what_a_process_left_that_was_killed_after_the_end_is_removed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    scores = run_training(recipe(), files(tmp_path), out)
    (out / "tokens" / "train").mkdir(parents=True)
    (out / ".lock").touch()
    assert run_training(recipe(), files(tmp_path), out) == scores
    assert not (out / "tokens").exists() and not (out / ".lock").exists()
    (out / ".new-tokens").mkdir()
    assert run_training(recipe(), files(tmp_path), out) == scores
    assert not (out / ".new-tokens").exists()


def test_a_checkpoint_that_is_not_complete_is_not_continued_from(tmp_path: Path) -> None:
    """Earlier versions removed checkpoints file by file."""
    out, straight = tmp_path / "run", tmp_path / "straight"
    train_until(9, tmp_path, out)
    (out / "checkpoints" / "00000008" / "state.json").unlink()
    run_training(recipe(), files(tmp_path), out)
    run_training(recipe(), files(tmp_path), straight)
    assert weights(out) == weights(straight)


def test_a_run_of_an_earlier_version_continues_and_one_of_a_later_is_named(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train_until(5, tmp_path, out)
    values = json.loads((out / "run.json").read_text())
    assert values.pop("weft") == 1
    (out / "run.json").write_text(json.dumps({**values, "weft": 2}))
    with pytest.raises(DataError, match="says weft = 2: this version reads 1. Use the Weft"):
        run_training(recipe(), files(tmp_path), out)
    (out / "run.json").write_text(json.dumps(values))
    run_training(recipe(), files(tmp_path), out)


def test_changed_arguments_are_listed_and_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train_until(5, tmp_path, out)
    with pytest.raises(UsageError) as caught:
        run_training(recipe(steps=13, seed=2), files(tmp_path), out)
    text = str(caught.value)
    assert "recipe.train.steps was 12 and is now 13" in text
    assert "recipe.train.seed was 1 and is now 2" in text
    source, _ = write_pairs(tmp_path)
    source.write_text(source.read_text().replace("a", "b"))
    changed = files(tmp_path)
    source.write_text(source.read_text().replace("b", "c"))
    with pytest.raises(UsageError, match="files.train"):
        run_training(recipe(), changed, out)


def test_early_stopping_ends_a_run_before_its_last_step(tmp_path: Path) -> None:
    # a learning rate of next to nothing: the validation loss never falls by being trained longer
    settings = recipe(
        steps=40, evaluate_every=1, patience=3, optimiser={"lr": 1e-12}, save_every=100
    )
    scores = run_training(settings, files(tmp_path), tmp_path / "run")
    assert scores["steps"] < 40


def test_a_loss_that_is_not_finite_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = recipe(
        steps=400, optimiser={"lr": 1e30, "clip": None}, schedule={"kind": "constant", "warmup": 0}
    )
    with pytest.raises(NonFiniteLossError, match=r"the loss of step \d+ is (nan|inf).*lower"):
        run_training(settings, files(tmp_path), out)
    for path in (out / "checkpoints").glob("*/weights.safetensors"):
        assert load_file(path)


def test_weights_that_are_not_finite_are_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real = tmp_path / "run", Trainer.train_step

    def overflow(self: Trainer, batches: Any) -> tuple[float, int]:
        loss = real(self, batches)
        if self.state.step == 8:
            with torch.no_grad():
                next(self.model.parameters())[0] = float("inf")
        return loss

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", overflow)
        expected = (
            r"the weights after step 8 are not finite: \S+ contains NaN or infinity. They are"
        )
        with pytest.raises(NonFiniteLossError, match=expected) as caught:
            run_training(recipe(), files(tmp_path), out)
    assert "The last checkpoint with finite weights is of step 4." in str(caught.value)
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["00000004"]


def test_a_checkpoint_of_infinities_is_named(tmp_path: Path) -> None:
    """Earlier versions saved it, and called it untouched."""
    out = tmp_path / "run"
    train_until(9, tmp_path, out)
    path = out / "checkpoints" / "00000008"
    broken = {
        name: torch.full_like(tensor, float("inf"))
        for name, tensor in load_file(path / "weights.safetensors").items()
    }
    save_file(broken, path / "weights.safetensors")
    with pytest.raises(NonFiniteLossError, match="the loss of step 9 is nan") as caught:
        run_training(recipe(), files(tmp_path), out)
    text = f"The last checkpoint with finite weights is of step 4. Remove {path}."
    assert text in str(caught.value)


def test_a_full_disk_leaves_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real = tmp_path / "run", checkpointing.save_file

    def full(tensors: dict[str, torch.Tensor], path: Path) -> None:
        if "00000008" in str(path):
            Path(path).write_bytes(b"half a file")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real(tensors, path)

    monkeypatch.setattr(checkpointing, "save_file", full)
    with pytest.raises(OSError, match="No space left"):
        run_training(recipe(), files(tmp_path), out)
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["00000004"]
    monkeypatch.setattr(checkpointing, "save_file", real)
    straight = tmp_path / "straight"
    run_training(recipe(), files(tmp_path), out)
    run_training(recipe(), files(tmp_path), straight)
    assert weights(out) == weights(straight)


def test_signals_save_first(tmp_path: Path) -> None:
    out = tmp_path / "run"

    def watch(progress: Progress) -> None:
        if progress.step == 6:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(StoppedBySignal) as caught:
        run_training(recipe(), files(tmp_path), out, watch)
    assert caught.value.exit_code == 143
    assert (out / "checkpoints" / "00000006").is_dir()
    straight = tmp_path / "straight"
    run_training(recipe(), files(tmp_path), out)
    run_training(recipe(), files(tmp_path), straight)
    assert weights(out) == weights(straight)


def start(folder: Path, out: Path, steps: int) -> subprocess.Popen[bytes]:
    source, target = write_pairs(folder)
    settings = folder / "recipe.toml"
    settings.write_text(RECIPE)
    arguments = ["train", settings, "--pairs", source, target, "--valid", source, target]
    arguments += ["--out", out, "--set", f"train.steps={steps}"]
    command = [sys.executable, "-m", "weft", *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def kill_until_done(folder: Path, out: Path, steps: int, kills: int, seed: int) -> int:
    """Kill the process at random moments, then let it end; how often a kill really hit."""
    rng, hits = random.Random(seed), 0
    for _ in range(kills):
        process = start(folder, out, steps)
        before = progress_of(out)
        # some kills fall into the start, most into the work after it
        if rng.random() < 0.85:
            wait_for(lambda before=before: progress_of(out) != before, process)
        time.sleep(rng.random() * 0.25)
        hits += process.poll() is None
        process.kill()
        process.wait()
        if (out / "model.safetensors").exists():
            break
    assert start(folder, out, steps).wait() == 0
    return hits


def progress_of(out: Path) -> tuple[int, int]:
    metrics = out / "metrics.jsonl"
    return (metrics.stat().st_mtime_ns, metrics.stat().st_size) if metrics.exists() else (0, 0)


def wait_for(is_true, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while not is_true() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.002)


def compare_with_a_straight_run(folder: Path, steps: int, kills: int, seed: int) -> int:
    straight, broken = folder / "straight", folder / "broken"
    assert start(folder, straight, steps).wait() == 0
    hits = kill_until_done(folder, broken, steps, kills, seed)
    assert weights(straight) == weights(broken)
    scores = [json.loads((out / "scores.json").read_text()) for out in (straight, broken)]
    assert scores[0]["valid"] == scores[1]["valid"]
    return hits


@pytest.mark.timeout(400)  # three processes, of which each imports torch
def test_a_killed_process_ends_with_the_same_weights(tmp_path: Path) -> None:
    assert compare_with_a_straight_run(tmp_path, steps=60, kills=3, seed=1) >= 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_process_killed_at_twenty_random_moments_ends_with_the_same_weights(
    tmp_path: Path,
) -> None:
    assert compare_with_a_straight_run(tmp_path, steps=900, kills=30, seed=2) >= 20
