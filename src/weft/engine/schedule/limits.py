"""What can never be done is refused when it is asked, with both numbers; and how many pages a
request needs at most, so that what was accepted always ends."""

from __future__ import annotations

from collections.abc import Sequence

from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.kv_groups import KVCacheLayout
from weft.cache.page_tables import num_blocks_for
from weft.core.errors import UsageError
from weft.engine.schedule.request import Request
from weft.engine.schedule.settings import SchedulerConfig


def check_request(request: Request, config: SchedulerConfig, kv_cache: KVCacheManager) -> None:
    """Raise a UsageError for a request that could never be served."""
    if not request.prompt:
        raise UsageError("the prompt has 0 tokens: it needs at least 1. Give it some text.")
    if request.is_embedding:
        check_source_len("text", len(request.prompt), config)
        return
    check_counts(request, config)
    check_lengths(request, config)
    check_source(request, config, kv_cache.layout)
    check_pages(request, config, kv_cache)


def check_counts(request: Request, config: SchedulerConfig) -> None:
    if request.max_tokens < 1:
        raise UsageError(
            f"max_tokens is {request.max_tokens}: it must be at least 1. Ask for an embedding if "
            "nothing is to be written."
        )
    if request.n < 1 or request.beam < 0 or (request.n > 1 and request.beam):
        raise UsageError(
            f"n is {request.n} and beam is {request.beam}: n must be at least 1, and exactly "
            "1 with a beam. Use n for samples or beam for a search."
        )
    if request.num_sequences > config.max_running:
        raise UsageError(
            f"the request runs {request.num_sequences} sequences at once but max_running is "
            f"{config.max_running}. Lower n or beam, or raise max_running."
        )


def check_lengths(request: Request, config: SchedulerConfig) -> None:
    if len(request.prompt) >= config.max_len:
        raise UsageError(
            f"the prompt has {len(request.prompt)} tokens but max_len is {config.max_len}, and at "
            f"least one more is to be written. Shorten it to {config.max_len - 1} or fewer."
        )
    total = len(request.prompt) + request.max_tokens
    if total > config.max_len:
        raise UsageError(
            f"the prompt has {len(request.prompt)} tokens and max_tokens is {request.max_tokens}: "
            f"together {total}, but max_len is {config.max_len}. Shorten the prompt, or ask for at "
            f"most {config.max_len - len(request.prompt)}."
        )


def check_source(request: Request, config: SchedulerConfig, layout: KVCacheLayout) -> None:
    if not layout.self_groups:
        raise UsageError(
            f"request {request.id} wants {request.max_tokens} tokens, but the model is an encoder "
            "and writes none. Ask for an embedding."
        )
    if (request.source is None) == bool(layout.cross_groups):
        has, needs = ("no", "one") if request.source is None else ("a", "none")
        raise UsageError(
            f"request {request.id} has {has} source, but the model takes {needs}. A source belongs "
            "to encoder-decoder models, and only to them."
        )
    if request.source is not None:
        check_source_len("source", len(request.source), config)


def check_source_len(what: str, length: int, config: SchedulerConfig) -> None:
    if not 1 <= length <= config.max_source_len:
        raise UsageError(
            f"the {what} has {length} tokens: it may have 1 to {config.max_source_len}. Shorten "
            "it, or split it into several."
        )


def check_pages(request: Request, config: SchedulerConfig, kv_cache: KVCacheManager) -> None:
    needed = pages_at_most(request, config.token_budget, kv_cache.windows, kv_cache.pool.page_size)
    needed += kv_cache.encoder_cache.num_pages(len(request.source or ()))
    if needed > kv_cache.pool.num_usable:
        raise UsageError(
            f"the request needs up to {needed} pages of {kv_cache.pool.page_size} tokens but the "
            f"cache has {kv_cache.pool.num_usable}. Lower max_tokens, n or beam, or give the cache "
            "more memory."
        )


def pages_at_most(
    request: Request, budget: int, windows: Sequence[int | None], page_size: int
) -> int:
    """Pages of self-attention that a request holds at most, when nothing else runs: its prompt
    once, what follows once for each sequence."""
    shared = len(request.prompt) // page_size
    total = num_blocks_for(len(request.prompt) + request.max_tokens, page_size)
    branched = shared + request.num_sequences * (total - shared)
    return sum(
        min(branched, request.num_sequences * window_blocks(window, budget, page_size, total))
        for window in windows
    )


def window_blocks(window: int | None, chunk: int, page_size: int, total: int) -> int:
    """Blocks of one stripe that a sequence holds at most while it runs chunks of this size."""
    if window is None:
        return total
    return min(total, num_blocks_for(window + chunk, page_size) + 1)
