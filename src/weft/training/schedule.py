"""Learning-rate schedules: step -> factor on the peak learning rate. Pure functions of the step,
so resume needs no state.

inverse_sqrt  up over `warmup` steps, then down with 1 / sqrt(step)      Vaswani 2017
cosine        up, then half a cosine down to `floor` at the last step    Loshchilov 2017
wsd           up, level, then a straight line down over `decay`          warm-up, stable, decay; Hu
2024
constant      up, then level
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from pydantic import Field

from weft.core.choices import pick
from weft.core.config import Config


class ScheduleConfig(Config):
    """The way of the learning rate from the first step to the last."""

    kind: Literal["inverse_sqrt", "cosine", "wsd", "constant"] = "inverse_sqrt"
    warmup: int = Field(400, ge=0)
    """Steps over which the rate climbs from nothing to its peak."""
    decay: float = Field(0.2, gt=0, le=1)
    """wsd: share of all steps over which the rate falls at the end."""
    floor: float = Field(0.0, ge=0, lt=1)
    """cosine, wsd: share of the peak that is left at the last step."""


def inverse_sqrt(step: int, steps: int, config: ScheduleConfig) -> float:
    return math.sqrt(max(1, config.warmup) / step)


def cosine(step: int, steps: int, config: ScheduleConfig) -> float:
    share = min(1.0, (step - config.warmup) / max(1, steps - config.warmup))
    return config.floor + (1 - config.floor) * 0.5 * (1 + math.cos(math.pi * share))


def wsd(step: int, steps: int, config: ScheduleConfig) -> float:
    left = (steps - step) / max(1.0, config.decay * steps)
    return config.floor + (1 - config.floor) * min(1.0, max(0.0, left))


def constant(step: int, steps: int, config: ScheduleConfig) -> float:
    return 1.0


SCHEDULES: dict[str, Callable[[int, int, ScheduleConfig], float]] = {
    "inverse_sqrt": inverse_sqrt,
    "cosine": cosine,
    "wsd": wsd,
    "constant": constant,
}


def rate_factor(step: int, steps: int, config: ScheduleConfig) -> float:
    """Factor for a step counted from 1, of `steps` in all."""
    if step <= config.warmup:
        return step / config.warmup
    return pick(SCHEDULES, config.kind, "schedule")(step, steps, config)
