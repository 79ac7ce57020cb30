"""Beam search inside the engine: the best next tokens of a request's beams -> which beams go on,
and what was found.

    one step    2W best of the W x V next tokens; the W best that do not end go on, an end among
                the W best is found

score = log p(tokens, end) / length ** length_penalty, the end token counted, as fairseq and Marian
do it (GNMT divides by ((5 + length) / 6) ** penalty). 1: the mean per token; 0: the plain sum,
which likes short ones. At its limit a sentence may only end, so that every score is one of a whole
sentence. Beam 1 is greedy.

Differs from fairseq, whose choices these are, in when a sentence is done: with W found, as there,
but also once no running beam can beat what was found; that changes no best result. Here beams are
numbers alone: the scheduler forks and frees their pages, and ranking.py ranks the candidates of all
requests of a pass together.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from weft.core.errors import UsageError

MAX_PENALTY = 10
"""Far above what is of use; lengths to this power are still numbers."""


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
        if not 0 <= self.length_penalty <= MAX_PENALTY:
            raise UsageError(
                f"length_penalty is {self.length_penalty:g}: it must be from 0 to {MAX_PENALTY}. "
                "1 is the mean per token, 0 the plain sum."
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

    @property
    def must_write(self) -> int | None:
        """The only token that may come next: a forced first one, or at the limit the end."""
        length = self.length
        if length == 0 and self.config.first is not None:
            return self.config.first
        return self.end_id if length == self.limit else None

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
            if place >= width - 1 and len(going) == width:
                break
        return self.go_on(going)

    def go_alone(self, score: float, token: int) -> list[int]:
        """`advance` for a search of width 1 by its best candidate, in a third of the time."""
        if token == self.end_id or self.end_id is None or not score > -inf:
            return self.advance([(score, 0, token)])
        self.histories[0].append(token)
        self.scores[0] = score
        return [0]

    def go_far(self, tokens: list[int], score: float) -> None:
        """`go_alone` for several tokens, of which only the last can be the end; `score` counts them
        all."""
        self.histories[0] += tokens[:-1]
        self.go_alone(score, tokens[-1])

    def go_on(self, going: list[Candidate]) -> list[int]:
        """The chosen beams become the running ones, unless nothing can change any more."""
        histories = [[*self.histories[parent], token] for _, parent, token in going]
        self.stand(histories, [score for score, _, _ in going], self.found)
        return [] if self.is_done else [parent for _, parent, _ in going]

    def stand(
        self, histories: list[list[int]], scores: list[float], found: list[Hypothesis]
    ) -> None:
        """This is how far the search is, behind one step or several."""
        self.histories, self.scores, self.found = histories, scores, found
        best = max(scores, default=-inf)
        self.is_done = not best > -inf or self.nothing_can_change(best)

    def nothing_can_change(self, best: float) -> bool:
        """Whether what still runs, `best` ahead, cannot change the result."""
        if self.end_id is None:
            if self.length == self.limit:
                for ids, score in zip(self.histories, self.scores, strict=True):
                    self.keep(ids, score, self.length)
            return self.length == self.limit
        return self.length > self.limit or best / self.span <= self.mark(self.found)

    @property
    def span(self) -> float:
        """Log probabilities only fall, and being longer helps at most up to the limit: no score can
        be above what it is now, divided by this."""
        return float((self.limit + 1) ** self.config.length_penalty)

    def mark(self, found: list[Hypothesis]) -> float:
        """What a running beam must be able to beat to change anything."""
        if len(found) >= self.config.width:
            return inf
        scores = sorted((one.score for one in found), reverse=True)
        return scores[self.config.num_best - 1] if len(scores) >= self.config.num_best else -inf

    def keep(self, ids: list[int], logprob: float, length: int) -> None:
        if logprob > -inf:
            self.found.append(self.hypothesis(ids, logprob, length))

    def hypothesis(self, ids: list[int], logprob: float, length: int) -> Hypothesis:
        return Hypothesis(list(ids), logprob / length**self.config.length_penalty, logprob)
