"""Attention kernels over patterns and lengths: workloads -> rows of seconds and peak extra bytes.

Batch 1, float32, self-attention; the mask is created in every run, so that what a kernel derives
from it is part of its time. "forward" includes saving what the backward pass needs;
"forward+backward" adds the gradients of q, k and v. Extra bytes are those beyond the inputs and
include the results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from weft.bench.measure import in_children, machine, measure_alternately, peak_bytes
from weft.core.errors import UsageError
from weft.core.kv_spec import DenseView
from weft.core.registry import pick
from weft.nn.attention.base import AttentionCall
from weft.nn.attention.kernels import KERNELS
from weft.nn.attention.masks import Causal, Documents, Global, Window, dilated, strided
from weft.nn.attention.masks.algebra import MaskBase

PATTERNS: dict[str, Callable[[int], MaskBase]] = {
    "causal": lambda length: Causal(),
    "window": lambda length: Window(256) & Causal(),
    "dilated": lambda length: dilated(256, 4) & Causal(),
    "strided": lambda length: strided(128) & Causal(),
    "global": lambda length: (Window(256) | Global(16)) & Causal(),
    "documents": lambda length: Documents(torch.arange(length)[None] // 700) & Causal(),
}
"""Window 256; the same with gaps of 4; stride 128; 16 global tokens; documents of 700 tokens."""

PASSES = ("forward", "forward+backward")
MAX_SCORES = 2**25
"""Scores (heads x length x length) up to which the reference runs: it allocates several copies."""


@dataclass(frozen=True)
class AttentionWorkload:
    """One kernel on one pattern and length; the same seed gives the same inputs."""

    kernel: str
    pattern: str
    length: int
    heads: int = 8
    head_size: int = 64
    threads: int = 2
    seed: int = 0

    @property
    def fits(self) -> bool:
        """Whether it can run in ordinary memory."""
        return self.kernel != "reference" or self.heads * self.length**2 <= MAX_SCORES


@dataclass(frozen=True)
class AttentionTiming:
    """One measurement."""

    kernel: str
    pattern: str
    length: int
    passed: str
    seconds: float
    peak_bytes: int

    def to_dict(self) -> dict[str, Any]:
        return {"pass" if key == "passed" else key: value for key, value in asdict(self).items()}


def workloads(
    kernels: Sequence[str], patterns: Sequence[str], lengths: Sequence[int], **sizes: int
) -> list[AttentionWorkload]:
    """Every combination that fits; a UsageError for unknown names and lengths below 1."""
    for name in kernels:
        pick(KERNELS, name, "attention kernel")
    for name in patterns:
        pick(PATTERNS, name, "attention pattern")
    for what, number in (*(("length", length) for length in lengths), *sizes.items()):
        if number < 1 and what != "seed":
            raise UsageError(f"{what} is {number}: it must be at least 1. Use a larger number.")
    every = [
        AttentionWorkload(k, p, n, **sizes) for n in lengths for p in patterns for k in kernels
    ]
    fitting = [workload for workload in every if workload.fits]
    if not fitting:
        raise UsageError(
            f"nothing to measure: kernels {list(kernels)}, patterns {list(patterns)} and lengths "
            f"{list(lengths)} leave no workload that fits. Use shorter lengths or another kernel."
        )
    return fitting


def measure(
    tasks: Sequence[AttentionWorkload],
    repeats: int = 3,
    step: Callable[[int], None] = lambda amount: None,
) -> list[AttentionTiming]:
    """Two rows for each workload, one for each pass. `step(1)` is called after each run."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(tasks[0].threads)
        run(
            AttentionWorkload("flash", "causal", 64)
        )  # the first call of a process starts its threads
        seconds = measure_alternately(tasks, run, repeats, step)
    finally:
        torch.set_num_threads(before)
    return list(rows(tasks, seconds, with_progress(in_children(tasks, peaks), step)))


def with_progress(results: Iterable[Any], step: Callable[[int], None]) -> Iterable[Any]:
    for result in results:
        step(1)
        yield result


def rows(
    tasks: Sequence[AttentionWorkload], seconds: list[list[float]], memory: Iterable[Sequence[int]]
) -> Iterable[AttentionTiming]:
    for task, times, peaks in zip(tasks, seconds, memory, strict=True):
        for name, second, peak in zip(PASSES, times, peaks, strict=True):
            yield AttentionTiming(task.kernel, task.pattern, task.length, name, second, peak)


def run(
    workload: AttentionWorkload, mark: Callable[[], float] = time.perf_counter
) -> tuple[float, float]:
    """The increase of `mark` after each pass: seconds of a clock, bytes of peak memory."""
    *inputs, dout = make_inputs(workload)
    kernel, mask = KERNELS[workload.kernel], PATTERNS[workload.pattern](workload.length)
    begin = mark()
    out, _ = kernel(AttentionCall(inputs[0], DenseView(*inputs[1:]), mask))
    middle = mark()
    # kept until the end: gradients are a result and part of the peak
    grads = torch.autograd.grad(out, inputs, dout)
    end = mark()
    assert len(grads) == 3, f"{len(grads)} gradients for q, k and v"
    return middle - begin, end - begin


def peaks(workload: AttentionWorkload) -> tuple[int, int]:
    """Peak extra bytes of both passes. Only valid in a new process."""
    torch.set_num_threads(workload.threads)
    # setup of a first call is not counted; up to 64 tokens another kernel would be used
    run(AttentionWorkload(workload.kernel, workload.pattern, 96))
    forward, both = run(workload, mark=peak_bytes)
    return int(forward), int(both)


def make_inputs(workload: AttentionWorkload) -> list[Tensor]:
    """q, k and v, which require gradients, and the gradient of out."""
    generator = torch.Generator().manual_seed(workload.seed)
    shape = (1, workload.length, workload.heads, workload.head_size)
    tensors = [torch.randn(shape, generator=generator) for _ in range(4)]
    return [*(x.requires_grad_() for x in tensors[:3]), tensors[3]]


def to_json(
    rows: Sequence[AttentionTiming], task: AttentionWorkload, repeats: int
) -> dict[str, Any]:
    """The rows, and everything needed to reproduce them."""
    sizes = {"batch": 1, "heads": task.heads, "head_size": task.head_size, "dtype": "float32"}
    settings = {**sizes, "repeats": repeats, "seed": task.seed}
    machine_info = {**machine(), "threads": task.threads}
    return {
        "rows": [row.to_dict() for row in rows],
        "settings": settings,
        "machine": machine_info,
    }
