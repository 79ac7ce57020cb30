"""The engine: requests in, tokens out, many at once. One step: schedule, run, sample, commit.

    engine = Engine(model, tokenizer)
    request_id = engine.submit(GenerationRequest(prompt, max_tokens=50))
    while not engine.is_idle:
        for output in engine.step():
            ...                                   # new tokens and text of each request

In float32 on a CPU, tokens and log-probabilities of a request are the same bits with or without a
cached prefix, alone or in a batch, preempted or not, with drafts or without.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import count
from math import isnan
from pathlib import Path

import torch
from torch import Tensor

from weft.cache import PREFIX_CACHES
from weft.cache.events import EventListener
from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.kv_groups import KVCacheLayout
from weft.cache.kv_store import KVStore
from weft.cache.page_pool import PagePool
from weft.core.device import device_of, dtype_of
from weft.core.errors import UsageError
from weft.core.registry import pick
from weft.engine.attention_rows import (
    AttentionRow,
    AttentionRows,
    FinishedRequests,
    attention_rows,
    check_index,
    find_pages,
)
from weft.engine.beam_search import BeamSearch
from weft.engine.cache_file import CacheFileSummary, cache_key, load_cache, save_cache
from weft.engine.config import EngineConfig
from weft.engine.detokenizer import FinishReason
from weft.engine.logits import HIDDEN_NOT_FINITE, not_finite_error
from weft.engine.logprobs import TokenLogprob
from weft.engine.memory_budget import cache_pages
from weft.engine.model_runner import ModelRunner
from weft.engine.request import GenerationRequest, RequestOutput, SampleState, SampleStateFactory
from weft.engine.request_checks import check_request_ids, check_text_ids
from weft.engine.sampling_step import StepChooser
from weft.engine.scheduling.admission import check_request
from weft.engine.scheduling.plan import Plan
from weft.engine.scheduling.scheduler import Scheduler
from weft.engine.scheduling.sequence import Request, Sequence
from weft.engine.stats import EngineStats
from weft.engine.thread_controller import ThreadController
from weft.models.build import Model
from weft.models.transformer import Decoder
from weft.nn.packed_modules import pack_model
from weft.text.tokenizer import Tokenizer


class Engine:
    """One model, one page pool, any number of requests."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer | None = None, config: EngineConfig | None = None
    ) -> None:
        """Without a tokenizer it works with token ids only: no text, stop strings or grammars."""
        self.config = config or EngineConfig()
        self.model, self.tokenizer = model.eval(), tokenizer
        if device_of(model).type == "cpu" and dtype_of(model) == torch.float32:
            pack_model(model)
        self.kv_cache, store = make_kv_cache(model, self.config)
        self.runner = ModelRunner(model, self.kv_cache.layout, store)
        settings = self.config.scheduler(model.config, self.runner.can_generate)
        self.scheduler = Scheduler(settings, self.kv_cache)
        self.threads = ThreadController()
        self.counter = count()
        self.requests: dict[str, Request] = {}
        self.samples: dict[str, dict[int, SampleState]] = {}
        """Samples of the running and waiting requests, by request id and index."""
        self.beams: dict[str, BeamSearch] = {}
        self.texts_to_score: dict[str, tuple[int, ...]] = {}
        self.finished = FinishedRequests()
        vocab_size, speculate = model.config.vocab_size, self.config.speculate
        self.sample_states = SampleStateFactory(tokenizer, vocab_size, speculate)

    @property
    def is_idle(self) -> bool:
        return self.scheduler.is_idle

    def submit(self, request: GenerationRequest) -> str:
        """Add a request and return its id. Raises a UsageError, and changes nothing, for a request
        that can never be served."""
        request_id = self.new_id()
        check_request_ids(request, self.model.config)
        beam = request.beam.width if request.beam else 0
        prompt = tuple(request.prompt)
        scheduled = Request(
            request_id, prompt, request.max_tokens, request.source, request.salt, request.n, beam
        )
        check_request(scheduled, self.scheduler.config, self.kv_cache)  # before n samples exist
        samples = self.sample_states.create_all(request)
        self.scheduler.add(scheduled)
        self.requests[request_id] = scheduled
        if request.beam:
            end = next(iter(request.ends), None)
            self.beams[request_id] = BeamSearch(request.beam, request.max_tokens, end)
        else:
            self.samples[request_id] = samples
        return request_id

    def submit_embedding(self, ids: Iterable[int]) -> str:
        """Add a text for the encoder: its hidden states come in one output."""
        text = tuple(ids)
        check_text_ids(text, self.model.config)
        request_id = self.new_id()
        self.scheduler.add(Request(request_id, text, 0, is_pooling=True))
        return request_id

    def submit_score(self, ids: Iterable[int]) -> str:
        """Add a text for a decoder: the log-probability of each of its tokens but the first comes
        in one output. All of it is computed, whatever the prefix cache holds, and none of it is
        cached."""
        text = tuple(ids)
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
        request_id = self.new_id()
        self.scheduler.add(Request(request_id, text[:-1], 0, is_pooling=True))
        self.texts_to_score[request_id] = text
        return request_id

    def new_id(self) -> str:
        return f"r{next(self.counter)}"

    def is_active(self, request_id: str) -> bool:
        """Whether more outputs of a request can follow."""
        return request_id in self.scheduler.state.groups

    def abort(self, request_id: str) -> None:
        """Remove a request and free its pages. Does nothing if it is not active."""
        self.scheduler.cancel(request_id)
        self.forget(request_id)

    def step(self) -> list[RequestOutput]:
        """Schedule and run one plan: one forward pass, or several between which tokens are chosen
        (multi-step scheduling)."""
        # integers only: which tokens of which sequences, which pages
        plan = self.scheduler.schedule(self.drafts_of if self.config.speculate else None)
        try:
            chooser = StepChooser(plan, self.samples, self.beams)
            with self.threads.step(plan.total_tokens):
                vectors = self.runner.run(plan, chooser)
        except BaseException:
            self.scheduler.rollback(plan)  # no token was appended yet: the same requests run again
            raise
        try:
            return self.commit(plan, vectors, chooser)
        except BaseException:
            self.drop(plan)
            raise

    def commit(
        self, plan: Plan, vectors: list[Tensor], chooser: StepChooser
    ) -> list[RequestOutput]:
        """Append the chosen tokens, commit them to the scheduler, and return the outputs."""
        outputs = [
            self.pooling_output(one.request.id, x_TD)
            for one, x_TD in zip(plan.poolings, vectors, strict=True)
        ]
        result = chooser.results(outputs)
        self.scheduler.commit(plan, result.appended, result.forked)
        for key in result.finished:
            self.scheduler.finish(*key)
        for output in outputs:
            if output.error is not None:
                self.abort(output.request_id)
            elif output.finish is not None:
                self.finish(output)
        return outputs

    def pooling_output(self, request_id: str, x_TD: Tensor) -> RequestOutput:
        """The output of a text that was read as a whole: its hidden states or log-probabilities."""
        text, finish = self.texts_to_score.get(request_id), FinishReason("end")
        if not bool(x_TD.isfinite().all()):
            return RequestOutput(request_id, error=HIDDEN_NOT_FINITE)
        if text is None:
            return RequestOutput(request_id, vectors_TD=x_TD, finish=finish)
        pairs = zip(text[1:], self.runner.score(x_TD, text[1:]), strict=True)
        logprobs = [TokenLogprob(token, logprob) for token, logprob in pairs]
        number = next((n for n, one in enumerate(logprobs, 2) if isnan(one.logprob)), None)
        if number is not None:
            return RequestOutput(request_id, error=not_finite_error(number))
        return RequestOutput(request_id, logprobs=logprobs, finish=finish)

    def drop(self, plan: Plan) -> None:
        """Abort the requests of a step that failed after its forward pass: some may have tokens
        that the scheduler does not know of, so they cannot continue."""
        if self.scheduler.in_flight is plan:
            self.scheduler.rollback(plan)
        ids = [chunk.request.id for chunk in plan.chunks]
        for request_id in {*ids, *(embedding.request.id for embedding in plan.poolings)}:
            self.abort(request_id)

    def drafts_of(self, request: Request, sequence: Sequence) -> list[int]:
        """Drafts for one sequence; the scheduler drops those without pages or budget."""
        state = self.samples.get(request.id, {}).get(sequence.index)
        return [] if state is None or state.drafter is None else state.drafter.propose()

    def finish(self, output: RequestOutput) -> None:
        """One sample has ended; with the last one its request is forgotten."""
        samples = self.samples.get(output.request_id, {})
        state, request = samples.pop(output.index, None), self.requests.get(output.request_id)
        if request is not None and state is not None:
            self.finished.add(request, output.index, state.output)
        for index, hypothesis in enumerate(output.hypotheses):
            assert request is not None, f"{output.request_id} was searched but never submitted"
            self.finished.add(request, index, hypothesis.ids)
        if not samples:
            self.forget(output.request_id)

    def forget(self, request_id: str) -> None:
        """Drop the state of a request that is not active any more. Its tokens move to
        `finished`."""
        request = self.requests.pop(request_id, None)
        for index, state in self.samples.pop(request_id, {}).items():
            assert request is not None, f"{request_id} has samples but was never submitted"
            self.finished.add(request, index, state.output)
        self.beams.pop(request_id, None)
        self.texts_to_score.pop(request_id, None)

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
        """The same for all heads of all layers, with one forward pass."""
        self.runner.need_store()
        layers = list(range(self.runner.stack.num_layers))
        return self.attention_of_layers(request_id, query, sample, layers)

    def attention_of_layers(
        self, request_id: str, query: int, sample: int, layers: list[int]
    ) -> AttentionRows:
        pages = find_pages(self.scheduler.state, self.finished, request_id, sample)
        store = self.runner.need_store()
        return attention_rows(self.runner.stack, store, self.kv_cache, pages, query, layers)

    def statistics(self) -> EngineStats:
        """Cache hits, pages and counts so far, with the best possible hit rate."""
        return self.scheduler.state.engine_stats()

    def listen(self, listener: EventListener | None) -> None:
        """Report every change of the pages from now on (cache/events.py); None: stop."""
        self.kv_cache.pool.listener = listener

    def save_cache(self, path: str | Path) -> CacheFileSummary:
        """Write the cached prefixes and sources to a file."""
        return save_cache(Path(path), self.cache_key, self.kv_cache, self.runner.need_store())

    def load_cache(self, path: str | Path) -> CacheFileSummary:
        """Load what an engine of the same model and settings has saved; if not everything fits,
        the most recently used. Raises a DataError, and the cache stays empty, for other files."""
        return load_cache(Path(path), self.cache_key, self.kv_cache, self.runner.need_store())

    @cached_property
    def cache_key(self) -> dict[str, str]:
        """What cached rows depend on. Computed on first use, as it reads all weights."""
        return cache_key(self.model, self.kv_cache.layout, self.runner.need_store())


def make_kv_cache(model: Model, config: EngineConfig) -> tuple[KVCacheManager, KVStore | None]:
    """The KV cache of a model: page management, and the page store unless it has no KV cache."""
    layout = KVCacheLayout.of(model.kv_specs())
    store = make_store(model, layout, config) if layout.groups else None
    pool = PagePool(2 if store is None else store.num_pages, config.page_size)
    return KVCacheManager(layout, pool, pick(PREFIX_CACHES, config.prefix_cache, "cache")), store


def make_store(model: Model, layout: KVCacheLayout, config: EngineConfig) -> KVStore:
    """A page store of config.cache_gib."""
    device, dtype = device_of(model), dtype_of(model)
    specs = model.kv_specs()
    row = specs[0].bytes_per_token(dtype) * layout.num_layers_per_group
    longest = -(-model.config.max_cached_len // config.page_size) * len(layout.groups)
    # one sequence of max_len fits, whatever cache_gib is: memory is allocated when used
    min_pages, page_bytes = 2 + 2 * longest, row * config.page_size
    num_pages = cache_pages(model.config, config, page_bytes, min_pages, device)
    with torch.inference_mode(False):
        store = KVStore(specs, layout.layer_locations, num_pages, config.page_size, device, dtype)
        if config.reserve:
            store.reserve()
        return store
