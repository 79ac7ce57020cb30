"""What a measurement is to reach: goals and ratios -> which of them are met."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Goal:
    """A number among the ratios, and its bound."""

    name: str
    bound: float
    is_most: bool = False
    """True: it may be at most the bound; False: it is at least the bound."""

    def is_met(self, value: float) -> bool:
        return value <= self.bound if self.is_most else value >= self.bound


def judged(goals: Sequence[Goal], ratios: Mapping[str, float]) -> list[dict[str, Any]]:
    """Those goals whose number was measured."""
    return [
        {
            "goal": goal.name,
            "measured": ratios[goal.name],
            "asked": f"at {'most' if goal.is_most else 'least'} {goal.bound:g}",
            "is_met": goal.is_met(ratios[goal.name]),
        }
        for goal in goals
        if goal.name in ratios
    ]
