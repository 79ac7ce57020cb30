"""Searches of one beam, side by side through the passes of a plan: chances -> tokens.

Nobody hears of such a search before it ends, so its tokens need no plan each: they are chosen as
arrays, and only behind the last pass the searches, the scheduler and the callers are told. A small
model's step takes longer in Python than in arithmetic; this way it does so once in eight passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.engine.beam import Beams
from weft.engine.chances import Chances
from weft.engine.lanes import Turn
from weft.engine.ranking import NO_ID, banned_rows, force
from weft.engine.schedule.plan import Chunk, Grown


class Burst:
    """The searches of one plan."""

    def __init__(self, chunks: Sequence[Chunk], searches: Sequence[Beams]) -> None:
        self.chunks, self.searches = chunks, searches
        self.going = np.arange(len(searches))
        """Places of the searches that still go on."""
        self.scores = np.array([search.scores[0] for search in searches])
        self.ends = np.array([NO_ID if s.end_id is None else s.end_id for s in searches])
        self.limits = np.array([chunk.num_passes for chunk in chunks])
        self.banned = banned_rows(searches, range(len(searches) + 1))
        self.passes: list[Any] = []
        """The token that each pass has chosen for each search, or none."""

    def choose(self, chances: Chances) -> Turn:
        """The next id of each search that goes on, and whether it still does."""
        going = self.going
        banned = {
            ids: np.flatnonzero(np.isin(going, rows)).tolist() for ids, rows in self.banned.items()
        }
        best = chances.best(1, banned)
        if not self.passes:  # behind the first pass nothing is forced
            force(self.searches, range(len(going) + 1), chances, best)
        logp_N, ids_N = best[0][:, 0], best[1][:, 0]
        self.scores[going] += logp_N
        goes_N = (ids_N != self.ends[going]) & (self.scores[going] > -np.inf)
        goes_N &= len(self.passes) + 1 < self.limits[going]
        chosen = np.full(len(self.searches), NO_ID)
        chosen[going] = ids_N
        self.passes.append(chosen)
        self.going = going[goes_N]
        return Turn(ids_N, goes_N)

    def settle(self) -> list[Grown]:
        """Tell the searches; what each has written."""
        found = []
        rows = np.array(self.passes).T.tolist()
        for search, row, score in zip(self.searches, rows, self.scores.tolist(), strict=True):
            tokens = [token for token in row if token != NO_ID]
            search.go_far(tokens, score)
            found.append(Grown(tokens, search.is_done))
        return found
