"""Searches of several beams, side by side through the passes of a plan: chances -> beams.

    beams   0 1 2 3 4     their order by score, in which ranking, histories and results are
    lanes   0 1 2 3 4     sequences with pages; a beam is in some lane of its search

A first child stays in the lane of its parent; any other takes over a lane whose beam has no child,
so that what is read by a copy is never written by another. All steps of beam.py are made here as
arrays, for all searches at once; behind the last pass the searches and the scheduler are told.
Differs from the reordering of all caches in other toolkits: nothing is moved but what forks.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any

import numpy as np

from weft.engine.beam import Beams
from weft.engine.chances import Chances
from weft.engine.compiled_decode import CompiledDecode
from weft.engine.lanes import Lanes, Turn
from weft.engine.ranking import NO_ID, banned_rows, best_of_all, rank
from weft.engine.scheduling.plan import Child, Chunk, Forked


class BeamBurst:
    """The searches of one plan. Arrays over all of them are indexed by `going`."""

    def __init__(self, chunks: Sequence[Chunk], searches: Sequence[Beams]) -> None:
        """`chunks`: one of each search. One with fewer beams than its width is filled up with beams
        that nothing comes of."""
        width, number = searches[0].config.width, len(searches)
        self.chunks, self.searches, self.width = chunks, searches, width
        self.going = np.arange(number)
        """Places of the searches that still go on."""
        self.limits = np.array([chunk.num_steps for chunk in chunks])
        self.counts = np.array([len(search.scores) for search in searches])
        """Beams that run in the first pass."""
        self.scores = np.array(
            [[*search.scores, *[-inf] * (width - len(search.scores))] for search in searches]
        )
        self.ends = np.array([NO_ID if s.end_id is None else s.end_id for s in searches])
        self.banned = banned_rows(searches, range(number + 1))
        self.lanes = np.tile(np.arange(width), (number, 1))
        self.roots = self.lanes.copy()
        """The beam that each one comes from, as it was before the first pass."""
        self.tokens = np.full((number, width, self.limits.max()), NO_ID)
        self.num_steps = np.zeros(number, dtype=int)
        self.found = [list(search.found) for search in searches]
        self.marks = np.array([search.mark(search.found) for search in searches])
        self.spans = np.array([search.span for search in searches])

    def write(self, lanes: Lanes, decode: CompiledDecode) -> bool:
        """False: beams are ranked here, pass by pass."""
        return False

    def choose(self, chances: Chances) -> Turn:
        """One step of all searches that go on."""
        going, W = self.going, self.width
        logp_GWK, ids_GWK = self.candidates(chances)
        best_GX, parent_GX, ids_GX = rank(self.scores[going], logp_GWK, ids_GWK, 2 * W)
        is_end_GX = ids_GX == self.ends[going, None]
        for row, place in np.argwhere(is_end_GX[:, :W] & (best_GX[:, :W] > -inf)).tolist():
            self.keep(going[row], parent_GX[row, place], float(best_GX[row, place]))
        # the best W that do not end, best first; where there are fewer, nothing comes of the rest
        best_GX = np.where(is_end_GX, -inf, best_GX)
        order_GW = np.argsort(is_end_GX, axis=1, kind="stable")[:, :W]
        picked = (np.take_along_axis(part, order_GW, 1) for part in (best_GX, parent_GX, ids_GX))
        return self.go_on(*picked)

    def candidates(self, chances: Chances) -> tuple[Any, Any]:
        """Of each beam, in the order of beams."""
        going, W = self.going, self.width
        if not self.num_steps.any():
            return self.first_candidates(chances)
        lanes_GW = np.arange(len(going) * W).reshape(-1, W)
        banned = {
            ids: lanes_GW[np.isin(going, rows)].ravel().tolist()
            for ids, rows in self.banned.items()
        }
        best = chances.best(2 * W, banned)[:2]
        row_G1, lane_GW = np.arange(len(going))[:, None], self.lanes[going]
        logp_GWK, ids_GWK = (part.reshape(len(going), W, -1)[row_G1, lane_GW] for part in best)
        return logp_GWK, ids_GWK

    def first_candidates(self, chances: Chances) -> tuple[Any, Any]:
        """Behind the first pass: only here a token may be forced, or a lane have run nothing."""
        W = self.width
        logp_NK, ids_NK = best_of_all(self.searches, chances)
        logp_GWK = np.full((len(self.searches), W, logp_NK.shape[1]), -inf)
        ids_GWK = np.zeros(logp_GWK.shape, dtype=ids_NK.dtype)
        is_there_GW = np.arange(W) < self.counts[:, None]
        logp_GWK[is_there_GW], ids_GWK[is_there_GW] = logp_NK, ids_NK
        return logp_GWK, ids_GWK

    def keep(self, place: int, beam: int, logprob: float) -> None:
        """A beam of the search at `place` has ended."""
        search, found = self.searches[place], self.found[place]
        ids = self.history(place, beam)
        found.append(search.hypothesis(ids, logprob, len(ids) + 1))
        self.marks[place] = search.mark(found)

    def history(self, place: int, beam: int) -> list[int]:
        new: list[int] = self.tokens[place, beam, : self.num_steps[place]].tolist()
        old = self.searches[place].histories
        # what a search was filled up with are twins of its last beam
        return [*old[min(self.roots[place, beam], len(old) - 1)], *new]

    def go_on(self, scores_GW: Any, parent_GW: Any, ids_GW: Any) -> Turn:
        """The chosen beams become the running ones, of the searches in which anything can still
        change."""
        going, row_G1 = self.going, np.arange(len(self.going))[:, None]
        lane_GW, forks_3N = take_over(self.lanes[going][row_G1, parent_GW])
        tokens_GWT = self.tokens[going][row_G1, parent_GW]
        tokens_GWT[:, :, self.num_steps[going[0]]] = ids_GW
        self.tokens[going], self.scores[going], self.lanes[going] = tokens_GWT, scores_GW, lane_GW
        self.roots[going] = self.roots[going][row_G1, parent_GW]
        self.num_steps[going] += 1
        best_G = scores_GW[:, 0]
        is_done_G = ~(best_G > -inf) | (best_G / self.spans[going] <= self.marks[going])
        goes_G = ~is_done_G & (self.num_steps[going] < self.limits[going])
        self.going = going[goes_G]
        placed_GW = np.empty_like(ids_GW)
        np.put_along_axis(placed_GW, lane_GW, ids_GW, 1)
        search_N, origin_N, lane_N = forks_3N[:, ~is_done_G[forks_3N[0]]]
        forks_2N = search_N * self.width + np.stack([origin_N, lane_N])
        return Turn(
            placed_GW.ravel(), goes_G.repeat(self.width), forks_2N if len(search_N) else None
        )

    def settle(self) -> list[Forked]:
        """Tell the searches; what becomes of the beams of each."""
        results = []
        for place, search in enumerate(self.searches):
            histories = [self.history(place, beam) for beam in range(self.width)]
            search.stand(histories, self.scores[place].tolist(), self.found[place])
            number = int(self.num_steps[place])
            rows = (part[place].tolist() for part in (self.roots, self.lanes, self.tokens))
            children = [
                Child(root, tokens[:number], lane) for root, lane, tokens in zip(*rows, strict=True)
            ]
            children = [] if search.is_done else children
            results.append(Forked(children, number, is_preallocated=True))
        return results


def take_over(lane_GW: Any) -> tuple[Any, Any]:
    """The lanes of the parents of all beams -> a lane for each beam, and who moved: forks_3N, as
    (search, from lane, to lane)."""
    W = lane_GW.shape[1]
    is_same_GWW = lane_GW[:, :, None] == lane_GW[:, None, :]
    is_second_GW = (is_same_GWW & np.tri(W, k=-1, dtype=bool)).any(2)
    taken_GW = np.zeros_like(is_second_GW)
    np.put_along_axis(taken_GW, lane_GW, True, 1)
    search_N, free_N = np.nonzero(~taken_GW)
    forks_3N = np.stack([search_N, lane_GW[is_second_GW], free_N])
    chosen_GW = lane_GW.copy()
    chosen_GW[is_second_GW] = free_N
    return chosen_GW, forks_3N
