"""Measuring: tasks -> median seconds, peak bytes, and a description of the machine.

Seconds: tasks run alternately, and the median of each is used, so that a slow minute of the machine
affects all of them alike. Bytes: a new child process reads its own peak of resident memory before
and after, which includes what libraries allocate without torch. Unlike a profiler, nothing runs
beside what is measured.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import resource
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import torch

Task = TypeVar("Task")
Result = TypeVar("Result")

PRELOADED = ["torch", "weft.bench.attention"]
"""Modules imported once in the process from which children are forked."""


def measure_alternately(
    tasks: Sequence[Task],
    run: Callable[[Task], Sequence[float]],
    repeats: int,
    step: Callable[[int], None] = lambda amount: None,
) -> list[list[float]]:
    """For each task, the medians over `repeats` rounds of the numbers that `run` returns."""
    results: list[list[Sequence[float]]] = [[] for _ in tasks]
    for _ in range(repeats):
        for index, task in enumerate(tasks):
            results[index].append(run(task))
            step(1)
    return [
        [statistics.median(column) for column in zip(*rounds, strict=True)] for rounds in results
    ]


def in_children(tasks: Sequence[Task], run: Callable[[Task], Result]) -> Iterator[Result]:
    """`run(task)` for each task in a process of its own, one at a time; `run` is importable."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    # one task per child: memory left by an earlier task would hide what the next one needs
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as children:
        yield from children.map(run, tasks)


def peak_bytes() -> int:
    """Peak resident memory of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def machine() -> dict[str, Any]:
    """What a measured number depends on besides the code."""
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def processor_name() -> str:
    """Model name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
