"""`ContentionMeter`: whether other processes take CPU time from this one, and what threads do then.

    contention().update()       after each step of an engine or of training

The signal is the time that the threads of this process were ready to run but waited for a CPU:
`run_delay` of Linux's schedstat, or involuntary context switches on other systems. While there is
contention, threads sleep at barriers almost at once instead of after GOMP_SPINCOUNT iterations
(csrc/threads.cpp): the CPU on which one spins is needed by the thread it waits for. Sleeping costs
a wakeup at each barrier, which on an idle machine is slower than spinning.
"""

from __future__ import annotations

import functools
import math
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

from weft.core.openmp import wait_policy
from weft.native.library import set_throttled

METER_SECONDS = 0.1
"""The contention is measured over at least this time."""
CONTENDED = 0.4
"""Seconds of waiting for a CPU, of all threads, per second, at which contention begins: one or two
busy processes beside two threads on two CPUs cause 0.6 to 1. The event loop of a server and its
client cause up to 0.25 on an idle machine, where threads that sleep are a fifth slower."""
STILL_CONTENDED = 0.2
"""At less than this it ends: threads that sleep at barriers wait less, as they use less time."""
QUIET_SECONDS = 1.0
"""Contention is over after this time without it."""
RECHECK_SECONDS = 10.0
"""After this time threads spin again while the contention is measured, so that the waiting caused
by wakeups alone cannot keep them from it."""
SWITCH_DELAY_NS = 3_000_000
"""What an involuntary context switch counts where the kernel does not report waiting times."""

TASKS = Path("/proc/self/task")


@functools.cache
def contention() -> ContentionMeter:
    """The meter of this process: how threads wait is a property of the process as well."""
    is_adaptive = wait_policy() == "adaptive"
    return ContentionMeter(throttle=set_throttled if is_adaptive else lambda is_on: None)


def run_delay_ns() -> int:
    """Nanoseconds for which the threads of this process were ready to run but waited for a CPU."""
    try:
        return sum(thread_delay_ns(name) for name in os.listdir(TASKS))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw * SWITCH_DELAY_NS


def thread_delay_ns(name: str) -> int:
    try:
        fields = (TASKS / name / "schedstat").read_text().split()
    except (FileNotFoundError, ProcessLookupError):  # the thread has ended
        return 0
    return int(fields[1])


class ContentionMeter:
    """Measures contention, and lets threads sleep at barriers while there is any."""

    def __init__(
        self,
        delay_ns: Callable[[], int] = run_delay_ns,
        now: Callable[[], float] = time.perf_counter,
        throttle: Callable[[bool], None] = set_throttled,
    ) -> None:
        self.delay_ns, self.now, self.throttle = delay_ns, now, throttle
        self.measured_at, self.last_ns = now(), delay_ns()
        self.is_contended, self.contended_at = False, -math.inf
        self.num_quiet = 0
        """How often contention has ended."""
        self.throttled_at: float | None = None

    def update(self) -> None:
        """Measure if METER_SECONDS have passed; otherwise it only reads the clock."""
        now = self.now()
        seconds = now - self.measured_at
        if seconds < METER_SECONDS:
            return
        before, self.last_ns = self.last_ns, self.delay_ns()
        was_recent = self.measured_at - self.contended_at < QUIET_SECONDS
        self.measured_at = now
        limit = CONTENDED if self.throttled_at is None else STILL_CONTENDED
        # a thread that has ended takes its time with it
        self.is_contended = max(0, self.last_ns - before) * 1e-9 > limit * seconds
        if self.is_contended:
            self.contended_at = now
        is_quiet = now - self.contended_at >= QUIET_SECONDS
        self.num_quiet += was_recent and is_quiet
        self.choose_waiting(is_quiet, now)

    def choose_waiting(self, is_quiet: bool, now: float) -> None:
        """Throttle as soon as there is contention, until it is over or has to be checked."""
        if self.throttled_at is None:
            if self.is_contended:
                self.throttled_at = now
                self.throttle(True)
        elif is_quiet or now - self.throttled_at >= RECHECK_SECONDS:
            self.throttled_at = None
            self.throttle(False)
