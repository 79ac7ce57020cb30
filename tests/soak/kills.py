"""A training run that SIGKILL ends at a random time, then the same call again: every file is as if
nothing had happened, except for times."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.training.material import files, recipe
from weft.checkpoint.weft_folder import CARD_FILE
from weft.training.run import run_training

RUNS: list[dict[str, Any]] = [
    {},
    {"rdrop": 2.0, "bpe_dropout": 0.2},
    {"optimiser": {"kind": "muon"}, "accumulate": 2},
]
TIME_FIELDS = frozenset(("seconds", "time", "tokens_per_second", "speed", "elapsed"))


@dataclass(frozen=True)
class UninterruptedRun:
    """The run that all others are compared with."""

    out: Path
    seconds: float
    """Time that it took."""


def run_case(seed: int) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads do not survive a fork
    rng = random.Random(seed)
    changes = rng.randrange(len(RUNS))
    expected = uninterrupted(changes)
    # of the same name and depth as the other run: the model card has the name of the folder, and
    # run.json the paths of the data relative to it
    data = expected.out.parents[1]
    out = data / f"case-{seed}" / expected.out.name
    out.parent.mkdir()
    try:
        train(changes, data, out, kill_after=rng.uniform(0, expected.seconds * 1.1))
        train(changes, data, out)
        check_same_files(expected.out, out)
    finally:
        shutil.rmtree(out.parent)


@cache
def uninterrupted(changes: int) -> UninterruptedRun:
    folder = Path(tempfile.mkdtemp(prefix="weft-soak-"))
    out = folder / "whole" / "run"
    out.parent.mkdir()
    start = time.monotonic()
    train(changes, folder, out)
    return UninterruptedRun(out, time.monotonic() - start)


def train(changes: int, data: Path, out: Path, kill_after: float | None = None) -> None:
    """Train on the files in `data`, in a process forked from this one, which has torch already."""

    def run() -> None:
        settings = {"steps": 24, **RUNS[changes]}
        run_training(recipe(**settings), files(data), out)

    pid = fork(run)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code == 0 or (kill_after is not None and code == -signal.SIGKILL), f"exit code {code}"


def fork(function: Callable[[], None]) -> int:
    """Call a function in a forked process; returns its id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        function()
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def check_same_files(expected: Path, actual: Path) -> None:
    names = [sorted(str(p.relative_to(f)) for p in f.rglob("*")) for f in (expected, actual)]
    assert names[0] == names[1], f"only in one of the two: {set(names[0]) ^ set(names[1])}"
    for name in names[0]:
        if (expected / name).is_file():
            one, other = comparable(expected / name), comparable(actual / name)
            values = f": {one} and {other}"[:2000] if name.endswith(".json") else ""
            assert one == other, f"{name} differs{values}"


def comparable(path: Path) -> Any:
    """The content of a file without its times."""
    if path.suffix == ".jsonl":
        return [without_times(json.loads(line)) for line in path.read_text().splitlines()]
    if path.suffix == ".json":
        return without_times(json.loads(path.read_text()))
    if path.name == CARD_FILE:
        return re.sub(r"[\d,.]+ s;", "", path.read_text())
    if path.name == "SHA256SUMS":
        return [line for line in path.read_text().splitlines() if is_sum_without_times(line, path)]
    return path.read_bytes()


def is_sum_without_times(line: str, path: Path) -> bool:
    """Whether a line is about a file without times; that it is right is checked for any file."""
    digest, name = line.split(maxsplit=1)
    name = name.lstrip("*")
    assert hashlib.sha256((path.parent / name).read_bytes()).hexdigest() == digest, line
    return not name.endswith((".json", ".jsonl", CARD_FILE))


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k not in TIME_FIELDS}
    return [without_times(item) for item in value] if isinstance(value, list) else value
