"""Searches of one beam, side by side through the passes of a plan: chances -> tokens.

Nobody hears of such a search before it ends, so its tokens need no plan each: they are chosen by
the compiled library in one call or here as arrays, and only behind the last pass the searches, the
scheduler and the callers are told. A small model's step takes longer in Python than in arithmetic;
this way it does so once in eight passes or sixteen.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.engine.beam import Beams
from weft.engine.chances import Chances
from weft.engine.compiled_decode import CompiledDecode
from weft.engine.lanes import Lanes, Turn
from weft.engine.ranking import NO_ID, banned_rows, force
from weft.engine.scheduling.plan import Appended, Chunk


class Burst:
    """The searches of one plan."""

    def __init__(self, chunks: Sequence[Chunk], searches: Sequence[Beams]) -> None:
        self.chunks, self.searches = chunks, searches
        self.going = np.arange(len(searches))
        """Places of the searches that still go on."""
        self.scores = np.array([search.scores[0] for search in searches])
        ends = [NO_ID if search.end_id is None else search.end_id for search in searches]
        self.ends = np.array(ends, dtype=np.int64)
        self.limits = np.array([chunk.num_steps for chunk in chunks], dtype=np.int64)
        self.banned = banned_rows(searches, range(len(searches) + 1))
        self.tokens = np.full((len(searches), int(self.limits.max())), NO_ID)
        """What each pass has chosen for each search."""
        self.num_steps = 0

    def write(self, lanes: Lanes, decode: CompiledDecode) -> bool:
        """All passes that are left, in one call. False, and nothing was done, where a token is
        forced, which only the first pass does, where not all searches ban the same, or where
        passes take long."""
        going, done = self.going, self.num_steps
        if not decode.is_light or any(
            len(rows) < len(self.searches) for rows in self.banned.values()
        ):
            return False
        if not done and any(search.must_write is not None for search in self.searches):
            return False
        limits, scores = self.limits[going] - done, self.scores[going]
        tokens = decode.greedy(lanes, self.ends[going], limits, scores, *self.banned or ((),))
        self.tokens[going, done : done + tokens.shape[1]], self.scores[going] = tokens, scores
        return True

    def choose(self, chances: Chances) -> Turn:
        """The next id of each search that goes on, and whether it still does."""
        going = self.going
        banned = {
            ids: np.flatnonzero(np.isin(going, rows)).tolist() for ids, rows in self.banned.items()
        }
        best = chances.best(1, banned)
        if not self.num_steps:  # behind the first pass nothing is forced
            force(self.searches, range(len(going) + 1), chances, best)
        logp_N, ids_N = best[0][:, 0], best[1][:, 0]
        self.scores[going] += logp_N
        self.tokens[going, self.num_steps] = ids_N
        self.num_steps += 1
        goes_N = (ids_N != self.ends[going]) & (self.scores[going] > -np.inf)
        goes_N &= self.num_steps < self.limits[going]
        self.going = going[goes_N]
        return Turn(ids_N, goes_N)

    def settle(self) -> list[Appended]:
        """Tell the searches; what each has written."""
        found = []
        rows, scores = self.tokens.tolist(), self.scores.tolist()
        for search, row, score in zip(self.searches, rows, scores, strict=True):
            tokens = [token for token in row if token != NO_ID]
            search.go_far(tokens, score)
            found.append(Appended(tokens, search.is_done))
        return found
