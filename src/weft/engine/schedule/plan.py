"""One step as data: what the scheduler decides (`Plan`) and what the runner reports back.

The runner executes, in this order: `copies` one after the other, `sources` and `embeddings` through
the encoder, then all `chunks` in one packed pass of the decoder, or in `num_passes` of them.
Then it samples behind every chunk that says so and hands `Grown`, `Branched` or, behind several
passes of beams, `BranchedFar` to `commit`. Page tables in a plan are the live ones: read them
before `commit`, keep copies of what is needed later.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from weft.cache.encoder_cache import EncodedSource
from weft.cache.page_tables import PageCopy
from weft.engine.schedule.request import Request


class Key(NamedTuple):
    """One sequence of a request: the number of the sample, or the place in the beam."""

    request_id: str
    sequence: int


@dataclass(eq=False, slots=True)
class Chunk:
    """Tokens of one sequence to be run in this step."""

    request: Request
    key: Key
    start: int
    """Slot of the first token; rows of all slots before it are in the pages."""
    tokens: list[int]
    """The drafts are the last ones."""
    num_drafts: int
    num_samples: int
    """Tokens to sample behind it: 0 (more of the prompt comes), 1, or n behind an n-fold prompt.
    For beams 1: each beam's next tokens are wanted, whatever their number."""
    page_tables: list[array[int]]
    """Page tables of the sequence, one a stripe of self-attention; slot s lies in [s // R]."""
    source: EncodedSource | None
    """Its `pages`, one table a stripe of cross-attention, and `num_tokens`."""
    num_passes: int = 1
    """Above 1 it takes part in so many passes, at most: each but the first runs the token that was
    chosen in the one before. There are pages for all of them."""
    spares: list[list[array[int]]] = field(default_factory=list)
    """Page tables for children, where a search that does not have all its beams yet is run for
    several passes: lanes that take part from the second one on."""

    @property
    def index(self) -> int:
        """The number of the sample, or the place in the beam."""
        return self.key.sequence

    @property
    def end(self) -> int:
        """Keys that the last token sees, itself included."""
        return self.start + len(self.tokens)

    def lanes(self) -> list[Chunk]:
        """Itself, and a twin for each of the spares."""
        return [self, *(replace(self, page_tables=tables, spares=[]) for tables in self.spares)]


@dataclass(frozen=True, eq=False)
class Encoding:
    """A source to be run through the encoder, and the pages for its cross-attention rows."""

    source: EncodedSource
    ids: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Embedding:
    """A text to be run through the encoder; nothing of it is kept."""

    request: Request

    @property
    def ids(self) -> tuple[int, ...]:
        return self.request.prompt


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that one step does."""

    step: int
    copies: list[PageCopy] = field(default_factory=list)
    sources: list[Encoding] = field(default_factory=list)
    embeddings: list[Embedding] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    num_admitted: int = 0
    num_preempted: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that the decoder runs."""
        return sum(len(chunk.tokens) for chunk in self.chunks)

    @property
    def num_passes(self) -> int:
        """Above 1: nobody looks at a token before the last of them."""
        return max((chunk.num_passes for chunk in self.chunks), default=1)

    @property
    def num_encoder_tokens(self) -> int:
        sources = sum(len(encoding.ids) for encoding in self.sources)
        return sources + sum(len(embedding.ids) for embedding in self.embeddings)

    @property
    def is_empty(self) -> bool:
        return not (self.chunks or self.sources or self.embeddings)


@dataclass(frozen=True)
class Grown:
    """What one sequence got: the drafts that were accepted and then one sampled token; or one token
    of each pass."""

    tokens: Sequence[int]
    is_finished: bool = False


@dataclass(frozen=True)
class Branched:
    """What becomes of all sequences of a request: (place of the parent, next token) for each that
    goes on, in the order of their new places. None: the request is finished."""

    children: Sequence[tuple[int, int]]


class FarChild(NamedTuple):
    """One beam behind several passes."""

    parent: int
    """Place of the beam that it comes from, as it was before the first pass."""
    lane: int
    """Place of the sequence in whose pages its rows of these passes lie, and those before them in
    the page that the first pass wrote into."""
    tokens: list[int]


@dataclass(frozen=True)
class BranchedFar:
    """`Branched` behind several passes: as many children as the search has lanes, each in its own.
    None: the request is finished."""

    num_passes: int
    children: Sequence[FarChild]
