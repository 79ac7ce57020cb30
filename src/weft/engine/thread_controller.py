"""`ThreadController`: how many threads a step uses, chosen from measured step times.

    controller = ThreadController()
    with controller.step(num_tokens):       # in the thread that runs the step
        ...

A step on two threads has some hundred barriers. Where other processes use the CPUs, a thread waits
at each of them until the scheduler runs the other thread, and one thread alone is several times as
fast. Results do not depend on the number of threads, so each step may use another one.

For each size of a step (its tokens, to two binary digits) and number of threads, the controller has
an average of the seconds per token, and uses the number with the lowest. The estimate of a number
that is not in use decays with time, so that it is measured again: the later, the worse it was.
Fewer threads are tried only under contention (native/contention.py), so that an idle machine pays
nothing.

Numbers are base, base/2, base/4, ..., 1, where base is torch's setting; of these, the current one
and its two neighbors are compared.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from weft.core.openmp import wait_policy
from weft.native.contention import ContentionMeter, contention
from weft.native.library import set_num_threads

FORGET_SECONDS = 4.0
"""An estimate that is not renewed falls to 1/e of its value in this time."""
PROBE_SHARE = 0.03
"""Time that may be spent on steps with a number of threads that is probably slower."""
NUM_AVERAGED = 8
"""Steps of the moving average."""
MIN_STEPS = 4
"""Steps with one number of threads before another is used, unless they are CLEARLY slower: single
steps vary a lot while other processes use the CPUs."""
CLEARLY = 2.0
ADVANTAGE = 0.95
"""Another number of threads is used if its steps take at most this part of the time."""
OUTLIER = 1.5
"""Without contention a step counts at most this many times the average: a garbage collection or a
page fault is no reason to change the number of threads."""


@dataclass
class StepTime:
    """Seconds per token with one number of threads, a moving average."""

    seconds: float = 0.0
    num: int = 0
    """Steps in the average."""
    updated_at: float = -math.inf
    step_seconds: float = 0.0
    """Time of the last step."""

    def add(self, seconds: float, num_tokens: int, now: float) -> None:
        """Record a step, in seconds per token."""
        if now - self.updated_at > FORGET_SECONDS / 4:
            self.num = 0  # the machine may have changed
        self.num = min(self.num + 1, NUM_AVERAGED)
        self.seconds += (seconds - self.seconds) / self.num
        self.updated_at, self.step_seconds = now, seconds * num_tokens

    def expected(self, now: float) -> float:
        """The average, decayed: the longer ago a step was, the sooner it is measured again."""
        if now - self.updated_at < self.step_seconds / PROBE_SHARE:
            return self.seconds
        return self.seconds * math.exp((self.updated_at - now) / FORGET_SECONDS)


@dataclass
class StepSize:
    """Measurements of steps of one size."""

    count: int
    """Threads of the last step."""
    num_steps: int = 0
    """Steps since this number was chosen."""
    times: dict[int, StepTime] = field(default_factory=dict)
    """By number of threads."""

    def choose(self, base: int, is_contended: bool, now: float) -> int:
        """Threads of the next step."""
        if self.count > base or self.count not in self.times:
            self.count = base
            return base
        counts = (self.count, min(base, 2 * self.count), max(1, self.count // 2))
        best = min(counts, key=lambda count: self.cost(count, is_contended, now))
        if best != self.count and self.can_leave():
            self.count, self.num_steps = best, 0
        self.num_steps += 1
        return self.count

    def can_leave(self) -> bool:
        """Whether the current number of threads was measured often enough to change it."""
        lowest = min(times.seconds for times in self.times.values())
        is_slow = self.times[self.count].seconds > CLEARLY * lowest
        return self.num_steps >= MIN_STEPS or is_slow or len(self.times) == 1

    def cost(self, count: int, is_contended: bool, now: float) -> float:
        """Expected seconds per token; 0: not measured yet."""
        if count < self.count and not is_contended:
            return math.inf
        if count not in self.times:
            return 0.0
        times = self.times[count]
        return times.seconds * ADVANTAGE if count == self.count else times.expected(now)

    def add(self, seconds: float, num_tokens: int, is_contended: bool, now: float) -> None:
        """Record a step with the chosen number of threads, in seconds per token."""
        times = self.times.setdefault(self.count, StepTime())
        if times.num and not is_contended:
            seconds = min(seconds, OUTLIER * times.seconds)
        times.add(seconds, num_tokens, now)

    def expire(self) -> None:
        """Let all numbers of threads but the current one be measured again."""
        for count, times in self.times.items():
            if count != self.count:
                times.updated_at = -math.inf


def rounded(num_tokens: int) -> int:
    """1, 2, 3, 4, 6, 8, 12, 16, ...: sizes at which the time per token is about the same."""
    shift = max(0, num_tokens.bit_length() - 2)
    return num_tokens >> shift << shift


class ThreadController:
    """Chooses the threads of each step, unless WEFT_WAIT asks for one way of waiting."""

    def __init__(
        self,
        now: Callable[[], float] = time.perf_counter,
        meter: ContentionMeter | None = None,
        set_threads: Callable[[int], None] = set_num_threads,
    ) -> None:
        self.now, self.set_threads = now, set_threads
        self.is_enabled = wait_policy() == "adaptive"
        self.meter = meter or contention()
        self.num_quiet = self.meter.num_quiet
        self.sizes: dict[int, StepSize] = {}

    @contextmanager
    def step(self, num_tokens: int) -> Iterator[None]:
        """Run a step of so many tokens, all of its forward passes counted."""
        base = torch.get_num_threads()
        if base == 1 or not self.is_enabled or num_tokens == 0:
            yield
            return
        size = self.sizes.setdefault(rounded(num_tokens), StepSize(base))
        begin = self.now()
        count = size.choose(base, self.meter.is_contended, begin)
        if count != base:
            self.set_threads(count)
        try:
            yield
        finally:
            if count != base:
                self.set_threads(base)
        # not after an exception: the step was not completed
        now = self.now()
        size.add((now - begin) / num_tokens, num_tokens, self.meter.is_contended, now)
        self.meter.update()
        if self.meter.num_quiet > self.num_quiet:
            self.num_quiet = self.meter.num_quiet
            for one in self.sizes.values():
                one.expire()
