"""The workload `busy`: speed beside other processes that use the CPUs.

    fair share = idle rate * min(1, CPUs / (threads + N))

N neighbors of equal priority compute on one thread each. A fair scheduler gives every runnable
thread the same time, so a system with two threads on two CPUs should keep 2 / (2 + N) of its idle
rate. A system whose threads wait for each other keeps less; one whose single thread is more
efficient than two may keep more.

In each round all numbers of neighbors are measured after another, idle first, so that a share
relates two measurements of the same minute. A run that is not counted precedes each of them:
neither the change from one to the next nor its detection is measured.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from weft.bench.peers.systems import INT8, WEFT
from weft.core.cpu_limits import available_cpus

NEIGHBORS = (1, 2, 4, 8)

NEIGHBOR = """
import os, sys
print(flush=True)
while os.getppid() == int(sys.argv[1]):
    for _ in range(100000): pass
"""
"""The program of a neighbor. It ends by itself if the benchmark was killed."""

Run = Callable[[], float]
"""Runs the workload once; returns its seconds."""
Seconds = dict[str, dict[int, list[float]]]
"""By system and number of neighbors, for each round."""


@contextmanager
def busy_neighbors(num: int) -> Iterator[None]:
    """Let `num` processes use a CPU each until the block ends."""
    command = [sys.executable, "-I", "-S", "-c", NEIGHBOR, str(os.getpid())]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(num):
            processes.append(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            )
        for process in processes:
            assert process.stdout is not None, "no pipe"
            process.stdout.readline()  # it is running
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.communicate()


def fair_share(num_neighbors: int, threads: int, cpus: int) -> float:
    """The share of the idle rate that a fair scheduler leaves to a system."""
    return min(1.0, cpus / (threads + num_neighbors))


def measure_seconds(
    runs: Mapping[str, Run],
    repeats: int,
    counts: Sequence[int] = NEIGHBORS,
    step: Callable[[int], None] = lambda amount: None,
) -> Seconds:
    """Run all systems in turn, idle and with each number of neighbors, `repeats` times."""
    seconds: Seconds = {name: {count: [] for count in (0, *counts)} for name in runs}
    for _ in range(repeats):
        for count in (0, *counts):
            with busy_neighbors(count):
                for name, run in runs.items():
                    run()
                    seconds[name][count].append(run())
                    step(1)
    return seconds


def busy_rows(seconds: Seconds, num_tokens: int, threads: int) -> list[dict[str, Any]]:
    """A row for each system and number of neighbors."""
    cpus = available_cpus()
    rows = []
    for name, by_count in seconds.items():
        idle = num_tokens / statistics.median(by_count[0])
        for count in list(by_count)[1:]:
            fair = fair_share(count, threads, cpus)
            pairs = zip(by_count[0], by_count[count], strict=True)
            share = statistics.median(first / second for first, second in pairs)
            rows.append(
                {
                    "workload": f"busy {count}",
                    "system": name,
                    "tokens_per_second": num_tokens / statistics.median(by_count[count]),
                    "idle_tokens_per_second": idle,
                    "fair_tokens_per_second": idle * fair,
                    "share_reached": share / fair,
                    "neighbors": count,
                    "rounds": by_count[count],
                }
            )
    return rows


def busy_ratios(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The share that Weft reaches, and its speed relative to the other systems, by neighbors."""
    ratios: dict[str, float] = {}
    rates = {(row["neighbors"], row["system"]): row["tokens_per_second"] for row in rows}
    for row in rows:
        count, name = row["neighbors"], row["system"]
        ratios[f"busy: {name}, N = {count}/fair share"] = row["share_reached"]
        if name in (WEFT, INT8):
            for (neighbors, other), rate in rates.items():
                if neighbors == count and other not in (WEFT, INT8):
                    key = f"busy: {name}, N = {count}/{other}"
                    ratios[key] = row["tokens_per_second"] / rate
    return ratios
