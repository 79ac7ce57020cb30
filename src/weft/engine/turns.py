"""`Turns`: which of several engines runs the next step, so that they share the wall time equally.

    turns = Turns()
    share = turns.choose([a, b])        the share of the engine that has used the least time
    turns.charge(share, seconds)        its step has taken so long

Fair queueing by measured times, as in deficit round robin (Shreedhar 1995) with a negative deficit:
the time of a step is known only afterwards, so an engine that took more than its share waits until
the others have caught up. Of two engines that have work all the time, neither is ahead of the other
by more than one of its steps. Time without work is lost: an engine that comes back starts where the
engine that is furthest behind stands (start-time fair queueing, Goyal 1996).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIN_SECONDS = 1e-6
"""A step counts at least so much: a clock that does not advance must not keep others waiting."""


@dataclass(eq=False)
class TimeShare:
    """Wall time that one engine has used."""

    seconds: float = 0.0
    """Raised by `Turns` when the engine gets work, so that earlier idle time does not count."""
    last_turn: int = 0
    """Number of the last turn that it got."""


class Turns:
    """The turns of the engines of one thread."""

    def __init__(self) -> None:
        self.active: Sequence[TimeShare] = ()
        """Those that had work at the last turn."""
        self.reached = 0.0
        """Seconds that all of them have used: where an engine that gets work starts."""
        self.number = 0

    def choose(self, active: Sequence[TimeShare]) -> TimeShare:
        """The next one among those that have work; among equal ones, that which has waited for the
        most turns."""
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
        """An engine has used the thread for so long."""
        share.seconds += max(seconds, MIN_SECONDS)
        if self.active:
            self.reached = max(self.reached, min([one.seconds for one in self.active]))
