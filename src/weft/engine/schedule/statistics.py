"""Counts of what the scheduler did, and the best that any order could have done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from weft.engine.schedule.request import Job, Request


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

    @property
    def hit_rate(self) -> float:
        """Share of prompt tokens that were not computed."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def optimal_hits(requests: Iterable[Request], page_size: int) -> int:
    """Prompt tokens that the best order finds cached, if it may wait for all requests.

    That order goes through the tree of all prompts depth first; then each prompt finds what it has
    in common with the one before it, and a cache as large as the longest request is enough (Zheng
    2024, theorem 3.1). Whole pages, and never the last token of a prompt.
    """
    keys = sorted((Job(r, 0).namespace, r.prompt) for r in requests if not r.is_embedding)
    hits = 0
    for (space_before, before), (space, prompt) in pairwise(keys):
        if space_before == space:
            shared = min(common_prefix(before, prompt), len(prompt) - 1)
            hits += shared // page_size * page_size
    return hits


def common_prefix(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """How many leading tokens two prompts share."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
