"""Where a token of a request looked: (request, layer, head, position) -> weights over its keys.

Nothing is stored while a request is written. The token is run once more, alone, against the keys in
the pages, with a hook on the layer that is asked for; pages and their counts stay as they are. What
the pages have no longer (the last, unfinished page of a request that has ended, the last passes of
a search, or what a window has passed) is run again with it.

The weights are those of a pass over all tokens up to this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from weft.cache.encoder_cache import EncodedSource
from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.kv_store import KVStore, ReadOnlyKVCache
from weft.cache.page_pool import NULL_PAGE
from weft.cache.page_tables import PageIds, PageTables, first_readable_block, num_blocks_for
from weft.cache.prefix_cache import num_readable_blocks
from weft.core.errors import UsageError
from weft.core.forward_batch import ForwardBatch
from weft.engine.past import Past
from weft.engine.scheduling.scheduler_state import SchedulerState
from weft.engine.scheduling.sequence import Request
from weft.models.stack import Stack


@dataclass(frozen=True)
class AttentionRow:
    """What one head of one layer looked at."""

    tokens: list[int]
    weights_S: Tensor
    source_weights_S: Tensor | None = None


@dataclass(frozen=True)
class AttentionRows:
    """What one token looked at, in the layers that were asked for."""

    tokens: list[int]
    """Ids of its keys: all tokens up to itself."""
    weights_LHS: Tensor
    """Each row sums to 1."""
    source_weights_LHS: Tensor | None = None
    """The same over the tokens of the source, where there is one."""

    def of_head(self, head: int) -> AttentionRow:
        """One head of the first of the layers."""
        source = self.source_weights_LHS
        weights_S = None if source is None else source[0, head]
        return AttentionRow(self.tokens, self.weights_LHS[0, head], weights_S)


@dataclass(frozen=True)
class Trail:
    """The tokens of one sequence, and what is left of their rows."""

    name: str
    tokens: list[int]
    block_pages: list[PageIds]
    num_rows: int
    """Leading tokens whose rows those pages hold."""
    source: EncodedSource | None = None
    num_again: int = 0
    """Tokens behind them, and behind those of one page, that are run again without complaint."""

    def start(self, query: int, windows: Sequence[int | None], page_size: int) -> int:
        """The first token that has to be run again so that `query` can be: everything before it is
        read from pages."""
        end = min(query, self.num_rows)
        is_far = query - end >= page_size + self.num_again
        if end // page_size < query // page_size and (is_far or not self.num_again):
            raise UsageError(
                f"request {self.name} has rows of {self.num_rows} tokens in the cache, but "
                f"position {query} reads those of {query // page_size * page_size}: they are not "
                "computed yet, or gone. Ask later while it runs, or give the cache more memory."
            )
        if all(self.has_window(i, end, page_size, window) for i, window in enumerate(windows)):
            return end
        whole = self.block_pages[: end // page_size]
        return num_readable_blocks(whole, windows, page_size) * page_size

    def has_window(self, group: int, end: int, page_size: int, window: int | None) -> bool:
        """Whether all that a query at slot `end` reads of a stripe is there."""
        blocks = range(first_readable_block(end, window, page_size), num_blocks_for(end, page_size))
        return all(self.block_pages[block][group] != NULL_PAGE for block in blocks)


def find_trail(state: SchedulerState, past: Past, name: str, sample: int) -> Trail:
    """One sequence of a request that waits, runs, or has ended not long ago."""
    job, ended = state.groups.get(name), past.lines(name)
    running = {} if job is None or job.request.is_pooling else {s.index: s for s in job.sequences}
    if job is not None and sample in running:
        one = running[sample]
        return make_trail(state.kv_cache, job.request, one.tokens, one.tables, one.num_computed)
    if sample in ended:
        request = past[name].request
        # of several beams, what was written by the last plan is not kept
        again = state.config.num_steps if request.beam > 1 else 0
        return replace(make_trail(state.kv_cache, request, ended[sample]), num_again=again)
    if running or ended:
        known = sorted({*running, *ended})
        raise UsageError(f"request {name} has no sample {sample}: it has {known}. Use one of them.")
    raise UsageError(
        f"there is no request {name} that writes: it was never made, or more than {past.limit} "
        "others have ended since. Ask sooner."
    )


def make_trail(
    kv_cache: KVCacheManager,
    request: Request,
    tokens: list[int],
    tables: PageTables | None = None,
    num_computed: int = 0,
) -> Trail:
    """What tables hold, and behind the windows what the prefix cache has; without tables, what the
    prefix cache has."""
    block_pages = [
        list(page_ids) for page_ids in kv_cache.prefix_cache.lookup(tokens, request.namespace)
    ]
    num_rows = len(block_pages) * kv_cache.pool.page_size
    if tables is not None:
        num_rows = num_computed
        own = [tables.page_ids(block) for block in range(tables.num_blocks)]
        block_pages = [filled(page_ids, block_pages, block) for block, page_ids in enumerate(own)]
    return Trail(request.id, tokens, block_pages, num_rows, find_source(kv_cache, request))


def filled(page_ids: PageIds, cached: list[PageIds], block: int) -> PageIds:
    """A column whose missing pages are those of the cache, as far as it has them."""
    if block >= len(cached):
        return page_ids
    return [page or other for page, other in zip(page_ids, cached[block], strict=True)]


def find_source(kv_cache: KVCacheManager, request: Request) -> EncodedSource | None:
    if request.source is None or request.source_key is None:
        return None
    source = kv_cache.encoder_cache.find(request.source_key)
    if source is None or not source.is_written:
        raise UsageError(
            f"request {request.id} has rows of 0 of the {len(request.source)} tokens of its source "
            "in the cache: it was not encoded yet, or is gone. Ask later while it runs, or give "
            "the cache more memory."
        )
    return source


def check_place(what: str, value: int, number: int, where: str) -> None:
    """Positions, layers and heads are counted from 0."""
    if not 0 <= value < number:
        raise UsageError(
            f"{what} {value} is asked for, but {where} has {number}: use 0 to {number - 1}."
        )


@torch.inference_mode()
def attention_rows(
    stack: Stack,
    store: KVStore,
    kv_cache: KVCacheManager,
    trail: Trail,
    query: int,
    layers: list[int],
) -> AttentionRows:
    """Run the token at `query` again, and catch what it looks at in some layers."""
    check_place("position", query, len(trail.tokens), f"request {trail.name}")
    start = trail.start(query, kv_cache.windows, kv_cache.pool.page_size)
    cache = ReadOnlyKVCache(store, trail.block_pages, start, trail.source)
    if start < query:
        run(stack, trail.tokens[start:query], cache)
    blocks = [stack.layers[layer] for layer in layers]
    crosses = [block.cross.weights for block in blocks if block.cross is not None]
    with ExitStack() as both:
        own = both.enter_context(recorded([block.attention.weights for block in blocks]))
        source = both.enter_context(recorded(crosses))
        run(stack, trail.tokens[query : query + 1], cache)
    return AttentionRows(
        trail.tokens[: query + 1],
        torch.cat(own)[:, :, 0].float().cpu(),
        torch.cat(source)[:, :, 0].float().cpu() if source else None,
    )


def run(stack: Stack, tokens: list[int], cache: ReadOnlyKVCache) -> None:
    stack(ForwardBatch(torch.tensor([tokens], device=cache.store.device), cache=cache))
    cache.advance(len(tokens))


@contextmanager
def recorded(modules: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """What the modules give out during the block, in the order of the calls."""
    seen: list[Tensor] = []

    def keep(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append(output)

    handles = [module.register_forward_hook(keep) for module in modules]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
