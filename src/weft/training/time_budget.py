"""`TimeBudget`: how many steps a run of `train.minutes` has.

    after a probe of some seconds, and at each regular checkpoint:
    steps = step + (time left - time for the end of the run) / time of a step

The time of a step includes its share of evaluations and checkpoints. The end of the run is one more
checkpoint, an evaluation of the last step and one of each candidate for delivery.

Each new plan is stored in the state of the run as a pair (step, steps): after that step the run has
`steps` steps in all. A run with the same pairs in `train.replans` has the same learning rates, and
so the same bits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import fmean

Replans = Sequence[tuple[int, int]]
"""(step, steps), in order: after that step the run has so many steps in all."""

MIN_MINUTES = 2.0
"""Minimum: in a shorter run, reading the files, the probe and the end leave no time for
training."""
TARGET = 0.97
"""Share of the time that is planned; the rest is a reserve, as a run may end later than
expected."""
RECENT = 100
"""Number of recent steps whose mean duration is the estimate for the next ones."""
TOLERANCE = 0.01
"""Minimum relative change of the remaining steps for which a new plan is adopted."""


def steps_after(step: int, steps: int, replans: Replans) -> int:
    """Total number of steps of a run, by its plans up to `step`."""
    return next((planned for begin, planned in reversed(replans) if begin <= step), steps)


class TimeBudget:
    """The time of a run, and the measured times of its parts."""

    def __init__(
        self, seconds: float, began: float | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        """`began`: when the command was started, by the clock `now`."""
        self.seconds, self.now = seconds, now
        self.began = now() if began is None else began
        self.used_before = 0.0
        """Seconds that earlier processes of the run used, up to their last checkpoint."""
        self.step_seconds: deque[float] = deque(maxlen=RECENT)
        self.evaluation_seconds = 0.0
        """Duration of the last evaluation; the first ones take longer, because translations do not
        end yet."""
        self.save_seconds = 0.0

    @property
    def elapsed(self) -> float:
        return self.used_before + self.now() - self.began

    def plan(
        self, step: int, evaluate_every: int, save_every: int, num_candidates: int
    ) -> int | None:
        """Total number of steps that fit into the time; None: no step was measured."""
        if not self.step_seconds:
            return None
        end = self.save_seconds + (1 + num_candidates) * self.evaluation_seconds
        left = TARGET * self.seconds - self.elapsed - end
        each = fmean(self.step_seconds)
        each += self.evaluation_seconds / evaluate_every + self.save_seconds / save_every
        return step + max(1, int(left / each))


def is_worth_it(step: int, steps: int, planned: int) -> bool:
    """Whether a new plan differs enough from the old one."""
    return abs(planned - steps) > TOLERANCE * (steps - step)
