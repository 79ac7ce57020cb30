"""`Turns`: chooses which of several engines runs the next step, so that they share time equally.

    turns = Turns()
    share = turns.choose([a, b])        the share of the engine that has used the least time
    turns.charge(share, seconds)        its step has taken so long

Fair queueing by measured times, as in deficit round robin (Shreedhar 1995) with a negative deficit:
the duration of a step is known only afterwards, so an engine that took more than its share waits
until the others have caught up. Of two engines that always have work, neither is ahead of the other
by more than one of its steps. Idle time earns no credit: an engine that gets work starts at the
lowest share of the busy ones (start-time fair queueing, Goyal 1996).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIN_SECONDS = 1e-6
"""Minimum time charged for a step, so that a clock that does not advance cannot starve the
others."""


@dataclass(eq=False)
class TimeShare:
    """Wall time that one engine has used."""

    seconds: float = 0.0
    """Raised by `Turns` when the engine gets work, so that idle time earns no credit."""
    last_turn: int = 0
    """Number of the last turn that it got."""


class Turns:
    """The turns of the engines of one thread."""

    def __init__(self) -> None:
        self.active: Sequence[TimeShare] = ()
        """Shares of the engines that had work at the last turn."""
        self.reached = 0.0
        """Seconds that each busy engine has used at least: where an engine that gets work
        starts."""
        self.number = 0

    def choose(self, active: Sequence[TimeShare]) -> TimeShare:
        """Choose the next engine among those that have work: least used time; ties: longest wait in
        turns."""
        self.active, self.number = active, self.number + 1
        chosen = active[0]
        for share in active:
            if share.seconds < self.reached:
                share.seconds = self.reached
            if (share.seconds, share.last_turn) < (chosen.seconds, chosen.last_turn):
                chosen = share
        chosen.last_turn = self.number
        return chosen

    def charge(self, share: TimeShare, seconds: float) -> None:
        """Add the duration of a step to an engine's share."""
        share.seconds += max(seconds, MIN_SECONDS)
        if self.active:
            self.reached = max(self.reached, min([one.seconds for one in self.active]))
