"""The chances of all beams of a pass -> the best candidates of each search, ranked together.

At one token a beam the arithmetic of a small model takes less time than a Python loop over its
beams would: so one call finds the best tokens of all rows, and one sort ranks all searches that are
as wide and have as many beams.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import inf
from typing import Any

import numpy as np

from weft.engine.beam import Beams, Candidate
from weft.engine.chances import Banned, Chances

NO_ID = -1
"""No token."""
Best = tuple[Any, Any]
"""logp_NK and ids_NK of the best tokens of each beam, numpy."""


def best_of_all(searches: Sequence[Beams], chances: Chances) -> Best:
    """The best tokens of all beams: the places of the chances are the beams of the first search,
    then of the second and so on."""
    widest = 2 * max(search.config.width for search in searches)
    return best_tokens(searches, begins_of(searches), chances, widest)


def begins_of(searches: Sequence[Beams]) -> list[int]:
    """Where the beams of each search begin, and where the last one's end."""
    return [0, *accumulate(len(search.scores) for search in searches)]


def advance_all(searches: Sequence[Beams], best: Best) -> list[list[int]]:
    """One step of many requests. For each the parents of its new beams."""
    begins, (logp_NK, ids_NK) = begins_of(searches), best
    parents: list[list[int]] = [[] for _ in searches]
    for (width, count), places in alike(searches).items():
        rows_GW = np.array([begins[i] for i in places])[:, None] + np.arange(count)
        group = [searches[i] for i in places]
        if width == 1:
            rows_G = rows_GW[:, 0]
            going = advance_alone(group, logp_NK[rows_G, 0], ids_NK[rows_G, 0])
        else:
            ranked = ranked_all(group, logp_NK[rows_GW], ids_NK[rows_GW])
            going = map(Beams.advance, group, ranked)
        for place, found in zip(places, going, strict=True):
            parents[place] = found
    return parents


def advance_alone(searches: Sequence[Beams], logp_G: Any, ids_G: Any) -> Iterable[list[int]]:
    """One step of searches of width 1: each goes on with its best token."""
    scores_G = logp_G + np.array([search.scores[0] for search in searches])
    return map(Beams.go_alone, searches, scores_G.tolist(), ids_G.tolist())


def best_tokens(
    searches: Sequence[Beams], begins: Sequence[int], chances: Chances, count: int
) -> Best:
    """Log-probabilities and ids of the best tokens of each row, in numpy, with what must or must
    not be written."""
    logp_NK, ids_NK, sums_N = chances.best(count, banned_rows(searches, begins))
    force(searches, begins, chances, (logp_NK, ids_NK, sums_N))
    return logp_NK, ids_NK


def force(
    searches: Sequence[Beams], begins: Sequence[int], chances: Chances, best: tuple[Any, Any, Any]
) -> None:
    """What must be written becomes the only candidate: a given first token, which costs nothing, or
    at the limit the end."""
    logp_NK, ids_NK, sums_N = best
    ends: dict[int, list[int]] = {}
    for search, begin, end in zip(searches, begins[:-1], begins[1:], strict=True):
        token = search.must_write
        if token is not None:
            logp_NK[begin:end], ids_NK[begin:end, 0] = -inf, token
            if search.length == 0:
                logp_NK[begin:end, 0] = 0.0
            elif token not in search.config.banned:
                ends.setdefault(token, []).extend(range(begin, end))
    for token, rows in ends.items():
        logp_NK[rows, 0] = chances.logits_of(token, rows) - sums_N[rows]


def banned_rows(searches: Sequence[Beams], begins: Sequence[int]) -> Banned:
    rows: dict[tuple[int, ...], list[int]] = {}
    for search, begin, end in zip(searches, begins[:-1], begins[1:], strict=True):
        if search.config.banned:
            rows.setdefault(search.config.banned, []).extend(range(begin, end))
    return rows


def alike(searches: Sequence[Beams]) -> dict[tuple[int, int], list[int]]:
    """Places of the searches that are as wide and have as many beams, together."""
    groups: dict[tuple[int, int], list[int]] = {}
    for place, search in enumerate(searches):
        groups.setdefault((search.config.width, len(search.scores)), []).append(place)
    return groups


def ranked_all(
    searches: Sequence[Beams], logp_GWK: Any, ids_GWK: Any
) -> Iterable[Iterable[Candidate]]:
    """The 2W best candidates of each search."""
    scores_GW = np.array([search.scores for search in searches])
    ranked = rank(scores_GW, logp_GWK, ids_GWK, 2 * searches[0].config.width)
    return map(zip, *(part_GX.tolist() for part_GX in ranked))


def rank(scores_GW: Any, logp_GWK: Any, ids_GWK: Any, count: int) -> tuple[Any, Any, Any]:
    """The best candidates of each search, best first: their scores, the beams that they continue,
    and their tokens. Equal ones stay in the order of their beams."""
    G, _, K = logp_GWK.shape
    total_GN = (scores_GW[:, :, None] + logp_GWK).reshape(G, -1)
    order_GX = np.argsort(-total_GN, axis=1, kind="stable")[:, :count]
    best_GX = np.take_along_axis(total_GN, order_GX, 1)
    return best_GX, order_GX // K, np.take_along_axis(ids_GWK.reshape(G, -1), order_GX, 1)
