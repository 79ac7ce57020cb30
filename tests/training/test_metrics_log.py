"""metrics.jsonl and TensorBoard hold each step once, whatever a killed process left behind."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from weft.core.errors import DiskError
from weft.training.loop import Progress
from weft.training.metrics_log import MetricsLog
from weft.training.run import run_training

from .material import files, recipe


class StopError(Exception):
    """Ends a run in the middle of its work."""


def steps_of(path: Path, name: str = "loss") -> list[int]:
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [line["step"] for line in lines if name in line]


def train_until(folder: Path, step: int, is_evaluation: bool = False, **changes: object) -> None:
    def watch(progress: Progress) -> None:
        if progress.step == step and bool(progress.scores) == is_evaluation:
            raise StopError

    with pytest.raises(StopError):
        run_training(recipe(**changes), files(folder), folder / "run", watch)


def test_a_run_stopped_before_its_first_checkpoint_starts_with_no_lines(tmp_path: Path) -> None:
    train_until(tmp_path, 3)
    assert steps_of(tmp_path / "run") == [1, 2, 3]
    run_training(recipe(), files(tmp_path), tmp_path / "run")
    assert steps_of(tmp_path / "run") == list(range(1, 13))


def test_an_evaluation_that_is_repeated_is_listed_once(tmp_path: Path) -> None:
    train_until(tmp_path, 4, is_evaluation=True)
    assert steps_of(tmp_path / "run", "valid_loss") == [4]
    run_training(recipe(), files(tmp_path), tmp_path / "run")
    assert steps_of(tmp_path / "run", "valid_loss") == [4, 8, 12]
    assert steps_of(tmp_path / "run") == list(range(1, 13))


@pytest.mark.parametrize(
    "end",
    ['{"step": 3, "lo', '{"step": 3, "loss": 1.0}', "\n\n", '{"loss": 1}\n', "\0\0\0", "\xff"],
)
def test_whatever_a_line_was_cut_off_at_the_next_is_whole(tmp_path: Path, end: str) -> None:
    log = MetricsLog(tmp_path)
    log.append(1, {"loss": 3.0})
    log.append(2, {"loss": 2.0})
    with log.path.open("ab") as file:
        file.write(end.encode("latin-1"))
    log.start(2, 0)
    log.append(3, {"loss": 1.0})
    assert steps_of(tmp_path) == [1, 2, 3]


def test_a_full_disk_leaves_no_part_of_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MetricsLog(tmp_path)
    log.append(1, {"loss": 3.0})
    calls = 0

    def fill_up(file: io.FileIO, content: bytes) -> int:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError(28, "No space left on device")
        return real(file, content[:10])

    class FullDisk(io.FileIO):
        """A file on a disk that fills up after ten bytes."""

        write = fill_up

    real = io.FileIO.write
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda path, *_, **__: FullDisk(path, "a"))
        with pytest.raises(DiskError, match="metrics.jsonl: cannot be written .No space left"):
            log.append(2, {"loss": 2.0})
    log.append(2, {"loss": 2.0})
    assert steps_of(tmp_path) == [1, 2]


def test_tensorboard_shows_each_step_once_after_a_resume(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for step, is_evaluation in ((2, False), (4, True), (7, False)):
        train_until(tmp_path, step, is_evaluation, tensorboard=True)
    run_training(recipe(tensorboard=True), files(tmp_path), tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(1, 13))
    assert [event.step for event in events.Scalars("valid_loss")] == [4, 8, 12]
