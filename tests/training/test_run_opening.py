"""What is in the folder of a run when it is opened: only what is known to be incomplete is removed,
and whatever cannot be read is one sentence."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.faults.tracer import MISSING, has_strace
from weft.checkpoint.folder_files import is_finished
from weft.checkpoint.run_selection import is_better
from weft.core.errors import DataError, DiskError, UnreadableError, UsageError
from weft.training.checkpointing import RunState, list_incomplete
from weft.training.loop import Progress
from weft.training.metrics_log import MetricsLog, is_before
from weft.training.run import run_training

from .material import files, recipe

STATE, WEIGHTS, OPTIMIZER = "state.json", "weights.safetensors", "optimiser.safetensors"


class Killed(BaseException):
    """Simulates a kill."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `run`, killed at step 9, with checkpoints of steps 4 and 8."""
    folder = tmp_path_factory.mktemp("killed")

    def watch(progress: Progress) -> None:
        if progress.step == 9:
            raise Killed

    with pytest.raises(Killed):
        run_training(recipe(), files(folder), folder / "run", watch)
    return folder


@pytest.fixture
def out(killed: Path, tmp_path: Path) -> Path:
    shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The weights of the run without a kill."""
    folder = tmp_path_factory.mktemp("straight")
    run_training(recipe(), files(folder), folder / "run")
    return (folder / "run" / "model.safetensors").read_bytes()


def checkpoint(out: Path, step: int = 8) -> Path:
    return out / "checkpoints" / f"{step:08d}"


def contents(out: Path) -> dict[str, bytes]:
    """Everything in a run but its lock."""
    paths = (path for path in out.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(out)): path.read_bytes() for path in paths}


@contextmanager
def no_more_files() -> Iterator[None]:
    """Nothing can be opened: Too many open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


RESUME = """
import sys
from pathlib import Path
from tests.training.material import files, recipe
from weft.training.run import run_training
folder = Path(sys.argv[1])
try:
    run_training(recipe(), files(folder), folder / "run")
except ValueError as error:
    print(f"{type(error).__name__} {error}")
"""


@pytest.mark.timeout(120)  # a process that imports torch under strace
@pytest.mark.parametrize(("name", "error"), [(WEIGHTS, "EIO"), (STATE, "ESTALE")])
def test_a_passing_error_while_a_run_resumes_removes_nothing(
    out: Path, straight: bytes, name: str, error: str
) -> None:
    if not has_strace():
        pytest.skip(MISSING)
    before, file = contents(out), checkpoint(out) / name
    fault = f"inject=openat:error={error}:when=1"
    strace = ["strace", "-f", "-qq", "-o", os.devnull, "-P", str(file), "-e", fault]
    command = [*strace, "-e", "trace=openat", sys.executable, "-c", RESUME, str(out.parent)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    reason = os.strerror({"EIO": 5, "ESTALE": 116}[error])
    assert f"UnreadableError {file}: cannot be read ({reason})" in ended.stdout
    assert contents(out) == before
    run_training(recipe(), files(out.parent), out)
    assert (out / "model.safetensors").read_bytes() == straight


def test_what_cannot_be_opened_is_not_incomplete(out: Path) -> None:
    before = contents(out)
    with (
        no_more_files(),
        pytest.raises(UnreadableError, match=r"\(Too many open files\)\. Nothing"),
    ):
        list_incomplete(out)
    assert contents(out) == before and list_incomplete(out) == {}


def test_a_finished_model_that_cannot_be_read_is_not_called_unfinished(out: Path) -> None:
    run_training(recipe(), files(out.parent), out)
    with no_more_files(), pytest.raises(UnreadableError, match=r"model\.safetensors: cannot be re"):
        is_finished(out)


@pytest.mark.parametrize("name", [WEIGHTS, OPTIMIZER])
def test_a_checkpoint_whose_write_was_interrupted_is_removed(
    out: Path, straight: bytes, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    content = (checkpoint(out) / name).read_bytes()
    (checkpoint(out) / name).write_bytes(content[:-1])
    run_training(recipe(), files(out.parent), out)
    assert f"{checkpoint(out)}: removed, as it is not complete: {name} ends before" in caplog.text
    assert (out / "model.safetensors").read_bytes() == straight


def in_state(**changes: object) -> Callable[[Path], object]:
    def change(path: Path) -> object:
        values = {**json.loads((path / STATE).read_text()), **changes}
        return (path / STATE).write_text(json.dumps(values))

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (in_state(new=1), r"state\.json: new is 1: this name is not known\. The file is damaged"),
        (in_state(step="10"), r"state\.json: step is '10': it must be a valid integer\. The f"),
        (in_state(replans=5), r"state\.json: replans is 5: it must be a valid array\. The file"),
        (lambda path: (path / STATE).write_text("[1]"), r"state\.json: .* it holds a list, not s"),
        (lambda path: (path / STATE).write_text("{"), r"state\.json: .* it cannot be read as JSON"),
        (lambda path: (path / WEIGHTS).write_bytes(b"x" * 99), r"weights\.safetensors: this chec"),
        (lambda path: (path / OPTIMIZER).write_bytes(b""), r"optimiser\.safetensors: this checkp"),
        (lambda path: (path.parent / "\u00b2").mkdir(), r"\u00b2: is not the name of a checkpoint"),
        (lambda path: (path.parent / "20").mkdir(), r"20: is not the name of a checkpoint, which"),
        (lambda path: (path.parent / "00000020").touch(), r"cannot be read \(Not a directory\)"),
        (lambda path: (path / WEIGHTS).symlink_to("gone"), r"weights\.safetensors: there is no su"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_damaged_checkpoint_is_one_sentence_and_stays(
    out: Path, damage: Callable[[Path], object], message: str
) -> None:
    if "there is no" in message:  # a link to a disk that is not mounted
        (checkpoint(out) / WEIGHTS).unlink()
    damage(checkpoint(out))
    before = contents(out)
    with pytest.raises(DataError, match=message) as caught:
        run_training(recipe(), files(out.parent), out)
    assert "\n" not in str(caught.value) and str(out) in str(caught.value)
    assert contents(out) == before


def test_a_command_that_is_refused_removes_no_checkpoint(out: Path) -> None:
    (checkpoint(out) / STATE).unlink()
    before = contents(out)
    with pytest.raises(UsageError, match="holds a run with other settings"):
        run_training(recipe(seed=2), files(out.parent), out)
    assert contents(out) == before


def test_wrong_scores_of_a_finished_run_are_one_sentence(out: Path) -> None:
    run_training(recipe(), files(out.parent), out)
    (out / "scores.json").write_text('{"steps": 12, "changes": "x"}')
    with pytest.raises(DataError, match=r"scores\.json: changes is 'x': it must be a number"):
        run_training(recipe(), files(out.parent), out)


def test_a_write_that_cannot_open_its_file_names_it(out: Path) -> None:
    """EMFILE; before, only a disk that is full or fails was a DiskError."""
    metrics = MetricsLog(out)
    message = r"metrics\.jsonl: cannot be written \(Too many open files\).*`ulimit -n`"
    with no_more_files(), pytest.raises(DiskError, match=message):
        metrics.append(10, {"loss": 1.0})


def test_a_line_without_a_possible_step_is_no_line_of_a_run() -> None:
    lines = ['{"step": Infinity}', '{"step": NaN}', "[1]", '{"step": 3}']
    assert [is_before(line, 5, 5) for line in lines] == [False, False, False, True]


def test_an_evaluation_that_is_not_finite_is_never_the_best(tmp_path: Path) -> None:
    state = RunState(step=1)
    state.record_evaluation(math.nan, "loss", 3)
    assert (state.best_score, state.best_step, state.waits) == (None, 0, 1)
    for step, score in ((2, 4.0), (3, math.inf), (4, math.nan), (5, 3.0)):
        state.step = step
        state.record_evaluation(score, "loss", 3)
    assert (state.best_score, state.best_step, state.waits) == (3.0, 5, 0)
    earlier = tmp_path / STATE  # an earlier version has stored NaN
    earlier.write_text(json.dumps({"step": 4, "best_score": math.nan, "best_step": 2}))
    state = RunState.read(earlier)
    state.record_evaluation(9.0, "loss", None)
    assert (state.best_score, state.best_step) == (9.0, 4)
    assert is_better(1.0, math.nan, "bleu") and not is_better(math.inf, 1.0, "bleu")
