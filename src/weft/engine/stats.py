"""Counters of the engine and its scheduler, and the use of the KV cache.

    hit_rate            share of all prompt tokens that were found in the prefix cache
    recent_hit_rate     the same over the recent requests, whose prompts are kept
    optimal_hit_rate    what the best order of exactly those would have found, starting with an
                        empty cache. A cache that was warm before, or restored, can do better

Counting costs next to nothing; the optimum and the share of rows are computed when asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.engine.scheduling.sequence import Request

TOKEN = np.dtype(">u4")
"""A token as big-endian bytes: they sort in the order of the tokens, and much faster."""


@dataclass(frozen=True)
class EngineStats:
    """Counts since the engine was created; pages as they are now."""

    requests: int
    """Requests that were admitted, without texts to embed or score."""
    waiting: int
    running: int
    steps: int
    computed_tokens: int
    """Run through the decoder: prompts, new tokens, drafts, and recomputation after preemption."""
    prompt_tokens: int
    hit_tokens: int
    hit_rate: float
    recent_requests: int
    recent_hit_rate: float
    optimal_hit_rate: float
    encoded_tokens: int
    """Tokens of sources, and of texts to embed or score."""
    source_hit_tokens: int
    """Tokens of sources that were found in the encoder cache."""
    draft_tokens: int
    accepted_tokens: int
    pages: int
    pages_in_use: int
    """Pages held by running requests."""
    pages_cached: int
    """Pages held by a cache only, which are evicted when needed."""
    row_share: float
    """Share of the rows in all held pages that belong to a computed token."""
    preemptions: int
    evictions: int
    """Pages that were evicted from a cache."""

    def to_json(self) -> dict[str, int | float]:
        """Plain values by name, for json.dumps."""
        return asdict(self)


class Prompt(NamedTuple):
    """A past prompt in compact form."""

    namespace: str
    tokens: bytes
    num_cached: int = 0

    @classmethod
    def of(cls, request: Request, num_cached: int = 0) -> Prompt:
        tokens = np.asarray(request.prompt, dtype=TOKEN).tobytes()
        return cls(request.namespace, tokens, num_cached)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) // TOKEN.itemsize


class PromptLog:
    """The prompts admitted last, up to a total number of tokens: a few megabytes."""

    def __init__(self, max_prompts: int = 4096, max_tokens: int = 1_000_000) -> None:
        self.max_prompts, self.max_tokens = max_prompts, max_tokens
        self.prompts: deque[Prompt] = deque()
        self.num_tokens = self.num_cached = 0

    def add(self, prompt: Prompt) -> None:
        self.prompts.append(prompt)
        self.num_tokens += prompt.num_tokens
        self.num_cached += prompt.num_cached
        while len(self.prompts) > self.max_prompts or (
            self.num_tokens > self.max_tokens and len(self.prompts) > 1
        ):
            oldest = self.prompts.popleft()
            self.num_tokens -= oldest.num_tokens
            self.num_cached -= oldest.num_cached


@dataclass
class SchedulerStats:
    """Counted over the lifetime of a scheduler."""

    steps: int = 0
    admitted: int = 0
    """Requests that were admitted, each counted once."""
    preempted: int = 0
    prompt_tokens: int = 0
    """Prompt tokens of all requests, at their first admission."""
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    computed_tokens: int = 0
    """Prompts, new tokens, drafts, and recomputation after preemption."""
    encoded_tokens: int = 0
    cached_source_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    """Drafts that were correct."""
    log: PromptLog = field(default_factory=PromptLog, repr=False)

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were found in the prefix cache."""
        return ratio(self.cached_tokens, self.prompt_tokens)

    def count_admission(self, request: Request, num_cached: int) -> None:
        """Count the first admission of a request with `num_cached` cached prompt tokens."""
        self.admitted += 1
        self.prompt_tokens += len(request.prompt)
        self.cached_tokens += num_cached
        self.log.add(Prompt.of(request, num_cached))


def optimal_hits(requests: Iterable[Request], page_size: int) -> int:
    """Prompt tokens that the best order of requests finds cached."""
    return best_hits((Prompt.of(r) for r in requests if not r.is_pooling), page_size)


def best_hits(prompts: Iterable[Prompt], page_size: int) -> int:
    """Prompt tokens that the best order finds cached, if it may wait for all prompts.

    That order goes through the tree of all prompts depth first; then each prompt finds what it has
    in common with the one before it, and a cache as large as the longest request is enough (Zheng
    2023, theorem 3.1). Whole pages, and never the last token of a prompt.
    """
    hits = 0
    for before, prompt in pairwise(sorted(prompts)):
        if before.namespace == prompt.namespace:
            shared = min(common_prefix(before.tokens, prompt.tokens), prompt.num_tokens - 1)
            hits += shared // page_size * page_size
    return hits


def common_prefix(first: bytes, second: bytes) -> int:
    """Number of leading tokens that two prompts share."""
    number = min(len(first), len(second)) // TOKEN.itemsize
    differs: NDArray[np.bool_] = np.frombuffer(first, TOKEN, number) != np.frombuffer(
        second, TOKEN, number
    )
    return int(differs.argmax()) if differs.any() else number


def ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
