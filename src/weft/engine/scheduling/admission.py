"""Admission of a waiting sequence group: its source, its cached prefix, and enough pages.

`check_request` rejects requests that could never be served when they are added, so that every
accepted request finishes. Nothing is reserved for later: a group that runs out of pages is
preempted. But it is admitted only if all tokens that it has now would fit, leaving a watermark of
pages for the running groups, so that it is not preempted in the middle of its prompt. Alone it is
always admitted: `check_request` has made sure that it fits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from enum import Enum, auto

from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.kv_groups import KVCacheLayout
from weft.cache.page_tables import num_blocks_for
from weft.core.errors import UsageError
from weft.engine.config import SchedulerConfig
from weft.engine.scheduling.plan import PlanBuilder
from weft.engine.scheduling.sequence import (
    Request,
    SequenceGroup,
    common_prefix_len,
    fork_followers,
    release_sequence,
    start_sequence,
)
from weft.engine.stats import SchedulerStats


class AdmissionResult(Enum):
    ADMITTED = auto()
    DEFERRED = auto()
    """Not in this step; other groups may be admitted."""
    NO_PAGES = auto()
    """No more pages, tokens or sequences: nothing else is admitted in this step."""


class Admission:
    """Gives a group its source and the page tables of its first sequence, or changes nothing."""

    def __init__(
        self,
        config: SchedulerConfig,
        kv_cache: KVCacheManager,
        statistics: SchedulerStats,
        now: Callable[[], float],
    ) -> None:
        self.config, self.kv_cache, self.statistics, self.now = config, kv_cache, statistics, now
        self.watermark = int(config.watermark * kv_cache.pool.num_usable)
        self.num_matches = 0

    def admit(self, group: SequenceGroup, builder: PlanBuilder, is_alone: bool) -> AdmissionResult:
        """Try to start a group in this step; `is_alone`: no other group runs."""
        num_available = self.kv_cache.num_available
        if not is_alone and self.min_pages(group) + self.watermark > num_available:
            return AdmissionResult.NO_PAGES
        if not self.acquire_source(group, builder):
            return AdmissionResult.DEFERRED
        self.match_prefix(group)
        num_needed = self.num_source_pages(group) + self.num_pages_now(group, builder.budget)
        if not is_alone and num_needed + self.watermark > self.kv_cache.num_available:
            self.undo(group)
            return AdmissionResult.NO_PAGES
        self.allocate_source(group, builder)
        if not group.was_admitted:
            self.statistics.count_admission(group.request, group.first.num_computed)
        group.mark_admitted(self.now(), group.first.num_computed)
        if group.waits_for_first:
            fork_followers(group, self.kv_cache)
        return AdmissionResult.ADMITTED

    def acquire_source(self, group: SequenceGroup, builder: PlanBuilder) -> bool:
        """Acquire the source if it is cached; False if it would have to be encoded and this step's
        encoder budget is used up."""
        if group.source_key is None or group.request.source is None:
            return True
        group.source = self.kv_cache.encoder_cache.find(group.source_key)
        if group.source is None:
            return builder.can_encode(len(group.request.source))
        self.kv_cache.encoder_cache.acquire(group.source, group.request.id)
        return True

    def match_prefix(self, group: SequenceGroup) -> None:
        """Start the first sequence with the longest cached prefix of the common tokens."""
        group.common_len = common_prefix_len(group.sequences)
        tokens = group.first.tokens[: group.common_len + 1]
        self.num_matches += 1
        if self.config.miss_every and self.num_matches % self.config.miss_every == 0:
            tokens = []
        start_sequence(group, group.first, tokens, self.kv_cache)

    def min_pages(self, group: SequenceGroup) -> int:
        """Lower bound of the pages that the first sequence needs, without locking anything."""
        R, num_full = self.kv_cache.pool.page_size, self.kv_cache.windows.count(None)
        cached_len = self.kv_cache.prefix_cache.peek(group.prefix_query)
        return (num_blocks_for(group.first.num_prompt, R) - cached_len // R) * num_full

    def num_pages_now(self, group: SequenceGroup, budget: int) -> int:
        """Pages for all tokens that the group has now, without cached ones."""
        R, tables = self.kv_cache.pool.page_size, group.first.tables
        assert tables is not None, f"{group.request.id} has no page tables"
        shared = group.common_len // R
        tails = sum(num_blocks_for(len(s.tokens), R) - shared for s in group.sequences)
        blocks = shared - tables.num_blocks + tails
        size = len(group.sequences)
        return sum(
            min(blocks, size * max_window_blocks(window, budget, R, blocks))
            for window in self.kv_cache.windows
        )

    def num_source_pages(self, group: SequenceGroup) -> int:
        """Pages to allocate for a source that is not cached."""
        ids = group.request.source
        if ids is None or group.source is not None:
            return 0
        return self.kv_cache.encoder_cache.num_pages(len(ids))

    def allocate_source(self, group: SequenceGroup, builder: PlanBuilder) -> None:
        """Allocate the pages of a new source, to be encoded in this step."""
        ids, key = group.request.source, group.source_key
        if ids is None or key is None:
            return
        if group.source is not None:
            if not group.was_admitted:
                self.statistics.cached_source_tokens += len(ids)
            return
        pages = self.kv_cache.allocate(self.num_source_pages(group), group.request.id)
        assert pages is not None, f"no pages for a source of {len(ids)} tokens"
        group.source = self.kv_cache.encoder_cache.add(key, len(ids), pages, group.request.id)
        builder.add_source(group.source, ids, group.request.key)

    def undo(self, group: SequenceGroup) -> None:
        """Not enough pages: release what was acquired."""
        release_sequence(group.first, self.kv_cache.prefix_cache)
        if group.source is not None:
            self.kv_cache.encoder_cache.release(group.source, group.request.id)
            group.source = None


def check_request(request: Request, config: SchedulerConfig, kv_cache: KVCacheManager) -> None:
    """Raise a UsageError for a request that could never be served."""
    if not request.prompt:
        raise UsageError("the prompt has 0 tokens: it needs at least 1. Give it some text.")
    if request.is_pooling:
        check_source_len("text", len(request.prompt), config)
        return
    check_counts(request, config)
    check_lengths(request, config)
    check_source(request, config, kv_cache.layout)
    check_pages(request, config, kv_cache)


def check_counts(request: Request, config: SchedulerConfig) -> None:
    if request.max_tokens < 1:
        raise UsageError(
            f"max_tokens is {request.max_tokens}: it must be at least 1. Use an embedding request "
            "if nothing is to be generated."
        )
    if request.n < 1 or request.beam < 0 or (request.n > 1 and request.beam):
        raise UsageError(
            f"n is {request.n} and beam is {request.beam}: n must be at least 1, and exactly "
            "1 with beam search. Use n for samples or beam for beam search."
        )
    if request.num_sequences > config.max_running:
        raise UsageError(
            f"the request runs {request.num_sequences} sequences at once but max_running is "
            f"{config.max_running}. Lower n or beam, or raise max_running."
        )


def check_lengths(request: Request, config: SchedulerConfig) -> None:
    if len(request.prompt) >= config.max_len:
        raise UsageError(
            f"the prompt has {len(request.prompt)} tokens but max_len is {config.max_len}"
            f"{config.max_len_note}, and at least one more is to be generated. Shorten it to "
            f"{config.max_len - 1} or fewer."
        )
    total = len(request.prompt) + request.max_tokens
    if total > config.max_len:
        raise UsageError(
            f"the prompt has {len(request.prompt)} tokens and max_tokens is {request.max_tokens}: "
            f"together {total}, but max_len is {config.max_len}{config.max_len_note}. Shorten the "
            f"prompt, or set max_tokens to at most {config.max_len - len(request.prompt)}."
        )


def check_source(request: Request, config: SchedulerConfig, layout: KVCacheLayout) -> None:
    if not layout.self_groups:
        raise UsageError(
            f"request {request.id} asks for {request.max_tokens} tokens, but the model is an "
            "encoder and generates none. Use an embedding request."
        )
    if (request.source is None) == bool(layout.cross_groups):
        has, needs = ("no", "one") if request.source is None else ("a", "none")
        raise UsageError(
            f"request {request.id} has {has} source, but the model takes {needs}. Only "
            "encoder-decoder models have a source, and they need one."
        )
    if request.source is not None:
        check_source_len("source", len(request.source), config)


def check_source_len(what: str, length: int, config: SchedulerConfig) -> None:
    if not 1 <= length <= config.max_source_len:
        raise UsageError(
            f"the {what} has {length} tokens: it may have 1 to {config.max_source_len}"
            f"{config.max_len_note}. Shorten it, or split it into several."
        )


def check_pages(request: Request, config: SchedulerConfig, kv_cache: KVCacheManager) -> None:
    num_needed = num_pages_alone(request, config, kv_cache)
    if num_needed > kv_cache.pool.num_usable:
        raise UsageError(
            f"the request needs up to {num_needed} pages of {kv_cache.pool.page_size} tokens but "
            f"the KV cache has {kv_cache.pool.num_usable}. Lower max_tokens, n or beam, or raise "
            "the KV cache size."
        )


def num_pages_alone(request: Request, config: SchedulerConfig, kv_cache: KVCacheManager) -> int:
    """Upper bound of all pages that a request holds when it runs alone."""
    page_size, num_source = kv_cache.pool.page_size, len(request.source or ())
    num_pages = max_pages(request, config.token_budget, kv_cache.windows, page_size)
    return num_pages + kv_cache.encoder_cache.num_pages(num_source)


def max_pages(request: Request, budget: int, windows: Sequence[int | None], page_size: int) -> int:
    """Upper bound of the self-attention pages that a request holds when it runs alone: its prompt
    once, the generated tokens once per sequence."""
    shared = len(request.prompt) // page_size
    total = num_blocks_for(len(request.prompt) + request.max_tokens, page_size)
    forked = shared + request.num_sequences * (total - shared)
    return sum(
        min(forked, request.num_sequences * max_window_blocks(window, budget, page_size, total))
        for window in windows
    )


def longest_sequence(config: SchedulerConfig, kv_cache: KVCacheManager) -> int:
    """Tokens of a sequence, prompt and answer, that all pages together have room for, up to
    max_len. Beside it an encoder-decoder has a source of the same length."""
    has_source = bool(kv_cache.layout.cross_groups)

    def is_too_long(length: int) -> bool:
        request = Request("", (0,), length - 1, (0,) * length if has_source else None)
        return num_pages_alone(request, config, kv_cache) > kv_cache.pool.num_usable

    return bisect_left(range(1, config.max_len + 1), True, key=is_too_long)


def limit_to_pages(config: SchedulerConfig, kv_cache: KVCacheManager) -> SchedulerConfig:
    """The settings for a KV cache with fewer pages than a sequence of max_len needs; a UsageError
    if not even a prompt of one token and its answer fit."""
    longest, pool = longest_sequence(config, kv_cache), kv_cache.pool
    if longest < 2:
        source = " and a source" if kv_cache.layout.cross_groups else ""
        raise UsageError(
            f"num_pages is {pool.num_usable}, but a sequence of 2 tokens{source} needs "
            f"{len(kv_cache.layout.groups)} pages of this model. Raise num_pages to that or more."
        )
    if longest == config.max_len:
        return config
    note = f" (num_pages: the KV cache has {pool.num_usable} pages of {pool.page_size} tokens)"
    limits = {"max_len": longest, "max_source_len": longest, "max_len_note": note}
    return config.model_copy(update=limits)


def max_window_blocks(window: int | None, chunk: int, page_size: int, total: int) -> int:
    """Maximum number of blocks of one group that a sequence holds with chunks of this size."""
    if window is None:
        return total
    return min(total, num_blocks_for(window + chunk, page_size) + 1)
