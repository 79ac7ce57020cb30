"""The engine: requests in, tokens out, many at once. One step: schedule, run, sample, commit.

    engine = Engine(model, tokenizer)
    request_id = engine.submit(GenerationRequest(prompt, max_tokens=50))
    while not engine.is_idle:
        for output in engine.step():
            ...                                   # new tokens and text of each request

In float32 on a CPU, tokens and log-probabilities of a request are the same bits with or without a
cached prefix, alone or in a batch, preempted or not, with drafts or without, for any number of
threads.

An exception at any point leaves a working engine that continues with the same results: before the
results of a step are recorded nothing has happened, afterwards the step is completed (recovery.py).
A request that makes steps fail ends with an error in its output; the others continue.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterable
from functools import cached_property
from itertools import count
from math import isnan
from pathlib import Path

import torch
from torch import Tensor

from weft.cache import PREFIX_CACHES
from weft.cache.events import EventListener, EventQueue
from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.kv_groups import KVCacheLayout
from weft.cache.kv_store import KVStore
from weft.cache.page_pool import PagePool
from weft.cache.replay import ReplayedState
from weft.core.device import device_of, dtype_of
from weft.core.errors import UsageError
from weft.core.registry import pick
from weft.engine.attention_rows import (
    AttentionRow,
    AttentionRows,
    attention_rows,
    check_index,
    find_pages,
)
from weft.engine.beam_search import BeamSearch
from weft.engine.cache_file import CacheFileSummary, cache_key, load_cache, save_cache
from weft.engine.config import EngineConfig
from weft.engine.detokenizer import FinishReason
from weft.engine.engine_state import EngineState, PreparedRequest, ScoredText, StepRecord
from weft.engine.interrupts import DeferredInterrupts
from weft.engine.logits import HIDDEN_NOT_FINITE, not_finite_error
from weft.engine.memory_budget import cache_pages, checked_pages
from weft.engine.model_runner import ModelRunner
from weft.engine.recovery import FaultIsolation, recover
from weft.engine.request import GenerationRequest, RequestOutput, SampleStateFactory
from weft.engine.request_checks import (
    check_beam_request,
    check_has_tokenizer,
    check_num_top,
    check_request_ids,
    check_request_types,
    check_text_ids,
)
from weft.engine.sampling_step import StepChooser
from weft.engine.scheduling.admission import check_request, limit_to_pages
from weft.engine.scheduling.audit import cache_state
from weft.engine.scheduling.plan import Plan
from weft.engine.scheduling.scheduler import Scheduler
from weft.engine.scheduling.sequence import Request, Sequence
from weft.engine.stats import EngineStats
from weft.engine.thread_controller import ThreadController
from weft.models.build import AnyModel
from weft.models.transformer import Decoder
from weft.native.huge_pages import huge_page_units
from weft.nn.packed_modules import matrices_of, pack_model
from weft.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class Engine:
    """One model, one page pool, any number of requests."""

    def __init__(
        self,
        model: AnyModel,
        tokenizer: Tokenizer | None = None,
        config: EngineConfig | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Without a tokenizer it works with token ids only: no text, stop strings or grammars."""
        self.config = config or EngineConfig()
        self.model, self.tokenizer = model.eval(), tokenizer
        if device_of(model).type == "cpu":
            pack_weights(model)
        self.kv_cache, store = make_kv_cache(model, self.config)
        self.runner = ModelRunner(model, self.kv_cache.layout, store)
        settings = self.config.scheduler(model.config, self.runner.can_generate)
        if self.config.num_pages is not None:
            settings = limit_to_pages(settings, self.kv_cache)
        self.scheduler = Scheduler(settings, self.kv_cache, now)
        self.threads = ThreadController()
        self.counter = count()
        vocab_size, speculate = model.config.vocab_size, self.config.speculate
        self.sample_states = SampleStateFactory(tokenizer, vocab_size, speculate)
        self.state = EngineState(self.scheduler, self.sample_states)
        self.requests, self.samples = self.state.requests, self.state.samples
        self.beams, self.finished = self.state.beams, self.state.finished
        self.events, self.interrupts = EventQueue(), DeferredInterrupts()
        if self.config.reserve:
            for _ in self.huge_page_units():
                pass

    def __repr__(self) -> str:
        pool, state = self.kv_cache.pool, self.scheduler.state
        cached = pool.num_evictable
        used = pool.num_pages - 1 - pool.num_free - cached
        return (
            f"Engine({self.model.config.kind}, {state.num_running} running, "
            f"{self.scheduler.num_waiting} waiting, {used:,} pages in use, {cached:,} cached, "
            f"{pool.num_free:,} free)"
        )

    @property
    def is_idle(self) -> bool:
        """Whether no request is active and all outputs were returned."""
        return self.scheduler.is_idle and not self.state.has_outputs

    def submit(self, request: GenerationRequest, request_id: str | None = None) -> str:
        """Add a request and return its id, a new one unless it is from `new_id`. Raises a
        UsageError, and changes nothing, for a request that can never be served."""
        return self.add(self.prepare(request, request_id))

    def submit_embedding(self, ids: Iterable[int], request_id: str | None = None) -> str:
        """Add a text for the encoder: its hidden states come in one output."""
        return self.add(self.prepare_embedding(ids, request_id))

    def submit_score(self, ids: Iterable[int], request_id: str | None = None) -> str:
        """Add a text for a decoder: the log-probability of each of its tokens but the first comes
        in one output. All of it is computed, whatever the prefix cache holds, and none of it is
        cached."""
        return self.add(self.prepare_score(ids, request_id))

    def prepare(self, request: GenerationRequest, request_id: str | None = None) -> PreparedRequest:
        """Check a request and compile its grammar, without adding it. Unlike the other methods it
        may be called in any thread while a step runs, and so may the two that follow."""
        check_request_types(request)
        check_request_ids(request, self.model.config)
        check_beam_request(request)
        check_has_tokenizer(request, self.tokenizer)
        beam = request.beam.width if request.beam else 0
        prompt, name = tuple(request.prompt), request_id or self.new_id()
        scheduled = Request(
            name,
            prompt,
            request.max_tokens,
            None if request.source is None else tuple(request.source),
            request.salt,
            request.n,
            beam,
            key=request.key,
            is_streamed=request.is_streamed,
        )
        check_request(scheduled, self.scheduler.config, self.kv_cache)  # before n samples exist
        samples = self.sample_states.create_all(request)
        if request.beam is None:
            return PreparedRequest(scheduled, samples)
        ends = tuple(sorted(request.ends))
        return PreparedRequest(scheduled, search=BeamSearch(request.beam, request.max_tokens, ends))

    def prepare_embedding(
        self, ids: Iterable[int], request_id: str | None = None, key: str = ""
    ) -> PreparedRequest:
        """Check a text for the encoder. `key`: name of the API key that it was sent with."""
        text = tuple(ids)
        check_text_ids(text, self.model.config)
        request = Request(request_id or self.new_id(), text, 0, is_pooling=True, key=key)
        check_request(request, self.scheduler.config, self.kv_cache)
        return PreparedRequest(request)

    def prepare_score(
        self,
        ids: Iterable[int],
        request_id: str | None = None,
        key: str = "",
        num_top: int = 0,
    ) -> PreparedRequest:
        """Check a text whose log-probabilities are wanted, with those of the `num_top` most likely
        tokens in each position. `key`: name of the API key that it was sent with."""
        text = tuple(ids)
        check_num_top(num_top)
        if not isinstance(self.model, Decoder):
            raise UsageError(
                f"this model is of kind {self.model.config.kind}: log-probabilities of a text need "
                "a decoder. Load a decoder."
            )
        if len(text) < 2:
            raise UsageError(
                f"the text has {len(text)} tokens: log-probabilities need at least 2, as the first "
                "token is not predicted. Use a longer text."
            )
        check_text_ids(text, self.model.config)
        request = Request(request_id or self.new_id(), text[:-1], 0, is_pooling=True, key=key)
        check_request(request, self.scheduler.config, self.kv_cache)
        return PreparedRequest(request, text=ScoredText(text, num_top))

    def add(self, prepared: PreparedRequest) -> str:
        """Add a prepared request. If this is interrupted, nothing was added."""
        self.finish_recovery()
        request = prepared.request
        try:
            self.scheduler.add(request)
            self.requests[request.id] = request
            if prepared.text is not None:
                self.state.texts_to_score[request.id] = prepared.text
            if prepared.samples is not None:
                self.samples[request.id] = prepared.samples
            if prepared.search is not None:
                self.beams[request.id] = prepared.search
            return request.id
        except UsageError:  # rejected by the scheduler, which has changed nothing
            raise
        except BaseException:
            recover(self.state, dropped=[request.id])
            raise

    def new_id(self) -> str:
        return f"r{next(self.counter)}"

    def is_active(self, request_id: str) -> bool:
        """Whether further outputs of a request can follow."""
        return request_id in self.scheduler.state.groups or self.state.will_return(request_id)

    def abort(self, request_id: str) -> None:
        """Remove a request and free its pages. Does nothing if it is not active."""
        self.finish_recovery()
        if request_id not in self.requests:
            return
        try:
            self.state.remove(request_id)
        except BaseException:
            recover(self.state, dropped=[request_id])
            raise
        self.deliver_events()

    def step(self) -> list[RequestOutput]:
        """Schedule and run one plan: one forward pass, or several between which tokens are chosen
        (multi-step scheduling). If it fails, the request at fault is found and its output has an
        error; an EngineError if all requests of the step fail. No exception loses an output: the
        next call returns those that this one did not."""
        with self.interrupts:
            self.finish_recovery()
            try:
                if not self.state.has_outputs:
                    self.run_step()
            except Exception as error:
                self.isolate(error)
            finally:
                self.deliver_events()
            self.state.collect_outputs()
        return self.state.unreturned.pop()

    def run_step(self) -> Plan:
        """One step. Its results are recorded; if it fails, the engine recovers before it raises."""
        self.state.num_decided = len(self.state.records)
        try:
            # integers only: which tokens of which sequences, which pages
            plan = self.scheduler.schedule(self.drafts_of if self.config.speculate else None)
            chooser = StepChooser(plan, self.samples, self.beams, self.interrupts.check)
            with self.threads.step(plan.total_tokens):
                vectors = self.runner.run(plan, chooser)
            self.interrupts.check()
            outputs = [
                self.pooling_output(one.request.id, x_TD)
                for one, x_TD in zip(plan.poolings, vectors, strict=True)
            ]
            result = chooser.results(outputs)
            record = StepRecord(outputs, plan, result, self.scheduler.tokens_of(result.forked))
            self.state.records.append(record)  # from here on the step is completed
            self.state.apply(record)
            return plan
        except BaseException:
            recover(self.state)
            raise

    def isolate(self, error: Exception) -> None:
        """Find the request that made a step fail, unless the step was completed by the recovery."""
        self.finish_recovery()
        if self.state.is_decided:
            log.error("step=failed state=completed", exc_info=error)
        else:
            FaultIsolation(self.state, self.run_step).isolate(self.state.suspects, error)

    def finish_recovery(self) -> None:
        """Repeat a recovery that was interrupted itself."""
        if self.state.needs_recovery:
            recover(self.state)

    def deliver_events(self) -> None:
        """Call the listeners with the events since the last call; one that raises is removed."""
        if self.kv_cache.pool.listener is not None:
            self.events.deliver()
            self.kv_cache.pool.listener = self.events.collector

    def pooling_output(self, request_id: str, x_TD: Tensor) -> RequestOutput:
        """The output of a text that was read as a whole: its hidden states or log-probabilities."""
        text, finish = self.state.texts_to_score.get(request_id), FinishReason("end")
        if not bool(x_TD.isfinite().all()):
            return RequestOutput(request_id, error=HIDDEN_NOT_FINITE)
        if text is None:
            return RequestOutput(request_id, vectors_TD=x_TD, finish=finish)
        logprobs = self.runner.score(x_TD, text.ids[1:], text.num_top)
        number = next((n for n, one in enumerate(logprobs, 2) if isnan(one.logprob)), None)
        if number is not None:
            return RequestOutput(request_id, error=not_finite_error(number))
        return RequestOutput(request_id, logprobs=logprobs, finish=finish)

    def drafts_of(self, request: Request, sequence: Sequence) -> list[int]:
        """Drafts for one sequence; the scheduler drops those without pages or budget."""
        state = self.samples.get(request.id, {}).get(sequence.index)
        return [] if state is None or state.drafter is None else state.drafter.propose()

    def attention(
        self, request_id: str, layer: int, head: int, query: int, sample: int = 0
    ) -> AttentionRow:
        """Attention weights of the token at position `query` in one head: over all tokens up to
        itself, and over the source. The cache does not change."""
        self.runner.need_store()
        check_index("layer", layer, self.runner.stack.num_layers, "the model")
        check_index("head", head, self.model.config.attention.num_heads, "a layer")
        return self.attention_of_layers(request_id, query, sample, [layer]).of_head(head)

    def attention_rows(self, request_id: str, query: int, sample: int = 0) -> AttentionRows:
        """Attention weights of the token in all heads of all layers, by one forward pass."""
        self.runner.need_store()
        layers = list(range(self.runner.stack.num_layers))
        return self.attention_of_layers(request_id, query, sample, layers)

    def attention_of_layers(
        self, request_id: str, query: int, sample: int, layers: list[int]
    ) -> AttentionRows:
        pages = find_pages(self.scheduler.state, self.finished, request_id, sample)
        store = self.runner.need_store()
        return attention_rows(self.runner.stack, store, self.kv_cache, pages, query, layers)

    def huge_page_units(self) -> Generator[None, None, int]:
        """Move the packed weights to huge pages, in units of some milliseconds."""
        matrices = list(matrices_of(self.model).values())  # alive until the end
        return (yield from huge_page_units(part for one in matrices for part in one.tensors))

    def statistics(self) -> EngineStats:
        """Cache hits, pages and counts so far, with the best possible hit rate."""
        return self.scheduler.state.engine_stats()

    def listen(self, listener: EventListener) -> ReplayedState:
        """Report every change of pages and tree from now on (cache/events.py), after the step or
        the `abort` that made it, and return the state before the first. There may be several
        listeners; one that raises is removed, and the exception is logged."""
        self.finish_recovery()
        self.deliver_events()
        self.events.add(listener)
        self.kv_cache.pool.listener = self.events.collector
        return self.cache_state()

    def stop_listening(self, listener: EventListener) -> None:
        """Remove a listener; its undelivered events are dropped."""
        self.events.remove(listener)
        self.kv_cache.pool.listener = self.events.collector

    def cache_state(self) -> ReplayedState:
        """Pages with their holders, and the radix tree, read from page tables and caches."""
        return cache_state(self.scheduler.state)

    def save_cache(self, path: str | Path) -> CacheFileSummary:
        """Write the cached prefixes and sources to a file."""
        return save_cache(Path(path), self.cache_key, self.kv_cache, self.runner.need_store())

    def load_cache(self, path: str | Path) -> CacheFileSummary:
        """Load what an engine of the same model and settings has saved; if not everything fits,
        the most recently used. Raises a DataError, and the cache stays empty, for other files.
        After an exception at any point it holds a part of the file, or nothing."""
        self.finish_recovery()
        key, store = self.cache_key, self.runner.need_store()
        try:
            return load_cache(Path(path), key, self.kv_cache, store)
        except BaseException:
            recover(self.state)
            raise

    @cached_property
    def cache_key(self) -> dict[str, str]:
        """Key of cache files: everything that cached rows depend on. Computed on first use, as it
        hashes all weights."""
        return cache_key(self.model, self.kv_cache.layout, self.runner.need_store())


def pack_weights(model: AnyModel) -> None:
    """Pack the weights of a model on a CPU for the native kernels, which compute in float32."""
    dtype = dtype_of(model)
    if dtype == torch.float32:
        pack_model(model)
        return
    log.warning(
        "slow path: the weights are %s, and on a CPU only float32 has native kernels. Load the "
        'model with dtype="float32", unless memory is short.',
        str(dtype).removeprefix("torch."),
    )


def make_kv_cache(model: AnyModel, config: EngineConfig) -> tuple[KVCacheManager, KVStore | None]:
    """The KV cache of a model: page management, and the page store unless it has no KV cache."""
    layout = KVCacheLayout.of(model.kv_specs())
    store = make_store(model, layout, config) if layout.groups else None
    pool = PagePool(2 if store is None else store.num_pages, config.page_size)
    prefix_cache = config.prefix_cache if config.keeps_requests else "none"
    manager = KVCacheManager(
        layout, pool, pick(PREFIX_CACHES, prefix_cache, "cache"), config.keeps_requests
    )
    return manager, store


def make_store(model: AnyModel, layout: KVCacheLayout, config: EngineConfig) -> KVStore:
    """A page store of config.cache_gib."""
    device, dtype = device_of(model), dtype_of(model)
    specs = model.kv_specs()
    row = specs[0].bytes_per_token(dtype) * layout.num_layers_per_group
    longest = -(-model.config.max_cached_len // config.page_size) * len(layout.groups)
    # one sequence of max_len fits, whatever cache_gib is: memory is allocated when used
    min_pages, page_bytes = 2 + 2 * longest, row * config.page_size
    if config.num_pages is None:
        num_pages = cache_pages(model.config, config, page_bytes, min_pages, device)
    else:
        num_pages = checked_pages(config.num_pages + 1, page_bytes, device)  # one is reserved
    with torch.inference_mode(False):
        store = KVStore(specs, layout.layer_locations, num_pages, config.page_size, device, dtype)
        if config.reserve:
            store.reserve()
        return store
