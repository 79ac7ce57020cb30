"""One engine step as data: the `Plan` that the scheduler makes, and the results that come back.

The model runner executes, in this order: `copies` one after the other, `sources` and `poolings`
through the encoder, then all `chunks` in one packed forward pass of the decoder, or in `num_steps`
of them, and `layered`, some layers of further chunks. It samples after every chunk with
`num_samples` > 0; `Scheduler.commit` receives `Appended` or `Forked` for each. Page tables in a
plan are the live ones: read them before `commit`, copy what is needed later.

A plan is collected by `PlanBuilder`: token budgets that shrink, and chunks by request, so that
those of a preempted request can be removed again. `DraftBudget` adds drafts for speculative
decoding, `MultiStepGroup` extends the decodes of a group to several steps.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field, replace
from math import ceil
from typing import NamedTuple

from weft.cache.encoder_cache import EncodedSource
from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.page_tables import PageCopy, PageTables, num_blocks_for
from weft.engine.scheduling.sequence import Request, Sequence, SequenceGroup, fork_sequence


class SequenceId(NamedTuple):
    """One sequence of a request: the index of the sample, or the rank of the beam."""

    request_id: str
    sequence_index: int


@dataclass(eq=False, slots=True)
class Chunk:
    """Tokens of one sequence to compute in this step."""

    request: Request
    sequence_id: SequenceId
    start: int
    """Slot of the first token; the rows of all earlier slots are in the pages."""
    tokens: list[int]
    """Drafts are the last ones."""
    num_drafts: int
    num_samples: int
    """Tokens to sample after it: 0 (the prompt continues), 1, or n after an n-fold prompt. For
    beam search 1, whatever the number of candidates."""
    page_tables: list[array[int]]
    """Page tables of the sequence, one per self-attention group; slot s is in page [s // R]."""
    source: EncodedSource | None
    """Its `page_tables`, one per cross-attention group, and `num_tokens`."""
    num_steps: int = 1
    """Maximum number of decode steps: each step after the first computes the token chosen in the
    step before. Pages for all of them are allocated."""
    spares: list[list[array[int]]] = field(default_factory=list)
    """Page tables for further beams, if a search that does not have all its beams yet runs for
    several steps: they take part from the second step on."""

    @property
    def index(self) -> int:
        """The index of the sample, or the rank of the beam."""
        return self.sequence_id.sequence_index

    @property
    def end(self) -> int:
        """Number of keys that the last token attends to, including its own."""
        return self.start + len(self.tokens)

    @property
    def num_rows(self) -> int:
        """Rows of logits needed after it: of its drafts, and of the token to sample."""
        return 1 + self.num_drafts if self.num_samples else 0

    @property
    def is_decode(self) -> bool:
        """It computes the last token, and drafts after it, to sample the next one."""
        return self.num_samples > 0 and len(self.tokens) - self.num_drafts == 1

    def with_spares(self) -> list[Chunk]:
        """This chunk, and a copy of it for each of the spare page tables."""
        return [self, *(replace(self, page_tables=tables, spares=[]) for tables in self.spares)]


@dataclass(frozen=True, eq=False)
class ScheduledSource:
    """A source to encode, and the pages for its cross-attention rows."""

    source: EncodedSource
    ids: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ScheduledPooling:
    """A text to run through the encoder without keeping any rows."""

    request: Request

    @property
    def ids(self) -> tuple[int, ...]:
        return self.request.prompt


@dataclass(frozen=True, eq=False)
class LayerRange:
    """What one step computes of chunks whose layers are divided (layered_prefill.py). A position
    counts tokens, layer after layer: all chunks have passed layer l at (l + 1) * num_tokens."""

    chunks: list[Chunk]
    begin: int
    end: int
    num_layers: int
    """Of the model."""

    @property
    def num_tokens(self) -> int:
        return sum(len(chunk.tokens) for chunk in self.chunks)

    @property
    def is_last(self) -> bool:
        return self.end == self.num_layers * self.num_tokens

    @property
    def share(self) -> float:
        """Part of the work on these chunks."""
        return (self.end - self.begin) / (self.num_layers * self.num_tokens)

    def num_computed(self, position: int) -> list[int]:
        """What a position means for each chunk: its tokens, counted once for each layer that has
        computed them. They add up to the position."""
        layer, row = divmod(position, self.num_tokens)
        counts, begin = [], 0
        for chunk in self.chunks:
            num_tokens = len(chunk.tokens)
            counts.append(layer * num_tokens + min(max(row - begin, 0), num_tokens))
            begin += num_tokens
        return counts


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that one engine step does."""

    step: int
    copies: list[PageCopy] = field(default_factory=list)
    sources: list[ScheduledSource] = field(default_factory=list)
    poolings: list[ScheduledPooling] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    """Those that are computed after this step; the last ones are those of `layered`, if its layers
    are the last."""
    layered: LayerRange | None = None
    num_admitted: int = 0
    num_preempted: int = 0

    @property
    def whole_chunks(self) -> list[Chunk]:
        """Chunks whose layers are all computed in this step."""
        layered = self.layered
        is_ending = layered is not None and layered.is_last
        return self.chunks[: -len(layered.chunks)] if layered and is_ending else self.chunks

    @property
    def num_tokens(self) -> int:
        """Tokens that the decoder has computed after this step (the first of its steps)."""
        return sum(len(chunk.tokens) for chunk in self.chunks)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of prompts, sources and texts that are computed after this step."""
        prefills = (one for one in self.chunks if not one.is_decode)
        return sum(len(chunk.tokens) for chunk in prefills) + self.num_encoder_tokens

    @property
    def num_steps(self) -> int:
        """Above 1: no token is returned before the last of these decode steps."""
        return max((chunk.num_steps for chunk in self.chunks), default=1)

    @property
    def sampled_rows(self) -> list[int]:
        """PackedTokens tokens, chunk after chunk, whose logits are needed."""
        rows: list[int] = []
        end = 0
        for chunk in self.chunks:
            end += len(chunk.tokens)
            rows.extend(range(end - chunk.num_rows, end))
        return rows

    @property
    def request_ids(self) -> list[str]:
        """The requests that it computes, in order."""
        layered = self.layered.chunks if self.layered else []
        ids = [chunk.request.id for chunk in (*self.chunks, *layered)]
        return list(dict.fromkeys([*ids, *(one.request.id for one in self.poolings)]))

    @property
    def num_encoder_tokens(self) -> int:
        sources = sum(len(scheduled.ids) for scheduled in self.sources)
        return sources + sum(len(scheduled.ids) for scheduled in self.poolings)

    @property
    def total_tokens(self) -> int:
        """Tokens of all forward passes of encoder and decoder; those of some layers count in
        part."""
        if self.layered is None:
            return self.num_tokens * self.num_steps + self.num_encoder_tokens
        num_whole = sum(len(chunk.tokens) for chunk in self.whole_chunks)
        num_layered = ceil(self.layered.num_tokens * self.layered.share)
        return num_whole + num_layered + self.num_encoder_tokens

    @property
    def is_empty(self) -> bool:
        return not (self.chunks or self.layered or self.sources or self.poolings)


@dataclass(frozen=True)
class Appended:
    """New tokens of one sequence: accepted drafts and one sampled token, or one per decode step."""

    tokens: SequenceOf[int]
    is_finished: bool = False


class Child(NamedTuple):
    """One sequence after a fork."""

    parent: int
    """Index of the sequence that it continues, as it was before the plan."""
    tokens: SequenceOf[int]
    """New tokens: one per decode step."""
    pages_of: int = 0
    """If `Forked.is_preallocated`: index of the sequence, spares included, whose pages hold its
    rows of these steps, and the rows before them in the page that the first step wrote into."""


@dataclass(frozen=True)
class Forked:
    """The sequences of a request after a plan, in the order of their new indices. Without children
    the request is finished."""

    children: SequenceOf[Child]
    num_steps: int = 1
    """Decode steps that were run."""
    is_preallocated: bool = False
    """False: children share the pages of their parents, copy-on-write. True, after a multi-step
    plan: there is one child for each sequence and spare, each in pages of its own (`pages_of`)."""


def next_chunks(group: SequenceGroup, budget: int) -> list[Chunk]:
    """What a group computes next with at most `budget` tokens. Pages for it are not allocated
    yet."""
    if group.waits_for_first:
        first = group.first
        return [chunk_up_to(group, first, min(group.common_len, first.num_computed + budget))]
    is_partial = group.request.beam and sum(s.num_remaining for s in group.sequences) > budget
    chunks = []
    for sequence in group.sequences:
        # beams are sampled together: until all can be, each stops before its last token
        num_tokens = min(budget, sequence.num_remaining - is_partial)
        if num_tokens > 0:
            chunks.append(chunk_up_to(group, sequence, sequence.num_computed + num_tokens))
            budget -= num_tokens
    return chunks


def chunk_up_to(group: SequenceGroup, sequence: Sequence, end: int) -> Chunk:
    """The next tokens of a sequence, up to slot `end`."""
    request, start = group.request, sequence.num_computed
    assert sequence.tables is not None, f"{request.id} runs without page tables"
    num_samples = 0
    if end == len(sequence.tokens):
        num_samples = request.n if request.n > 1 and group.will_fork else 1
    return Chunk(
        request,
        SequenceId(request.id, sequence.index),
        start,
        sequence.tokens[start:end],
        0,
        num_samples,
        sequence.tables.by_group,
        group.source,
    )


def mean_context(chunks: list[Chunk]) -> float:
    """Tokens before a token of these chunks, on average."""
    num_tokens = sum(len(chunk.tokens) for chunk in chunks)
    total = sum(len(chunk.tokens) * (chunk.start + len(chunk.tokens) / 2) for chunk in chunks)
    return total / num_tokens if num_tokens else 0.0


class PlanBuilder:
    """Collects one plan."""

    def __init__(self, step: int, token_budget: int, encoder_budget: int) -> None:
        self.step, self.budget, self.encoder_budget = step, token_budget, encoder_budget
        self.chunks: dict[str, list[Chunk]] = {}
        self.copies: dict[str, list[PageCopy]] = {}
        self.sources: list[ScheduledSource] = []
        self.poolings: list[ScheduledPooling] = []
        self.encoder_tokens: Counter[str] = Counter()
        """Tokens of sources and texts, by API key."""
        self.layered: LayerRange | None = None
        self.num_admitted = self.num_preempted = 0
        self.is_full = False
        """The last group that was tried found no pages, tokens or place."""

    @property
    def is_empty(self) -> bool:
        return not (self.chunks or self.layered or self.sources or self.poolings)

    def add(self, group: SequenceGroup, chunks: list[Chunk], copies: list[PageCopy]) -> None:
        self.chunks[group.request.id] = chunks
        self.copies[group.request.id] = copies
        for chunk in chunks:
            self.budget -= len(chunk.tokens)

    def remove(self, group: SequenceGroup) -> None:
        """Remove the chunks of a preempted group; their tokens return to the budget."""
        chunks = self.chunks.pop(group.request.id, [])
        self.copies.pop(group.request.id, None)
        self.budget += sum(len(chunk.tokens) for chunk in chunks)

    def can_encode(self, num_tokens: int) -> bool:
        """Within the encoder budget, or the only text of this step."""
        return num_tokens <= self.encoder_budget or not (self.sources or self.poolings)

    def add_source(self, source: EncodedSource, ids: tuple[int, ...], key: str = "") -> None:
        self.sources.append(ScheduledSource(source, ids))
        self.encoder_budget -= len(ids)
        self.encoder_tokens[key] += len(ids)

    def add_pooling(self, group: SequenceGroup) -> None:
        self.poolings.append(ScheduledPooling(group.request))
        self.encoder_budget -= len(group.request.prompt)
        self.encoder_tokens[group.request.key] += len(group.request.prompt)

    def build(self) -> Plan:
        return Plan(
            self.step,
            [copy for copies in self.copies.values() for copy in copies],
            self.sources,
            self.poolings,
            [chunk for chunks in self.chunks.values() for chunk in chunks],
            self.layered,
            self.num_admitted,
            self.num_preempted,
        )


ProposeDrafts = Callable[[Request, Sequence], list[int]]
"""Proposes the next tokens of a decoding sequence; a proposal that is too long is cut."""


class DraftBudget:
    """Tokens and pages that one step can spend on drafts (speculative decoding).

    Drafts get half of the tokens that decoding leaves in the budget, so that prefills continue, and
    only pages that nothing else needs in this step: no draft is worth a preemption.
    """

    def __init__(
        self, propose: ProposeDrafts, num_tokens: int, num_running: int, kv_cache: KVCacheManager
    ) -> None:
        """`num_tokens`: what is left of the token budget after one token per decoding sequence."""
        self.propose, self.num_tokens = propose, num_tokens // 2
        self.num_pages = kv_cache.num_available - num_running * len(kv_cache.windows)

    def add_drafts(self, group: SequenceGroup, sequence: Sequence, chunk: Chunk) -> None:
        """Add drafts to the chunk of a sequence. Sequences about to fork are chosen token by token
        and get none."""
        tables = sequence.tables
        limit = min(self.num_tokens, group.request.max_tokens - sequence.num_generated - 1)
        if limit < 1 or group.will_fork or tables is None:
            return
        drafts = self.propose(group.request, sequence)[:limit]
        num_needed = tables.num_pages_needed(chunk.start, chunk.end + len(drafts))
        if num_needed > self.num_pages:
            return
        self.num_pages -= num_needed
        self.num_tokens -= len(drafts)
        chunk.tokens += drafts
        chunk.num_drafts = len(drafts)


def can_run_multi_step(groups: Iterable[tuple[SequenceGroup, list[Chunk]]]) -> bool:
    """Whether all groups are beam searches of one width that decode one token per beam. Nothing is
    returned from a search before it ends, so its next steps need no plan of their own."""
    width = 0
    for group, chunks in groups:  # plain loops: this runs in every step
        width = width or group.request.beam
        if not group.request.beam == width > 0 or len(chunks) != len(group.sequences):
            return False
        for chunk in chunks:
            if not len(chunk.tokens) == chunk.num_samples == 1:
                return False
    return True


@dataclass(frozen=True)
class MultiStepGroup:
    """A group whose decodes are extended to `num_steps` steps, with their pages allocated up front.

    A search with fewer beams than its width, usually after its prompt, gets spare sequences for the
    beams to come: they share the pages before the first one that is written.
    """

    group: SequenceGroup
    chunks: list[Chunk]
    num_steps: int

    @classmethod
    def of(cls, group: SequenceGroup, chunks: list[Chunk], num_steps: int) -> MultiStepGroup:
        """As many steps as the group can make, up to `num_steps`."""
        # at max_tokens a search can only end, which is decided in a step of its own
        num_left = group.request.max_tokens - group.first.num_generated
        return cls(group, chunks, max(1, min(num_steps, num_left)))

    @property
    def num_spares(self) -> int:
        return self.group.request.beam - len(self.chunks)

    @property
    def num_pages(self) -> int:
        """Pages that all steps need in addition to those of the first."""
        start, end = self.chunks[0].start, self.chunks[0].start + self.num_steps
        tables = [sequence.tables for sequence in self.group.sequences if sequence.tables]
        R = tables[0].pool.page_size
        pages_per_spare = (num_blocks_for(end, R) - start // R) * len(tables[0].by_group)
        needed = sum(one.num_pages_needed(start + 1, end) for one in tables)
        return needed + self.num_spares * pages_per_spare

    def allocate(self, kv_cache: KVCacheManager) -> list[PageCopy]:
        """Allocate these pages; return the copies into the pages of the spares."""
        start, copies = self.chunks[0].start, list[PageCopy]()
        for chunk, sequence in zip(self.chunks, self.group.sequences, strict=True):
            chunk.num_steps = self.num_steps
            copies += add_pages(sequence.tables, start + 1, start + self.num_steps, kv_cache)
        assert not copies, f"{self.group.request.id} shares a page that was just allocated for it"
        # forked from the last one: it keeps the original page, the others have copies of this plan
        chunk, sequence = self.chunks[-1], self.group.sequences[-1]
        for _ in range(self.num_spares):
            spare = fork_sequence(self.group, sequence, kv_cache)
            copies += add_pages(spare.tables, start, start + self.num_steps, kv_cache)
            assert spare.tables is not None, "a spare without page tables"
            self.group.spares.append(spare)
            chunk.spares.append(spare.tables.by_group)
        return copies


def add_pages(
    tables: PageTables | None, start: int, end: int, kv_cache: KVCacheManager
) -> list[PageCopy]:
    """Add pages for slots `start` to `end` - 1 that are known to be available."""
    assert tables is not None, "a sequence runs without page tables"
    num_needed = tables.num_pages_needed(start, end)
    if not num_needed:
        return []
    new_pages = kv_cache.allocate(num_needed, tables.owner)
    assert new_pages is not None, f"{num_needed} pages for {tables.owner} are not available"
    return tables.add_pages(start, end, new_pages)
