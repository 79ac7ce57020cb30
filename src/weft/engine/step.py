"""The choosing half of a step: what may come next -> new tokens, and what to publish.

All rows of a pass are chosen in one call (plain greedy ones by a single argmax). With drafts, a
line has several rows: its tokens are those that would have been chosen without them, as far as the
drafts were right, and one more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from weft.core.errors import UsageError
from weft.engine.beam import Beams
from weft.engine.beam_burst import BeamBurst
from weft.engine.burst import Burst
from weft.engine.drafts import accept
from weft.engine.logprobs import TokenLogprob, token_logprob
from weft.engine.ranking import Best, advance_all, best_of_all
from weft.engine.runner import Results
from weft.engine.scheduling.plan import Appended, Child, Chunk, Forked, Plan, SequenceId
from weft.engine.stops import Finish
from weft.engine.writing import Line, Update
from weft.sampling.logits_processors import SamplingRow
from weft.sampling.sampler import NO_TOKEN, sample

NOT_FINITE = (
    "the model gives no finite probability: its weights may hold NaN or infinity. Use an earlier "
    "checkpoint."
)

Lines = Mapping[str, Mapping[int, Line]]
Bursting = Burst | BeamBurst


@dataclass
class Outcome:
    """What the scheduler is told."""

    grown: dict[SequenceId, Appended] = field(default_factory=dict)
    branched: dict[str, Forked] = field(default_factory=dict)
    ended: list[SequenceId] = field(default_factory=list)
    """Samples that ended with the first token behind their prompt."""

    def refuse(self, chunk: Chunk) -> None:
        """No token could be chosen behind a chunk: its request is about to leave."""
        if chunk.num_samples == 1:
            self.grown[chunk.sequence_id] = Appended([0], is_finished=True)
        else:
            self.branched[chunk.request.id] = Forked([])


@dataclass(frozen=True)
class Place:
    """The rows of one line in this pass: of the logits, and of what the choice reads."""

    chunk: Chunk
    line: Line
    drafts: list[int]
    first: int
    """Its first row of the logits; the others follow."""
    rows: list[SamplingRow]


@dataclass
class Ahead:
    """All that is computed before anybody takes a token: a pass that fails up to here can be run
    again."""

    written: list[tuple[Chunk, slice]] = field(default_factory=list)
    """Chunks of lines, and their rows of the logits."""
    logits_NV: Tensor | None = None
    names: list[str] = field(default_factory=list)
    """Requests that are searched."""
    searches: list[Beams] = field(default_factory=list)
    best: Best | None = None
    """Candidates of all their beams."""


def look_ahead(plan: Plan, results: Results, lines: Lines, beams: Mapping[str, Beams]) -> Ahead:
    """What lines and beams choose from, at the places that belong to them."""
    ahead, chances = Ahead(), results.chances
    if chances is None:
        return ahead
    rows_of_chunks = zip(plan.chunks, results.rows, strict=True)
    sampled = [pair for pair in rows_of_chunks if pair[0].num_samples]
    ahead.written = [pair for pair in sampled if pair[0].request.id in lines]
    if ahead.written:
        ahead.logits_NV = chances.logits_NV
    searched = [pair for pair in sampled if pair[0].request.id in beams]
    if searched:
        rows = [row for _, part in searched for row in range(part.start, part.stop)]
        ahead.names = list(dict.fromkeys(chunk.request.id for chunk, _ in searched))
        ahead.searches = [beams[name] for name in ahead.names]
        ahead.best = best_of_all(ahead.searches, chances.of(rows))
    return ahead


def choose_tokens(ahead: Ahead, lines: Lines, updates: list[Update]) -> Outcome:
    """Tokens of lines and beams."""
    outcome = Outcome()
    if ahead.logits_NV is not None:
        outcome = choose_all(ahead.written, lines, ahead.logits_NV, updates)
    if ahead.best is not None:
        parents = advance_all(ahead.searches, ahead.best)
        outcome.branched |= publish_beams(ahead.names, ahead.searches, parents, updates)
    return outcome


def choose_all(
    sampled: Sequence[tuple[Chunk, slice]], lines: Lines, logits_NV: Tensor, updates: list[Update]
) -> Outcome:
    """One call of `sample` for all lines; updates are appended."""
    outcome = Outcome()
    places: list[Place] = []
    for chunk, part in sampled:
        try:
            places += places_of(chunk, part, lines)
        except UsageError as error:  # a grammar shows only in use that it is too large
            updates.append(Update(chunk.request.id, chunk.index, error=str(error)))
            outcome.refuse(chunk)
    if not places:
        return outcome
    index = [place.first + i for place in places for i in range(len(place.rows))]
    # usually every row is asked for once: then none is copied
    is_all = index == list(range(len(logits_NV)))
    rows = [row for place in places for row in place.rows]
    ids = sample(logits_NV if is_all else logits_NV[index], rows).tolist()
    begin = 0
    for place in places:
        chosen = ids[begin : begin + len(place.rows)]
        begin += len(place.rows)
        settle_line(place, chosen, logits_NV, outcome, updates)
    return outcome


def places_of(chunk: Chunk, part: slice, lines: Lines) -> list[Place]:
    """The lines that read a chunk's logits: one, or all n behind an n-fold prompt."""
    of_request = lines[chunk.request.id]
    drafts = chunk.tokens[len(chunk.tokens) - chunk.num_drafts :]
    if chunk.num_samples > 1:
        return [Place(chunk, line, [], part.start, line.rows([])) for line in of_request.values()]
    line = of_request[chunk.index]
    return [Place(chunk, line, drafts, part.start, line.rows(drafts))]


def settle_line(
    place: Place, chosen: list[int], logits_NV: Tensor, outcome: Outcome, updates: list[Update]
) -> None:
    """Take in the tokens that hold, up to one that ends the text."""
    line, chunk = place.line, place.chunk
    name, sampling = chunk.request.id, line.writing.sampling
    accepted = min(accept(place.drafts, chosen), len(chosen) - 1)
    tokens: list[int] = []
    shown: list[str] = []
    logprobs: list[TokenLogprob] = []
    error = None
    for i, token in enumerate(chosen[: accepted + 1]):
        if token == NO_TOKEN:
            error = "the grammar and the bans together leave no token to choose."
            break
        tokens.append(token)
        if sampling.logprobs is not None:
            logprobs.append(token_logprob(logits_NV[place.first + i], token, sampling.logprobs))
        try:
            shown.append(line.take(token))
        except UsageError as failure:
            error = str(failure)
            break
        if line.stream.finish is not None:
            break
    finish = line.stream.finish
    if line.drafter is not None:
        line.drafter.lookup.extend(tokens)
        line.drafter.adapt(len(place.drafts), accepted)
    is_end = finish is not None and finish.reason == "end"
    visible = tokens[:-1] if is_end else tokens
    updates.append(Update(name, line.index, visible, "".join(shown), logprobs, finish, error=error))
    tell(outcome, place, tokens, finish is not None or error is not None)


def tell(outcome: Outcome, place: Place, tokens: list[int], is_finished: bool) -> None:
    """What the scheduler must know: growth of one sequence, or the branches of a prompt."""
    name = place.chunk.request.id
    if place.chunk.num_samples == 1:
        outcome.grown[place.chunk.sequence_id] = Appended(tokens or [0], is_finished)
        return
    children = [*outcome.branched.get(name, Forked([])).children, Child(0, tokens[:1] or [0])]
    outcome.branched[name] = Forked(children)
    if is_finished:
        outcome.ended.append(SequenceId(name, place.line.index))


def publish_beams(
    names: Sequence[str],
    beams: Sequence[Beams],
    parents: Sequence[list[int]],
    updates: list[Update],
) -> dict[str, Forked]:
    """What becomes of the beams of each request; a search that is done is published."""
    branched: dict[str, Forked] = {}
    for name, search, places in zip(names, beams, parents, strict=True):
        if search.is_done:
            branched[name] = Forked([])
            updates.append(result_of(name, search))
        else:
            last = (history[-1] for history in search.histories)
            branched[name] = Forked(
                [Child(parent, [token]) for parent, token in zip(places, last, strict=True)]
            )
    return branched


def burst_of(plan: Plan, beams: Mapping[str, Beams]) -> Bursting | None:
    """Who chooses between the passes of a plan; nobody where it has only one."""
    if plan.num_steps == 1:
        return None
    chunks = [chunk for chunk in plan.chunks if chunk.index == 0]
    kind = BeamBurst if chunks[0].request.beam > 1 else Burst
    return kind(chunks, [beams[chunk.request.id] for chunk in chunks])


def publish_burst(burst: Bursting, beams: Mapping[str, Beams], updates: list[Update]) -> Outcome:
    """What becomes of searches that went through several passes; of who has been cancelled nothing
    is said."""
    outcome = Outcome()
    results: Sequence[Appended | Forked] = burst.settle()
    for chunk, search, result in zip(burst.chunks, burst.searches, results, strict=True):
        if isinstance(result, Appended):
            outcome.grown[chunk.sequence_id] = result
        else:
            outcome.branched[chunk.request.id] = result
        if search.is_done and chunk.request.id in beams:
            updates.append(result_of(chunk.request.id, search))
    return outcome


def result_of(name: str, search: Beams) -> Update:
    """What a search that is done has found."""
    found = search.best()
    error = None if found else NOT_FINITE
    return Update(name, finish=Finish("end"), hypotheses=found, error=error)
