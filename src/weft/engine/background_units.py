"""`BackgroundUnits`: long computations in units of a few milliseconds, between engine steps.

    future = units.submit(generator)        any thread; the generator's return value is the result
    units.run_one()                         engine thread: one unit of the next job, round robin

A generator runs up to its next `yield` at a time. Jobs take turns, one unit each, and the engine
thread runs one unit between two steps, so that running requests are delayed by one unit per step,
however many jobs there are. A cancelled future closes its generator before its next unit.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")
Units = Generator[None, None, T]
"""A generator that yields after each unit of work and returns the result."""


@dataclass(eq=False)
class UnitJob:
    units: Units[Any]
    future: Future[Any]


class BackgroundUnits:
    """The jobs of one thread. `submit` may be called from any thread, all other methods from that
    one."""

    def __init__(self) -> None:
        self.jobs: deque[UnitJob] = deque()
        self.num_units = 0
        """Number of units that were run so far."""

    @property
    def has_work(self) -> bool:
        return bool(self.jobs)

    def submit(self, units: Units[T]) -> Future[T]:
        """Queue a job."""
        future: Future[T] = Future()
        self.jobs.append(UnitJob(units, future))
        return future

    def run_one(self) -> bool:
        """Run one unit of the first job and move the job to the end. Returns False if there is no
        job."""
        if not self.jobs:
            return False
        job = self.jobs.popleft()
        if job.future.cancelled():
            close(job)
            return True
        self.num_units += 1
        try:
            next(job.units)
            self.jobs.append(job)
        except StopIteration as stop:
            if job.future.set_running_or_notify_cancel():
                job.future.set_result(stop.value)
        except BaseException as error:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(error)
        return True

    def cancel_all(self) -> None:
        """Cancel all jobs, because the thread ends."""
        while self.jobs:
            job = self.jobs.popleft()
            job.future.cancel()
            close(job)


def run_all(units: Units[T]) -> Future[T]:
    """Run a job at once."""
    alone = BackgroundUnits()
    future = alone.submit(units)
    while alone.run_one():
        pass
    return future


def close(job: UnitJob) -> None:
    """End the generator of a cancelled job."""
    try:
        job.units.close()
    except Exception:
        log.exception("job=cancelled reason='its generator raised while it was closed'")
