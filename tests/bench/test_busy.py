"""The workload `busy`: neighbors that are there and gone again, shares, and the engine's share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.engine.tiny import tiny_folder
from weft.bench.busy import (
    NEIGHBOR,
    busy_neighbors,
    busy_ratios,
    busy_rows,
    fair_share,
    measure_seconds,
)
from weft.bench.engine import EngineBench, measure
from weft.bench.peers.systems import INT8, WEFT
from weft.core.cpu_limits import available_cpus
from weft.native.library import native


def neighbors() -> list[psutil.Process]:
    children = psutil.Process().children()
    return [child for child in children if NEIGHBOR in child.cmdline()]


def test_neighbors_compute_until_the_block_ends() -> None:
    with busy_neighbors(2):
        (first, second) = neighbors()
        before = first.cpu_times().user + second.cpu_times().user
        deadline = time.monotonic() + 60
        while first.cpu_times().user + second.cpu_times().user < before + 0.05:
            assert time.monotonic() < deadline, "the neighbors do not compute"
        assert first.nice() == psutil.Process().nice()
    assert neighbors() == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_neighbors_end_with_an_error(error: type[BaseException]) -> None:
    with pytest.raises(error), busy_neighbors(1):
        assert len(neighbors()) == 1
        raise error
    assert neighbors() == []


def test_neighbors_end_when_the_benchmark_is_killed() -> None:
    code = (
        "import time\nfrom weft.bench.busy import busy_neighbors\n"
        "with busy_neighbors(1): print(flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (neighbor,) = psutil.Process(process.pid).children()
        os.kill(process.pid, signal.SIGKILL)
    neighbor.wait(timeout=60)


def test_the_fair_share_is_that_of_a_fair_scheduler() -> None:
    assert [fair_share(n, 2, 2) for n in (0, 1, 2, 8)] == [1.0, 2 / 3, 0.5, 0.2]
    assert fair_share(2, 2, 16) == 1.0 and fair_share(1, 1, 1) == 0.5


def test_rows_compare_rounds_of_the_same_minute() -> None:
    cpus = available_cpus()
    threads = cpus  # fair share with as many neighbors: one half
    seconds = {
        WEFT: {0: [1.0, 2.0, 1.0], cpus: [4.0, 8.0, 4.0]},
        "llama.cpp": {0: [1.0], cpus: [8.0]},
    }
    rows = busy_rows(seconds, 100, threads)
    assert [row["system"] for row in rows] == [WEFT, "llama.cpp"]
    assert rows[0]["idle_tokens_per_second"] == 100 and rows[0]["tokens_per_second"] == 25
    assert rows[0]["fair_tokens_per_second"] == 50 and rows[0]["share_reached"] == 0.5
    assert busy_ratios(rows) == {
        f"busy: weft, N = {cpus}/fair share": 0.5,
        f"busy: weft, N = {cpus}/llama.cpp": 2.0,
        f"busy: llama.cpp, N = {cpus}/fair share": 0.25,
    }


def test_every_run_has_its_neighbors() -> None:
    counts: list[int] = []

    def run() -> float:
        counts.append(len(neighbors()))
        return 1.0

    measured = measure_seconds({"a": run}, repeats=2, counts=(1, 2))
    assert measured == {"a": {0: [1.0, 1.0], 1: [1.0, 1.0], 2: [1.0, 1.0]}}
    assert counts == [0, 0, 1, 1, 2, 2] * 2, "one of two is not counted"


def test_a_tiny_model_beside_neighbors(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model", "decoder", max_len=64)
    bench = EngineBench(str(folder), ["busy"], [WEFT], tmp_path, 1, threads=1, scale=0.05)
    found = measure(bench, print)
    assert [row["workload"] for row in found["rows"]] == ["busy 1", "busy 2", "busy 4", "busy 8"]
    assert all(row["same_as_idle"] == 1.0 and row["share_reached"] > 0 for row in found["rows"])
    assert {goal["goal"] for goal in found["goals"]} == {
        f"busy: weft, N = {n}/fair share" for n in (1, 2, 4, 8)
    }
    assert INT8 not in {row["system"] for row in found["rows"]}


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.timeout(900)
@pytest.mark.skipif(available_cpus() < 2, reason="two threads on one CPU wait for each other")
@pytest.mark.skipif(native() is None, reason="needs the compiled kernels")
def test_decoding_keeps_half_of_its_fair_share_beside_two_busy_processes(tmp_path: Path) -> None:
    """20 % when threads spin at barriers. A decode step of this model takes some milliseconds."""
    settings = {"width": 512, "num_layers": 12, "max_len": 160, "vocab_size": 8000}
    folder = tiny_folder(tmp_path / "model", "decoder", **settings)
    bench = EngineBench(
        str(folder), ["busy"], [WEFT], tmp_path, 3, threads=2, neighbors=[available_cpus()]
    )
    (row,) = measure(bench, print)["rows"]
    assert row["same_as_idle"] == 1.0
    assert row["share_reached"] >= 0.5, row
