"""The probe of a run: trainer and validation data -> measured seconds of a step and an evaluation.

Runs updates for some seconds with the model, optimizer and batches of the run, which are discarded
afterwards. The first updates are slower and do not count. A step is the median of the others.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

from weft.models.build import AnyModel
from weft.native.contention import contention
from weft.training.loop import Data, Trainer, validate

PROBE_SECONDS = 10.0
WARM_UP, MIN_STEPS = 2, 3
"""Number of first updates that do not count, and minimum number of measured ones."""


@dataclass(frozen=True)
class ProbeResult:
    """The measurements of a probe, and sizes of data and model."""

    step_seconds: float
    evaluation_seconds: float
    """Seconds for the loss on all validation data; 0.0: there are none."""
    epoch_tokens: int
    """Target tokens of one epoch."""
    epoch_steps: int
    num_parameters: int
    elapsed: float
    """Seconds since the command was started."""


def run_probe(
    trainer: Trainer,
    valid: Data | None,
    began: float,
    seconds: float = PROBE_SECONDS,
    now: Callable[[], float] = time.monotonic,
) -> ProbeResult:
    """Train the model of `trainer` for some seconds and measure it. The trainer must not be used
    afterwards."""
    data, accumulate = trainer.data, trainer.config.accumulate
    plan = data.plan(0)
    batches = itertools.cycle(grouped(plan, accumulate))
    trainer.model.train()
    times = list[float]()
    for number in itertools.count():
        rows = next(batches)
        trainer.state.step = number + 1
        begin = now()
        trainer.train_step(rows)
        contention().update()  # as in a run: beside busy processes, threads that spin lose most
        if number >= WARM_UP:
            times.append(now() - begin)
        if len(times) >= MIN_STEPS and sum(times) >= seconds:
            break
    evaluation = 0.0
    if valid is not None:
        begin = now()
        validate(trainer.model, trainer.loss_function, valid, trainer.distributed)
        evaluation = now() - begin
    return ProbeResult(
        median(times),  # another program may have slowed down some of them
        evaluation,
        sum(data.count_targets(0, rows) for rows in plan),
        -(-len(plan) // accumulate),
        count_parameters(trainer.model),
        now() - began,
    )


def grouped(plan: list[list[int]], accumulate: int) -> Iterator[list[list[int]]]:
    """The batches of each update."""
    for begin in range(0, len(plan), accumulate):
        yield plan[begin : begin + accumulate]


def count_parameters(model: AnyModel) -> int:
    return sum(weight.numel() for weight in model.parameters())
