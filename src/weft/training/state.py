"""What a run must remember to go on as if it had never stopped.

Random draws are not in it: each step seeds them from (seed, step, process), so that no generator's
state has to be saved. Batches are not either: an epoch's plan follows from (seed, epoch).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch


@dataclass
class RunState:
    """Where a run stands after `step` updates."""

    step: int = 0
    epoch: int = 0
    index: int = 0
    """Batches of the epoch that are done."""
    tokens: int = 0
    seconds: float = 0.0
    evaluated: int = 0
    """Step of the last evaluation."""
    best_loss: float | None = None
    best_step: int = 0
    waits: int = 0
    """Evaluations since the best one."""
    is_stopped: bool = False
    """Ended early, by patience."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def judge(self, loss: float, patience: int | None) -> None:
        """Take an evaluation in: remember the best, and stop when patience is at its end."""
        self.evaluated = self.step
        if self.best_loss is None or loss < self.best_loss:
            self.best_loss, self.best_step, self.waits = loss, self.step, 0
        else:
            self.waits += 1
        self.is_stopped = patience is not None and self.waits >= patience


def seed_step(seed: int, step: int, part: int = 0, rank: int = 0) -> None:
    """Set torch's random state for one part of one update in one process."""
    mixed = np.random.SeedSequence([seed, step, part, rank]).generate_state(1, np.uint64)
    torch.manual_seed(int(mixed[0]))
