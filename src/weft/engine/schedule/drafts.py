"""Guesses of the next tokens (speculative decoding) -> longer wishes, as far as room is left.

Drafts share half of the tokens that decoding leaves in the budget, so that prompts go on, and only
pages that nobody else will ask for in this step: no guess is worth a preemption.
"""

from __future__ import annotations

from collections.abc import Callable

from weft.cache.kv_cache_manager import KVCacheManager
from weft.engine.schedule.request import Job, Request, Sequence
from weft.engine.schedule.step import Wish

Drafts = Callable[[Request, Sequence], list[int]]
"""Guesses of the next tokens of a sequence that decodes; too many are cut."""


class DraftBudget:
    """What one step can spend on drafts."""

    def __init__(
        self, drafts: Drafts, num_tokens: int, num_running: int, kv_cache: KVCacheManager
    ) -> None:
        """`num_tokens`: what the budget has left when everybody who decodes has run one."""
        self.drafts, self.num_tokens = drafts, num_tokens // 2
        self.num_pages = kv_cache.num_available - num_running * len(kv_cache.windows)

    def longer(self, job: Job, wish: Wish) -> Wish:
        """The wish with drafts behind it. Branches are chosen token by token: they get none."""
        tables, sequence = wish.sequence.tables, wish.sequence
        limit = min(self.num_tokens, job.request.max_tokens - sequence.num_generated - 1)
        if limit < 1 or job.is_branching or tables is None:
            return wish
        longer = wish._replace(drafts=self.drafts(job.request, sequence)[:limit])
        needed = tables.num_pages_needed(longer.start, longer.num_slots)
        if needed > self.num_pages:
            return wish
        self.num_pages -= needed
        self.num_tokens -= len(longer.drafts)
        return longer
