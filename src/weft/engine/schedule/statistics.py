"""Counts of what the scheduler did, and the best that any order could have done."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from weft.engine.schedule.request import Request

TOKEN = np.dtype(">u4")
"""A token as bytes, the highest first: bytes are sorted as the tokens are, and much faster."""


class Prompt(NamedTuple):
    """A prompt of the past, in few bytes."""

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
    """The last prompts that were admitted, up to so many tokens in all: a few megabytes."""

    def __init__(self, most_prompts: int = 4096, most_tokens: int = 1_000_000) -> None:
        self.most_prompts, self.most_tokens = most_prompts, most_tokens
        self.prompts: deque[Prompt] = deque()
        self.num_tokens = self.num_cached = 0

    def add(self, prompt: Prompt) -> None:
        self.prompts.append(prompt)
        self.num_tokens += prompt.num_tokens
        self.num_cached += prompt.num_cached
        while len(self.prompts) > self.most_prompts or (
            self.num_tokens > self.most_tokens and len(self.prompts) > 1
        ):
            oldest = self.prompts.popleft()
            self.num_tokens -= oldest.num_tokens
            self.num_cached -= oldest.num_cached


@dataclass
class Statistics:
    """Counted over the life of a scheduler."""

    steps: int = 0
    admitted: int = 0
    """Requests that got their first turn."""
    preempted: int = 0
    prompt_tokens: int = 0
    """Of all requests at their first admission."""
    cached_tokens: int = 0
    """Those of them that the prefix cache had."""
    computed_tokens: int = 0
    """Tokens that were run: prompts, new tokens, drafts, and what preemption made run again."""
    encoded_tokens: int = 0
    cached_source_tokens: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    """Drafts that were right."""
    log: PromptLog = field(default_factory=PromptLog, repr=False)

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were not computed."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def count(self, request: Request, num_cached: int) -> None:
        """A request gets its first turn, with so many tokens of its prompt cached."""
        self.admitted += 1
        self.prompt_tokens += len(request.prompt)
        self.cached_tokens += num_cached
        self.log.add(Prompt.of(request, num_cached))


def optimal_hits(requests: Iterable[Request], page_size: int) -> int:
    """Prompt tokens that the best order of requests finds cached."""
    return best_hits((Prompt.of(r) for r in requests if not r.is_embedding), page_size)


def best_hits(prompts: Iterable[Prompt], page_size: int) -> int:
    """Prompt tokens that the best order finds cached, if it may wait for all prompts.

    That order goes through the tree of all prompts depth first; then each prompt finds what it has
    in common with the one before it, and a cache as large as the longest request is enough (Zheng
    2024, theorem 3.1). Whole pages, and never the last token of a prompt.
    """
    hits = 0
    for before, prompt in pairwise(sorted(prompts)):
        if before.namespace == prompt.namespace:
            shared = min(common_prefix(before.tokens, prompt.tokens), prompt.num_tokens - 1)
            hits += shared // page_size * page_size
    return hits


def common_prefix(first: bytes, second: bytes) -> int:
    """How many leading tokens two prompts share."""
    number = min(len(first), len(second)) // TOKEN.itemsize
    one, other = (np.frombuffer(part, TOKEN, number) for part in (first, second))
    differs = one != other
    return int(differs.argmax()) if differs.any() else number
