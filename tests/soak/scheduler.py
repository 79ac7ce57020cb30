"""Random scheduler steps: arrivals, cancellations, preemptions, rollbacks, beams, drafts and
several steps per plan, with all invariants counted from scratch after each step."""

from __future__ import annotations

import random

from tests.engine.scheduling.test_scheduler_fuzz import FORCED, LAYOUTS, Fuzz

STEPS = 1000
"""The entry of the table has the same number of units per case."""


def run_case(seed: int) -> None:
    rng = random.Random(seed)
    prefix = rng.choice(["none", "hash", "radix"])
    layout = rng.choice(list(LAYOUTS))
    settings = {**rng.choice(FORCED), **rng.choice([{}, {"num_steps": 5}])}
    fuzz = Fuzz(prefix, layout, settings, seed)
    width = rng.choice([0, 0, 1, 3])
    for number in range(STEPS):
        fuzz.width = width if number % 200 < 150 else 0
        fuzz.arrive(number)
        fuzz.step(number)
    fuzz.world.run_all()
    fuzz.world.check_results(fuzz.cancelled)
    fuzz.world.check_empty()
