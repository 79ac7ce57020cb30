"""What an engine has done so far, and how full its cache is: the numbers that a server shows.

    hit_rate            of all prompt tokens, the share that was not computed
    recent_hit_rate     the same over the last requests, of which the prompts are remembered
    optimal_hit_rate    what the best order of just those would have found, beginning with an empty
                        cache. A cache that was warm before, or restored, can do better

Counting costs nothing worth speaking of; the optimum and the share of rows are computed when asked.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from weft.engine.schedule.audit import row_share
from weft.engine.schedule.state import State
from weft.engine.schedule.statistics import best_hits


@dataclass(frozen=True)
class EngineStatistics:
    """Counts since the engine began; pages as they are now."""

    requests: int
    """That got their first turn. Texts to be embedded or scored are not counted."""
    waiting: int
    running: int
    steps: int
    computed_tokens: int
    """Run through the decoder: prompts, new tokens, drafts, and what preemption made run again."""
    prompt_tokens: int
    hit_tokens: int
    hit_rate: float
    recent_requests: int
    recent_hit_rate: float
    optimal_hit_rate: float
    encoded_tokens: int
    """Of sources, and of texts that were read as a whole."""
    source_hit_tokens: int
    """Of sources that were in the cache."""
    draft_tokens: int
    accepted_tokens: int
    pages: int
    pages_in_use: int
    """Held by requests that run."""
    pages_cached: int
    """Held by a cache alone: they can be had at any time."""
    row_share: float
    """Of the rows in all held pages, the share with a real token."""
    preemptions: int
    evictions: int
    """Pages that a cache gave up to make room."""

    def to_json(self) -> dict[str, Any]:
        """Plain values by name, for json.dumps."""
        return asdict(self)


def engine_statistics(state: State) -> EngineStatistics:
    counts, pool, log = state.statistics, state.kv_cache.pool, state.statistics.log
    best = best_hits(log.prompts, pool.page_size)
    return EngineStatistics(
        requests=counts.admitted,
        waiting=len(state.waiting),
        running=len(state.running),
        steps=counts.steps,
        computed_tokens=counts.computed_tokens,
        prompt_tokens=counts.prompt_tokens,
        hit_tokens=counts.cached_tokens,
        hit_rate=counts.hit_rate,
        recent_requests=len(log.prompts),
        recent_hit_rate=share(log.num_cached, log.num_tokens),
        optimal_hit_rate=share(best, log.num_tokens),
        encoded_tokens=counts.encoded_tokens,
        source_hit_tokens=counts.cached_source_tokens,
        draft_tokens=counts.draft_tokens,
        accepted_tokens=counts.accepted_tokens,
        pages=pool.num_usable,
        pages_in_use=pool.num_usable - pool.num_free - pool.num_evictable,
        pages_cached=pool.num_evictable,
        row_share=row_share(state),
        preemptions=counts.preempted,
        evictions=state.kv_cache.num_evicted,
    )


def share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
