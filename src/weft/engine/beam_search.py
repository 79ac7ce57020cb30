"""Beam search: next-token logits of the beams of a request -> which beams continue, and the result.

    one step    2W best of the W x V next tokens; the W best that do not end continue, an end token
                among the W best finishes a hypothesis

score = log p(tokens, end) / length ** length_penalty, the end token counted, as in fairseq and
Marian (GNMT divides by ((5 + length) / 6) ** penalty). 1: the mean per token; 0: the plain sum,
which prefers short sentences. At its limit a sentence may only end, so that every score is that of
a complete sentence. Width 1 is greedy search. With E end tokens, (1 + E) W next tokens are ranked,
and a text that ends with several of them is one hypothesis, with the best score.

Differs from fairseq, whose choices these are, in when a search is done: with W finished hypotheses,
as there, but also once no running beam can beat them; that changes no best result.

`BeamSearch` holds one request: its rules, running beams and finished hypotheses. `BeamBatch` makes
the steps of all searches of one width in a plan as arrays, because for a small model a Python loop
over the beams takes longer than the arithmetic. It changes nothing in the searches before
`results`, so that a forward pass that fails can be repeated.

    beams      0 1 2 3 4  by score: the order of histories, scores and results
    sequences  0 1 2 3 4  with page tables; each beam is in one of the sequences of its search

After one step the scheduler forks the sequences (copy-on-write). Within a multi-step plan the first
child of a beam stays in its sequence, and any other takes the sequence of a beam without children;
the model runner copies the rows. Differs from the cache reordering of other toolkits: only forks
are copied.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import UsageError, shown
from weft.engine.input_batch import InputBatch, SampledTokens
from weft.engine.logits import Banned, NextTokenLogits
from weft.engine.model_runner import CompiledDecode
from weft.engine.scheduling.plan import Appended, Child, Forked

MAX_PENALTY = 10
"""Far above useful values; lengths to this power are still finite."""
NO_TOKEN = -1

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class BeamConfig:
    """Parameters of a beam search."""

    width: int = 5
    length_penalty: float = 1.0
    num_best: int = 1
    first: int | None = None
    """A token that every continuation starts with, at no cost."""
    banned: tuple[int, ...] = ()
    """Ids that are never generated. Probabilities are not renormalized, as in `transformers`, so
    that scores agree."""

    def __post_init__(self) -> None:
        if isinstance(self.banned, str) or not isinstance(self.banned, Collection):
            raise UsageError(f"banned is {shown(self.banned)}: it must be a tuple of ids. Use one.")
        object.__setattr__(self, "banned", tuple(self.banned))
        for name, value in (("beam", self.width), ("num_best", self.num_best)):
            if not isinstance(value, Real):
                raise UsageError(f"{name} is {shown(value)}: it must be an integer. Use one.")
        if not isinstance(self.length_penalty, Real):
            raise UsageError(
                f"length_penalty is {shown(self.length_penalty)}: it must be a number. Use one."
            )
        if self.width < 1 or not 1 <= self.num_best <= self.width:
            raise UsageError(
                f"beam is {shown(self.width)} and num_best {shown(self.num_best)}: beam must be at "
                "least 1, and num_best from 1 to beam. Use a wider beam."
            )
        if not 0 <= self.length_penalty <= MAX_PENALTY:
            raise UsageError(
                f"length_penalty is {shown(self.length_penalty)}: it must be from 0 to "
                f"{MAX_PENALTY}. 1 is the mean per token, 0 the plain sum."
            )


@dataclass(frozen=True)
class Hypothesis:
    """One continuation without its end token, with its score and its summed log-probability."""

    ids: list[int]
    score: float
    logprob: float


@dataclass
class BeamSearch:
    """The search of one request. `scores` and `histories` are those of its running beams."""

    config: BeamConfig
    limit: int
    """Maximum number of tokens of a continuation, without the end token."""
    ends: tuple[int, ...]
    scores: list[float] = field(default_factory=lambda: [0.0])
    histories: list[list[int]] = field(default_factory=lambda: [[]])
    finished: list[Hypothesis] = field(default_factory=list)
    is_done: bool = False
    not_finite: int | None = None
    """Number of the token whose logits were not finite, which ends the search with an error."""

    @property
    def length(self) -> int:
        """Number of tokens of every running beam."""
        return len(self.histories[0])

    @property
    def forced_tokens(self) -> tuple[int, ...]:
        """The only tokens that may come next: a forced first one, or the end tokens at the limit;
        empty: all may."""
        length = self.length
        if length == 0 and self.config.first is not None:
            return (self.config.first,)
        return self.ends if length == self.limit else ()

    @property
    def max_normalizer(self) -> float:
        """Log-probabilities only decrease, and a longer sentence helps at most up to the limit: no
        final score is above the current one divided by this."""
        return float((self.limit + 1) ** self.config.length_penalty)

    def score_to_beat(self, finished: list[Hypothesis]) -> float:
        """The score that a running beam must be able to reach to change the result."""
        if len(finished) >= self.config.width:
            return inf
        scores = sorted((one.score for one in finished), reverse=True)
        return scores[self.config.num_best - 1] if len(scores) >= self.config.num_best else -inf

    def copy(self) -> BeamSearch:
        """A search that can be continued while this one stays as it is. Both share their lists,
        which are replaced and never changed."""
        return BeamSearch(**vars(self))

    def best(self) -> list[Hypothesis]:
        """The best finished hypotheses, best first."""
        return sorted(self.finished, key=lambda one: -one.score)[: self.config.num_best]

    def hypothesis(self, ids: list[int], logprob: float, length: int) -> Hypothesis:
        return Hypothesis(list(ids), logprob / length**self.config.length_penalty, logprob)

    def set_beams(
        self, histories: list[list[int]], scores: list[float], finished: list[Hypothesis]
    ) -> None:
        """Replace the state of the search after one step or several."""
        self.histories, self.scores, self.finished = histories, scores, finished
        best = max(scores, default=-inf)
        self.is_done = not best > -inf or self.is_settled(best)

    def is_settled(self, best: float) -> bool:
        """Whether the running beams, the best of which has this score, cannot change the result."""
        if not self.ends:
            if self.length == self.limit:
                complete = [
                    self.hypothesis(ids, score, self.length)
                    for ids, score in zip(self.histories, self.scores, strict=True)
                    if score > -inf
                ]
                self.finished = [*self.finished, *complete]
            return self.length == self.limit
        score_to_beat = self.score_to_beat(self.finished)
        return self.length > self.limit or best / self.max_normalizer <= score_to_beat

    def extend_greedy(self, tokens: list[int], score: float) -> None:
        """Append tokens to the beam of a search of width 1. Only the last can be an end token;
        `score` includes all of them."""
        last = tokens[-1]
        if self.ends and last not in self.ends and score > -inf:
            # by far the most frequent case: nothing can be settled
            self.histories, self.scores = [[*self.histories[0], *tokens]], [score]
            return
        ids = [*self.histories[0], *tokens]
        if last not in self.ends:
            self.set_beams([ids], [score], self.finished)
            return
        if score > -inf:
            self.finished = [*self.finished, self.hypothesis(ids[:-1], score, len(ids))]
        self.set_beams([], [], self.finished)


class BeamBatch:
    """The searches of one width W in a plan. Arrays over all of them are indexed by `active`.

    G searches, X = 2W candidates of a search, K candidates of a beam, N beams in all.
    """

    def __init__(
        self, searches: Sequence[BeamSearch], max_steps: Sequence[int], is_multi_step: bool
    ) -> None:
        """`max_steps`: decode steps of each search in this plan. A search with fewer beams than its
        width is filled up with beams of score -inf."""
        width, number = searches[0].config.width, len(searches)
        self.searches, self.width, self.is_multi_step = searches, width, is_multi_step
        self.active: IntArray = np.arange(number)
        """Indices of the searches that continue."""
        self.max_steps: IntArray = np.array(max_steps, dtype=np.int64)
        self.num_steps: IntArray = np.zeros(number, dtype=np.int64)
        """Steps that each search has made."""
        self.num_beams: IntArray = np.array([len(search.scores) for search in searches])
        """Beams of each search before the first step."""
        self.scores: FloatArray = np.array(
            [[*search.scores, *[-inf] * (width - len(search.scores))] for search in searches]
        )
        self.num_ends = max(1, *(len(search.ends) for search in searches))
        """Columns of `end_ids`; unused ones are NO_TOKEN."""
        self.end_ids: IntArray = np.full((number, self.num_ends), NO_TOKEN, dtype=np.int64)
        for ends_E, search in zip(self.end_ids, searches, strict=True):
            ends_E[: len(search.ends)] = search.ends
        self.banned = banned_rows(searches, range(number + 1))
        self.tokens: IntArray = np.full((number, width, int(self.max_steps.max())), NO_TOKEN)
        """The tokens of each beam in the steps of this plan."""
        self.not_finite: IntArray = np.zeros(number, dtype=np.int64)
        """The step of each search whose logits were not finite, counted from 1; 0: none."""
        if width > 1:
            self.init_beams()

    def init_beams(self) -> None:
        """The arrays that only several beams need."""
        number, searches = len(self.searches), self.searches
        self.sequences: IntArray = np.tile(np.arange(self.width), (number, 1))
        self.roots: IntArray = self.sequences.copy()
        """The beam that each one continues, as it was before the first step."""
        self.num_children: IntArray = np.full(number, self.width)
        """Beams of each search after a single step: fewer than W where candidates are few."""
        self.finished = [list(search.finished) for search in searches]
        self.to_beat: FloatArray = np.array(
            [search.score_to_beat(search.finished) for search in searches]
        )
        self.normalizers: FloatArray = np.array([search.max_normalizer for search in searches])

    def choose(self, logits: NextTokenLogits) -> SampledTokens:
        """One step of all active searches, from the logits of their sequences."""
        return self.choose_greedy(logits) if self.width == 1 else self.choose_beams(logits)

    def choose_greedy(self, logits: NextTokenLogits) -> SampledTokens:
        """Width 1: the best token of each search."""
        active, step = self.active, int(self.num_steps[self.active[0]])
        rows = {
            ids: np.flatnonzero(np.isin(active, of)).tolist() for ids, of in self.banned.items()
        }
        best = logits.top_k(self.num_ends, rows)  # at the limit they may all be forced
        self.check_finite(best[2][:, None])
        if step == 0:  # tokens are forced only in the first step of a plan
            force_tokens(self.searches, range(len(active) + 1), logits, best)
        logp_N, ids_N = best[0][:, 0], best[1][:, 0]
        if self.num_ends > 1:  # forced ones are not sorted
            index = (np.arange(len(active)), best[0].argmax(1))
            logp_N, ids_N = best[0][index], best[1][index]
        self.scores[active, 0] += logp_N
        self.tokens[active, 0, step] = ids_N
        self.num_steps[active] += 1
        # a log-probability that is not finite makes the score NaN or -inf
        continues_N = (ids_N[:, None] != self.end_ids[active]).all(1)
        continues_N &= self.scores[active, 0] > -inf
        continues_N &= step + 1 < self.max_steps[active]
        self.active = active[continues_N]
        return SampledTokens(ids_N, continues_N)

    def run_greedy(self, batch: InputBatch, decode: CompiledDecode) -> bool:
        """All remaining steps in one call of the compiled stack. False, without any change, if a
        token is forced (in the first step only), if the searches ban different tokens or one has
        several end tokens, or if steps take long."""
        if self.width > 1 or self.num_ends > 1 or not decode.is_light:
            return False
        if any(len(rows) < len(self.searches) for rows in self.banned.values()):
            return False
        active, step = self.active, int(self.num_steps[self.active[0]])
        if step == 0 and any(search.forced_tokens for search in self.searches):
            return False
        limits, scores = self.max_steps[active] - step, self.scores[active, 0]
        tokens = decode.greedy(
            batch, self.end_ids[active, 0], limits, scores, *self.banned or ((),)
        )
        self.tokens[active, 0, step : step + tokens.shape[1]] = tokens
        self.scores[active, 0] = scores
        self.num_steps[active] += (tokens != NO_TOKEN).sum(1)
        self.not_finite[active] = np.where(np.isnan(scores), self.num_steps[active], 0)
        return True

    def check_finite(self, lse_GW: FloatArray) -> None:
        """Mark the active searches with a running beam whose log-sum-exp is NaN or infinite, which
        it is if and only if one of its logits is NaN or infinite or all are -inf."""
        is_wrong_GW = ~np.isfinite(lse_GW)
        if is_wrong_GW.any():
            active = self.active
            # sequences without a beam may hold anything
            is_wrong_G = (is_wrong_GW & (self.scores[active] > -inf)).any(1)
            self.not_finite[active[is_wrong_G]] = self.num_steps[active[is_wrong_G]] + 1

    @property
    def num_candidates(self) -> int:
        """Next tokens of which W do not end, whatever the others are."""
        return (1 + self.num_ends) * self.width

    def choose_beams(self, logits: NextTokenLogits) -> SampledTokens:
        """Rank the candidates of all beams; the best continue."""
        active, W = self.active, self.width
        logp_GWK, ids_GWK = self.candidates(logits)
        total_GX, parent_GX, ids_GX = rank(
            self.scores[active], logp_GWK, ids_GWK, self.num_candidates
        )
        is_end_GX = (ids_GX[:, :, None] == self.end_ids[active, None]).any(2)
        for row, place in np.argwhere(is_end_GX[:, :W] & (total_GX[:, :W] > -inf)).tolist():
            self.add_finished(active[row], parent_GX[row, place], float(total_GX[row, place]))
        # the W best that do not end, best first; if there are fewer, the rest has score -inf
        total_GX = np.where(is_end_GX, -inf, total_GX)
        order_GW = np.argsort(is_end_GX, axis=1, kind="stable")[:, :W]
        if not self.is_multi_step:
            is_child_GX = ~is_end_GX & (parent_GX < self.num_beams[active, None])
            self.num_children = np.take_along_axis(is_child_GX, order_GW, 1).sum(1)
        return self.continue_with(
            np.take_along_axis(total_GX, order_GW, 1),
            np.take_along_axis(parent_GX, order_GW, 1),
            np.take_along_axis(ids_GX, order_GW, 1),
        )

    def candidates(self, logits: NextTokenLogits) -> tuple[FloatArray, IntArray]:
        """Log-probabilities and ids of the best tokens of each beam, in the order of beams."""
        active, W = self.active, self.width
        if not self.num_steps.any():
            return self.first_candidates(logits)
        rows_GW = np.arange(len(active) * W).reshape(-1, W)
        banned = {
            ids: rows_GW[np.isin(active, of)].ravel().tolist() for ids, of in self.banned.items()
        }
        logp_NK, ids_NK, lse_N = logits.top_k(self.num_candidates, banned)
        index = (np.arange(len(active))[:, None], self.sequences[active])
        self.check_finite(lse_N.reshape(-1, W)[index])
        shape = (len(active), W, -1)
        return logp_NK.reshape(shape)[index], ids_NK.reshape(shape)[index]

    def first_candidates(self, logits: NextTokenLogits) -> tuple[FloatArray, IntArray]:
        """In the first step of a plan tokens may be forced, and beams may be missing."""
        begins = [0, *accumulate(self.num_beams.tolist())]
        best = logits.top_k(self.num_candidates, banned_rows(self.searches, begins))
        logp_NK, ids_NK, lse_N = best
        lse_GW = np.zeros((len(self.searches), self.width))
        has_beam_GW = np.arange(self.width) < self.num_beams[:, None]
        lse_GW[has_beam_GW] = lse_N
        self.check_finite(lse_GW)
        force_tokens(self.searches, begins, logits, best)
        logp_GWK = np.full((*lse_GW.shape, logp_NK.shape[1]), -inf)
        ids_GWK = np.zeros(logp_GWK.shape, dtype=ids_NK.dtype)
        logp_GWK[has_beam_GW], ids_GWK[has_beam_GW] = logp_NK, ids_NK
        return logp_GWK, ids_GWK

    def add_finished(self, index: int, beam: int, logprob: float) -> None:
        """A beam of the search at `index` has ended."""
        search, finished = self.searches[index], self.finished[index]
        ids = self.history(index, beam)
        if len(search.ends) > 1 and any(one.ids == ids for one in finished):
            return  # with another end token, which is more likely
        finished.append(search.hypothesis(ids, logprob, len(ids) + 1))
        self.to_beat[index] = search.score_to_beat(finished)

    def history(self, index: int, beam: int) -> list[int]:
        new: list[int] = self.tokens[index, beam, : self.num_steps[index]].tolist()
        before = self.searches[index].histories
        # beams that a search was filled up with are copies of its last one
        return [*before[min(self.roots[index, beam], len(before) - 1)], *new]

    def continue_with(
        self, scores_GW: FloatArray, parent_GW: IntArray, ids_GW: IntArray
    ) -> SampledTokens:
        """Make the chosen beams the running ones, and deactivate searches that are settled."""
        active, row_G1 = self.active, np.arange(len(self.active))[:, None]
        tokens_GWT = self.tokens[active][row_G1, parent_GW]
        tokens_GWT[:, :, self.num_steps[active[0]]] = ids_GW
        self.tokens[active], self.scores[active] = tokens_GWT, scores_GW
        self.roots[active] = self.roots[active][row_G1, parent_GW]
        self.num_steps[active] += 1
        best_G = scores_GW[:, 0]
        is_done_G = ~(best_G > -inf) | (best_G / self.normalizers[active] <= self.to_beat[active])
        is_done_G |= self.not_finite[active] > 0
        continues_G = ~is_done_G & (self.num_steps[active] < self.max_steps[active])
        if not self.is_multi_step:  # the scheduler forks; there is no further step
            return SampledTokens(ids_GW.ravel(), np.zeros(ids_GW.size, dtype=bool))
        sequence_GW, forks_3N = assign_sequences(self.sequences[active][row_G1, parent_GW])
        self.sequences[active] = sequence_GW
        self.active = active[continues_G]
        by_sequence_GW = np.empty_like(ids_GW)
        np.put_along_axis(by_sequence_GW, sequence_GW, ids_GW, 1)
        search_N, from_N, to_N = forks_3N[:, ~is_done_G[forks_3N[0]]]
        forks_2N = search_N * self.width + np.stack([from_N, to_N])
        return SampledTokens(
            by_sequence_GW.ravel(),
            continues_G.repeat(self.width),
            forks_2N if len(search_N) else None,
        )

    def results(self) -> Sequence[Appended | Forked]:
        """Update the searches; return what the scheduler has to do for each."""
        update = self.appended if self.width == 1 else self.forked
        results: list[Appended | Forked] = []
        for index, search in enumerate(self.searches):
            before, step = search.length, int(self.not_finite[index])
            search.not_finite = before + step if step else None
            results.append(update(index))
        return results

    def appended(self, index: int) -> Appended:
        search = self.searches[index]
        tokens: list[int] = self.tokens[index, 0, : self.num_steps[index]].tolist()
        search.extend_greedy(tokens, float(self.scores[index, 0]))
        search.is_done |= search.not_finite is not None
        return Appended(tokens, search.is_done)

    def forked(self, index: int) -> Forked:
        search, num_steps = self.searches[index], int(self.num_steps[index])
        number = int(self.num_children[index])
        histories = [self.history(index, beam) for beam in range(number)]
        search.set_beams(histories, self.scores[index, :number].tolist(), self.finished[index])
        search.is_done |= search.not_finite is not None
        if search.is_done:
            return Forked([], num_steps, self.is_multi_step)
        arrays = (self.roots[index], self.tokens[index, :, :num_steps], self.sequences[index])
        rows = zip(*(array[:number].tolist() for array in arrays), strict=True)
        return Forked([Child(*row) for row in rows], num_steps, self.is_multi_step)


def force_tokens(
    searches: Sequence[BeamSearch],
    begins: Sequence[int],
    logits: NextTokenLogits,
    best: tuple[FloatArray, IntArray, FloatArray],
) -> None:
    """Make forced tokens the only candidates of their rows: a forced first token, at no cost, or
    the end tokens at the limit. The rows of search i are begins[i] to begins[i + 1]."""
    logp_NK, ids_NK, lse_N = best
    end_rows: dict[tuple[int, int], list[int]] = {}
    for search, begin, end in zip(searches, begins[:-1], begins[1:], strict=True):
        if search.forced_tokens:
            logp_NK[begin:end] = -inf
        for column, token in enumerate(search.forced_tokens):
            ids_NK[begin:end, column] = token
            if search.length == 0:
                logp_NK[begin:end, column] = 0.0
            elif token not in search.config.banned:
                end_rows.setdefault((column, token), []).extend(range(begin, end))
    for (column, token), rows in end_rows.items():
        logp_NK[rows, column] = logits.logits_of(token, rows) - lse_N[rows]


def banned_rows(searches: Sequence[BeamSearch], begins: Sequence[int]) -> Banned:
    """Sets of banned tokens, and the rows that they apply to."""
    rows: dict[tuple[int, ...], list[int]] = {}
    for search, begin, end in zip(searches, begins[:-1], begins[1:], strict=True):
        if search.config.banned:
            rows.setdefault(search.config.banned, []).extend(range(begin, end))
    return rows


def rank(
    scores_GW: FloatArray, logp_GWK: FloatArray, ids_GWK: IntArray, count: int
) -> tuple[FloatArray, IntArray, IntArray]:
    """The best candidates of each search, best first: scores, the beams that they continue, and
    tokens. Equal ones stay in the order of their beams."""
    G, _, K = logp_GWK.shape
    total_GN = (scores_GW[:, :, None] + logp_GWK).reshape(G, -1)
    order_GX = np.argsort(-total_GN, axis=1, kind="stable")[:, :count]
    best_GX = np.take_along_axis(total_GN, order_GX, 1)
    return best_GX, order_GX // K, np.take_along_axis(ids_GWK.reshape(G, -1), order_GX, 1)


def assign_sequences(sequence_GW: IntArray) -> tuple[IntArray, IntArray]:
    """The sequences of the parents of all beams -> a sequence for each beam, and the copies that
    this needs: forks_3N, as (search, from sequence, to sequence)."""
    W = sequence_GW.shape[1]
    is_same_GWW = sequence_GW[:, :, None] == sequence_GW[:, None, :]
    is_second_GW = (is_same_GWW & np.tri(W, k=-1, dtype=bool)).any(2)
    is_taken_GW = np.zeros_like(is_second_GW)
    np.put_along_axis(is_taken_GW, sequence_GW, True, 1)
    search_N, free_N = np.nonzero(~is_taken_GW)
    forks_3N = np.stack([search_N, sequence_GW[is_second_GW], free_N])
    assigned_GW = sequence_GW.copy()
    assigned_GW[is_second_GW] = free_N
    return assigned_GW, forks_3N
