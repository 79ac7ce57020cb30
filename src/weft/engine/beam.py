"""Beam search inside the engine: the logits of a request's beams -> which beams go on, and what
was found.

    one step    2W best of the W x V next tokens; the W best that do not end go on, an end among
                the W best is found

score = log p(tokens, end) / length ** length_penalty, the end token counted, as fairseq and Marian
do it (GNMT divides by ((5 + length) / 6) ** penalty). 1: the mean per token; 0: the plain sum,
which likes short ones. At its limit a sentence may only end, so that every score is one of a whole
sentence. Beam 1 is greedy.

Differs from fairseq, whose choices these are, in when a sentence is done: with W found, as there,
but also once no running beam can beat what was found; that changes no best result. Here beams are
numbers alone: the scheduler forks and frees their pages, and all requests of a pass are ranked
together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from typing import Any

import numpy as np
from torch import Tensor

from weft.core.errors import UsageError


@dataclass(frozen=True)
class BeamConfig:
    """How a request is searched."""

    width: int = 5
    length_penalty: float = 1.0
    num_best: int = 1
    first: int | None = None
    """The token that every continuation begins with; it costs nothing."""
    banned: tuple[int, ...] = ()
    """Ids that are never written. Probabilities are not made to add up again, as `transformers`
    does it, so that scores agree."""

    def __post_init__(self) -> None:
        if self.width < 1 or not 1 <= self.num_best <= self.width:
            raise UsageError(
                f"beam is {self.width} and num_best {self.num_best}: beam must be at least 1, and "
                "num_best from 1 to beam. Use a wider beam."
            )
        if not 0 <= self.length_penalty < inf:
            raise UsageError(
                f"length_penalty is {self.length_penalty:g}: it must be 0 or more. 1 is the mean "
                "per token, 0 the plain sum."
            )


@dataclass(frozen=True)
class Hypothesis:
    """One continuation, the end token not included, with its score and its summed log
    probability."""

    ids: list[int]
    score: float
    logprob: float


Candidate = tuple[float, int, int]
"""Summed log probability, beam that it continues, token."""


@dataclass
class Beams:
    """The search of one request. `scores` and `histories` are those of its running beams."""

    config: BeamConfig
    limit: int
    """Tokens that a continuation may have, its end not counted."""
    end_id: int | None
    scores: list[float] = field(default_factory=lambda: [0.0])
    histories: list[list[int]] = field(default_factory=lambda: [[]])
    found: list[Hypothesis] = field(default_factory=list)
    is_done: bool = False

    @property
    def length(self) -> int:
        """Tokens that every running beam has so far."""
        return len(self.histories[0])

    def best(self) -> list[Hypothesis]:
        """What was found, best first."""
        return sorted(self.found, key=lambda one: -one.score)[: self.config.num_best]

    def advance(self, ranked: Iterable[Candidate]) -> list[int]:
        """One step from the 2W best candidates of all beams, best first. Returns the parents of the
        beams that go on, whose last tokens are in `histories`; none when the search is done."""
        width, end_id = self.config.width, self.end_id
        going: list[Candidate] = []
        for place, candidate in enumerate(ranked):
            score, parent, token = candidate
            if token == end_id:
                if place < width and score > -inf:
                    self.keep(self.histories[parent], score, self.length + 1)
            elif len(going) < width:
                going.append(candidate)
        return self.go_on(going)

    def go_on(self, going: list[Candidate]) -> list[int]:
        """The chosen beams become the running ones, unless nothing can change any more."""
        self.histories = [[*self.histories[parent], token] for _, parent, token in going]
        self.scores = [score for score, _, _ in going]
        best = max(self.scores, default=-inf)
        self.is_done = best == -inf or self.nothing_can_change(best)
        return [] if self.is_done else [parent for _, parent, _ in going]

    def nothing_can_change(self, best: float) -> bool:
        """Whether what still runs, `best` ahead, cannot change the result."""
        if self.end_id is None:
            if self.length == self.limit:
                for ids, score in zip(self.histories, self.scores, strict=True):
                    self.keep(ids, score, self.length)
            return self.length == self.limit
        if len(self.found) >= self.config.width or self.length > self.limit:
            return True
        # log probabilities only fall, and being longer helps at most up to the limit
        bound = best / (self.limit + 1) ** self.config.length_penalty
        return sum(one.score >= bound for one in self.found) >= self.config.num_best

    def keep(self, ids: list[int], logprob: float, length: int) -> None:
        if logprob > -inf:
            score = logprob / length**self.config.length_penalty
            self.found.append(Hypothesis(list(ids), score, logprob))


def advance_all(searches: Sequence[Beams], logits_NV: Tensor) -> list[list[int]]:
    """One step of many requests: the rows of logits are the beams of the first, then of the second
    and so on. For each request the parents of its new beams."""
    logp_NV = logits_NV.log_softmax(-1)
    counts = [len(search.scores) for search in searches]
    begins = [0, *accumulate(counts)]
    for search, begin, count in zip(searches, begins[:-1], counts, strict=True):
        apply_rule(logp_NV[begin : begin + count], search)
    widest = 2 * max(search.config.width for search in searches)
    logp, ids = logp_NV.topk(min(widest, logp_NV.shape[1]), dim=-1)
    logp_NK, ids_NK = logp.double().cpu().numpy(), ids.cpu().numpy()
    parents: list[list[int]] = [[] for _ in searches]
    for places in alike(searches):
        rows_GW = np.array([range(begins[i], begins[i + 1]) for i in places])
        group = [searches[i] for i in places]
        ranked = ranked_all(group, logp_NK[rows_GW], ids_NK[rows_GW])
        for place, search, candidates in zip(places, group, ranked, strict=True):
            parents[place] = search.advance(candidates)
    return parents


def alike(searches: Sequence[Beams]) -> list[list[int]]:
    """Places of the searches that are as wide and have as many beams, together."""
    groups: dict[tuple[int, int], list[int]] = {}
    for place, search in enumerate(searches):
        groups.setdefault((search.config.width, len(search.scores)), []).append(place)
    return list(groups.values())


def ranked_all(searches: Sequence[Beams], logp_GWK: Any, ids_GWK: Any) -> list[list[Candidate]]:
    """The 2W best candidates of each search; equal ones stay in the order of their beams."""
    scores_GW = np.array([search.scores for search in searches])
    G, _, K = logp_GWK.shape
    total_GN = (scores_GW[:, :, None] + logp_GWK).reshape(G, -1)
    order_GN = np.argsort(-total_GN, axis=1, kind="stable")[:, : 2 * searches[0].config.width]
    best = np.take_along_axis(total_GN, order_GN, 1).tolist()
    tokens = np.take_along_axis(ids_GWK.reshape(G, -1), order_GN, 1).tolist()
    return [
        list(zip(*one, strict=True))
        for one in zip(best, (order_GN // K).tolist(), tokens, strict=True)
    ]


def apply_rule(logp_WV: Tensor, search: Beams) -> None:
    """What must or must not be written; at the limit only the end may be."""
    config, end_id = search.config, search.end_id
    if config.banned:
        logp_WV[:, list(config.banned)] = -inf
    if config.first is not None and search.length == 0:
        logp_WV.fill_(-inf)[:, config.first] = 0.0
    if end_id is not None and search.length == search.limit:
        ends = logp_WV[:, end_id].clone()
        logp_WV.fill_(-inf)[:, end_id] = ends
