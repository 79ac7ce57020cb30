"""Attention weights of a token of a request: (request, layer, head, position) -> weights over keys.

Nothing is recorded while a request runs. The token is run once more, alone, against the keys in the
KV cache, with a hook on the requested layers; pages and their reference counts do not change.
Tokens whose rows are not cached any more (the last, partial page of a finished request, the last
steps of a beam search, tokens outside a sliding window) are run again with it.

The weights are those of a forward pass over all tokens up to this one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

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
from weft.engine.scheduling.scheduler_state import SchedulerState
from weft.engine.scheduling.sequence import Request
from weft.models.stack import Stack

MAX_KEYS = 1024
"""API keys whose finished requests are kept: those with the most recent ones."""


@dataclass(frozen=True)
class AttentionRow:
    """Attention weights of one token in one head of one layer."""

    tokens: list[int]
    weights_S: Tensor
    source_weights_S: Tensor | None = None


@dataclass(frozen=True)
class AttentionRows:
    """Attention weights of one token in the requested layers."""

    tokens: list[int]
    """Ids of the keys: all tokens up to itself."""
    weights_LHS: Tensor
    """Each row sums to 1."""
    source_weights_LHS: Tensor | None = None
    """The same over the tokens of the source, for an encoder-decoder."""

    def of_head(self, head: int) -> AttentionRow:
        """One head of the first layer."""
        source = self.source_weights_LHS
        weights_S = None if source is None else source[0, head]
        return AttentionRow(self.tokens, self.weights_LHS[0, head], weights_S)


@dataclass(frozen=True)
class FinishedRequest:
    """A request and all tokens of its samples, prompt included; for a beam search those of its
    hypotheses, best first."""

    request: Request
    samples: dict[int, list[int]] = field(default_factory=dict)


class FinishedRequests:
    """Tokens of the last `limit` finished requests of each API key, by id. Only ids are kept here;
    their rows stay in the KV cache until they are evicted."""

    def __init__(self, limit: int = 256) -> None:
        self.limit = limit
        self.requests: dict[str, FinishedRequest] = {}
        self.ids_by_key: OrderedDict[str, deque[str]] = OrderedDict()
        """In the order in which they finished; keys in the order of their last request."""

    def __contains__(self, request_id: str) -> bool:
        return request_id in self.requests

    def __getitem__(self, request_id: str) -> FinishedRequest:
        return self.requests[request_id]

    def samples(self, request_id: str) -> dict[int, list[int]]:
        """The samples of a request; empty if it is unknown."""
        return self.requests[request_id].samples if request_id in self.requests else {}

    def add(self, request: Request, sample: int, output: list[int]) -> None:
        """Add a finished sample; `output` are its generated tokens."""
        if request.id not in self.requests:
            ids = self.ids_by_key.setdefault(request.key, deque())
            self.ids_by_key.move_to_end(request.key)
            ids.append(request.id)
        finished = self.requests.setdefault(request.id, FinishedRequest(request))
        finished.samples[sample] = [*request.prompt, *output]
        self.forget_oldest(request.key)

    def forget_oldest(self, key: str) -> None:
        """Keep to the limits of requests of a key, and of keys."""
        ids = self.ids_by_key[key]
        dropped = [ids.popleft() for _ in range(len(ids) - self.limit)]
        while len(self.ids_by_key) > MAX_KEYS:
            dropped += self.ids_by_key.popitem(last=False)[1]
        for request_id in dropped:
            self.requests.pop(request_id, None)


@dataclass(frozen=True)
class RequestPages:
    """The tokens of one sequence, and the pages that still hold their rows."""

    request_id: str
    tokens: list[int]
    block_pages: list[PageIds]
    num_rows: int
    """Number of leading tokens whose rows those pages hold."""
    source: EncodedSource | None = None
    num_rerun: int = 0
    """Number of tokens after them that may be run again, besides those of one page."""

    def start(self, query: int, windows: Sequence[int | None], page_size: int) -> int:
        """The first token that has to be run again for `query`: everything before it is read from
        pages."""
        end = min(query, self.num_rows)
        is_far = query - end >= page_size + self.num_rerun
        if end // page_size < query // page_size and (is_far or not self.num_rerun):
            raise UsageError(
                f"request {self.request_id} has {self.num_rows} tokens in the KV cache, but "
                f"position {query} needs {query // page_size * page_size}: they are not computed "
                "yet, or were evicted. Ask later while it runs, or raise cache_gib."
            )
        if all(self.has_window(i, end, page_size, window) for i, window in enumerate(windows)):
            return end
        whole = self.block_pages[: end // page_size]
        return num_readable_blocks(whole, windows, page_size) * page_size

    def has_window(self, group: int, end: int, page_size: int, window: int | None) -> bool:
        """Whether all pages that a query at slot `end` reads of a group are cached."""
        blocks = range(first_readable_block(end, window, page_size), num_blocks_for(end, page_size))
        return all(self.block_pages[block][group] != NULL_PAGE for block in blocks)


def find_pages(
    state: SchedulerState, finished: FinishedRequests, request_id: str, sample: int
) -> RequestPages:
    """The pages of one sample of a request that waits, runs, or has finished recently."""
    job, ended = state.groups.get(request_id), finished.samples(request_id)
    running = {} if job is None or job.request.is_pooling else {s.index: s for s in job.sequences}
    if job is not None and sample in running:
        sequence = running[sample]
        tokens, tables = sequence.tokens, sequence.tables
        return make_pages(state.kv_cache, job.request, tokens, tables, sequence.num_computed)
    if sample in ended:
        request = finished[request_id].request
        # rows that the last plan of a beam search wrote are not cached
        num_rerun = state.config.num_steps if request.beam > 1 else 0
        return replace(make_pages(state.kv_cache, request, ended[sample]), num_rerun=num_rerun)
    if running or ended:
        known = sorted({*running, *ended})
        raise UsageError(
            f"request {request_id} has no sample {sample}: it has {known}. Use one of them."
        )
    raise UsageError(
        f"there is no generation request {request_id}: it was never submitted, or more than "
        f"{finished.limit} others of its API key have finished since. Ask sooner."
    )


def make_pages(
    kv_cache: KVCacheManager,
    request: Request,
    tokens: list[int],
    tables: PageTables | None = None,
    num_computed: int = 0,
) -> RequestPages:
    """The pages of the sequence's page tables, completed outside its windows by those of the prefix
    cache; without page tables, those of the prefix cache."""
    block_pages = [
        list(page_ids) for page_ids in kv_cache.prefix_cache.lookup(tokens, request.namespace)
    ]
    num_rows = len(block_pages) * kv_cache.pool.page_size
    if tables is not None:
        num_rows = num_computed
        table = [tables.page_ids(block) for block in range(tables.num_blocks)]
        block_pages = [filled(page_ids, block_pages, block) for block, page_ids in enumerate(table)]
    return RequestPages(request.id, tokens, block_pages, num_rows, find_source(kv_cache, request))


def filled(page_ids: PageIds, cached: list[PageIds], block: int) -> PageIds:
    """A page_ids with its missing pages taken from the cache, where it has them."""
    if block >= len(cached):
        return page_ids
    return [page or other for page, other in zip(page_ids, cached[block], strict=True)]


def find_source(kv_cache: KVCacheManager, request: Request) -> EncodedSource | None:
    if request.source is None or request.source_key is None:
        return None
    source = kv_cache.encoder_cache.find(request.source_key)
    if source is None or not source.is_written:
        raise UsageError(
            f"the source of request {request.id} has 0 of its {len(request.source)} tokens in the "
            "KV cache: it was not encoded yet, or was evicted. Ask later while it runs, or raise "
            "cache_gib."
        )
    return source


def check_index(what: str, value: int, number: int, where: str) -> None:
    """Raise a UsageError unless 0 <= value < number."""
    if not 0 <= value < number:
        raise UsageError(f"{what} is {value}, but {where} has {number}: use 0 to {number - 1}.")


@torch.inference_mode()
def attention_rows(
    stack: Stack,
    store: KVStore,
    kv_cache: KVCacheManager,
    pages: RequestPages,
    query: int,
    layers: list[int],
) -> AttentionRows:
    """Run the token at `query` again and record its attention weights in some layers."""
    check_index("position", query, len(pages.tokens), f"request {pages.request_id}")
    start = pages.start(query, kv_cache.windows, kv_cache.pool.page_size)
    cache = ReadOnlyKVCache(store, pages.block_pages, start, pages.source)
    if start < query:
        run(stack, pages.tokens[start:query], cache)
    blocks = [stack.layers[layer] for layer in layers]
    crosses = [block.cross.weights for block in blocks if block.cross is not None]
    with ExitStack() as recording:
        weights = recording.enter_context(recorded([block.attention.weights for block in blocks]))
        source = recording.enter_context(recorded(crosses))
        run(stack, pages.tokens[query : query + 1], cache)
    return AttentionRows(
        pages.tokens[: query + 1],
        torch.cat(weights)[:, :, 0].float().cpu(),
        torch.cat(source)[:, :, 0].float().cpu() if source else None,
    )


def run(stack: Stack, tokens: list[int], cache: ReadOnlyKVCache) -> None:
    stack(ForwardBatch(torch.tensor([tokens], device=cache.store.device), cache=cache))
    cache.advance(len(tokens))


@contextmanager
def recorded(modules: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """The outputs of the modules during the `with` block, in the order of the calls."""
    outputs: list[Tensor] = []

    def record(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        outputs.append(output)

    handles = [module.register_forward_hook(record) for module in modules]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()
