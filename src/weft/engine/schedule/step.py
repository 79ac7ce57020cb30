"""The plan in the making: budgets that shrink, and chunks by job, so that a preempted job's can be
taken back. Also what a job wants to run next (`wishes`)."""

from __future__ import annotations

from typing import NamedTuple

from weft.cache.encoder_cache import EncodedSource
from weft.cache.page_tables import PageCopy
from weft.engine.schedule.plan import Chunk, Embedding, Encoding, Key, Plan
from weft.engine.schedule.request import Job, Sequence


class Wish(NamedTuple):
    """Run a sequence's tokens up to `end`, and drafts behind them."""

    sequence: Sequence
    end: int
    drafts: list[int]

    @property
    def start(self) -> int:
        return self.sequence.num_computed

    @property
    def num_slots(self) -> int:
        """Slots that hold rows afterwards."""
        return self.end + len(self.drafts)


def wishes(job: Job, budget: int) -> list[Wish]:
    """What a job runs next with at most `budget` tokens."""
    if job.has_followers:
        leader = job.leader
        return [Wish(leader, min(job.common, leader.num_computed + budget), [])]
    is_held_back = job.request.beam and sum(s.num_remaining for s in job.sequences) > budget
    result = []
    for sequence in job.sequences:
        # beams sample together: until all can, each stops before its last token
        room = min(budget, sequence.num_remaining - is_held_back)
        if room > 0:
            result.append(Wish(sequence, sequence.num_computed + room, []))
            budget -= room
    return result


def chunk_of(job: Job, wish: Wish) -> Chunk:
    """The chunk that fulfils a wish, once its pages are there."""
    sequence = wish.sequence
    assert sequence.tables is not None, f"{job.request.id} runs without page tables"
    num_samples = 0
    if wish.end == len(sequence.tokens):
        num_samples = job.request.n if job.request.n > 1 and job.is_branching else 1
    return Chunk(
        job.request,
        Key(job.request.id, sequence.index),
        wish.start,
        sequence.tokens[wish.start : wish.end] + wish.drafts,
        len(wish.drafts),
        num_samples,
        sequence.tables.by_group,
        job.source,
    )


class Step:
    """Collects one plan."""

    def __init__(self, number: int, token_budget: int, encoder_budget: int) -> None:
        self.number, self.budget, self.encoder_budget = number, token_budget, encoder_budget
        self.chunks: dict[str, list[Chunk]] = {}
        self.copies: dict[str, list[PageCopy]] = {}
        self.sources: list[Encoding] = []
        self.embeddings: list[Embedding] = []
        self.num_admitted = self.num_preempted = 0

    def put(self, job: Job, chunks: list[Chunk], copies: list[PageCopy]) -> None:
        self.chunks[job.request.id] = chunks
        self.copies[job.request.id] = copies
        for chunk in chunks:
            self.budget -= len(chunk.tokens)

    def take_back(self, job: Job) -> None:
        """A job that was preempted after all runs nothing; its budget is free again."""
        chunks = self.chunks.pop(job.request.id, [])
        self.copies.pop(job.request.id, None)
        self.budget += sum(len(chunk.tokens) for chunk in chunks)

    def can_encode(self, num_tokens: int) -> bool:
        """Within the budget, or alone."""
        return num_tokens <= self.encoder_budget or not (self.sources or self.embeddings)

    def encode(self, source: EncodedSource, ids: tuple[int, ...]) -> None:
        self.sources.append(Encoding(source, ids))
        self.encoder_budget -= len(ids)

    def embed(self, job: Job) -> None:
        self.embeddings.append(Embedding(job.request))
        self.encoder_budget -= len(job.request.prompt)

    def plan(self) -> Plan:
        return Plan(
            self.number,
            [copy for copies in self.copies.values() for copy in copies],
            self.sources,
            self.embeddings,
            [chunk for chunks in self.chunks.values() for chunk in chunks],
            self.num_admitted,
            self.num_preempted,
        )
