"""The engine: requests in, tokens out, many at once. One step: plan, run, choose, publish.

    engine = Engine(model, tokenizer)
    name = engine.submit(Writing(prompt, max_tokens=50))
    while not engine.is_idle:
        for update in engine.step():
            ...                                   # new tokens and text of each request

In float32 on a CPU a request's tokens and log-probabilities are the same bits whether its prompt
was cached or not, alone or in company, preempted or not, with drafts or without.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from weft.cache.events import EventListener
from weft.core.device import device_of, dtype_of
from weft.core.errors import UsageError
from weft.engine.attention import (
    AttentionRow,
    AttentionRows,
    attention_rows,
    check_place,
    find_trail,
)
from weft.engine.beam import Beams
from weft.engine.config import EngineConfig
from weft.engine.lines import LineMaker
from weft.engine.logprobs import TokenLogprob
from weft.engine.memory import make_memory
from weft.engine.past import Past
from weft.engine.runner import Runner
from weft.engine.saving import Carried, cache_key, load_cache, save_cache
from weft.engine.scheduling.plan import Plan
from weft.engine.scheduling.scheduler import Scheduler
from weft.engine.scheduling.sequence import Request, Sequence
from weft.engine.stats import EngineStats
from weft.engine.step import (
    Ahead,
    Bursting,
    burst_of,
    choose_tokens,
    look_ahead,
    publish_burst,
)
from weft.engine.stops import Finish
from weft.engine.writing import Line, Update, Writing
from weft.models.build import Model
from weft.models.decoder import Decoder
from weft.nn.packed_modules import pack_model
from weft.text.tokenizer import Tokenizer


class Engine:
    """One model, one pool of pages, any number of requests."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer | None = None, config: EngineConfig | None = None
    ) -> None:
        """Without a tokenizer it deals in ids alone: no texts, stops or grammars."""
        self.config = config or EngineConfig()
        self.model, self.tokenizer = model.eval(), tokenizer
        if device_of(model).type == "cpu" and dtype_of(model) == torch.float32:
            pack_model(model)
        self.kv_cache, store = make_memory(model, self.config)
        self.runner = Runner(model, self.kv_cache.layout, store)
        settings = self.config.scheduler(model.config, self.runner.packs_sequences)
        self.scheduler = Scheduler(settings, self.kv_cache)
        self.names = count()
        self.lines: dict[str, dict[int, Line]] = {}
        self.beams: dict[str, Beams] = {}
        self.scored: dict[str, tuple[int, ...]] = {}
        """Texts that are read to see how well they were foreseen."""
        self.requests: dict[str, Request] = {}
        self.past = Past()
        self.maker = LineMaker(tokenizer, model.config.vocab_size, self.config.speculate)

    @property
    def is_idle(self) -> bool:
        return self.scheduler.is_idle

    def submit(self, writing: Writing) -> str:
        """A new request; its name. Raises UsageError, and nothing is taken, for one that can never
        be served."""
        name = f"r{next(self.names)}"
        writing.check_ids(self.model.config.vocab_size)
        lines = self.maker.lines(writing)
        beam = writing.beam.width if writing.beam else 0
        given = (tuple(writing.prompt), writing.max_tokens, writing.source, writing.salt)
        request = Request(name, *given, writing.n, beam)
        self.scheduler.add(request)
        self.requests[name] = request
        if writing.beam:
            end = next(iter(writing.ends), None)
            self.beams[name] = Beams(writing.beam, writing.max_tokens, end)
        else:
            self.lines[name] = lines
        return name

    def submit_text(self, ids: Iterable[int]) -> str:
        """A text for the encoder: its vectors come in one update."""
        name = f"r{next(self.names)}"
        self.scheduler.add(Request(name, tuple(ids), 0, is_pooling=True))
        return name

    def submit_scored(self, ids: Iterable[int]) -> str:
        """A text for a decoder: the log-probability of each of its tokens but the first comes in
        one update. It is run as a whole, whatever a cache holds of it, and nothing of it is
        kept."""
        name, text = f"r{next(self.names)}", tuple(ids)
        if not isinstance(self.model, Decoder) or len(text) < 2:
            raise UsageError(
                f"a text of {len(text)} tokens is to be foreseen by a model of kind "
                f"{self.model.config.kind}: it takes 2 tokens and a decoder. Give it more text."
            )
        self.scheduler.add(Request(name, text[:-1], 0, is_pooling=True))
        self.scored[name] = text
        return name

    def has(self, name: str) -> bool:
        """Whether more may come of a request."""
        return name in self.scheduler.state.groups

    def cancel(self, name: str) -> None:
        """Nobody waits for this request any more: its pages go back at once."""
        self.scheduler.cancel(name)
        self.forget(name)

    def step(self) -> list[Update]:
        """One plan for everybody whose turn it is: one pass, or several."""
        plan = self.scheduler.schedule(self.drafts_of if self.config.speculate else None)
        try:
            burst = burst_of(plan, self.beams)
            results = self.runner.run(plan, burst)
            ahead = look_ahead(plan, results, self.lines, self.beams)
        except BaseException:
            self.scheduler.rollback(plan)
            raise
        try:
            return self.settle(plan, results.vectors, burst or ahead)
        except BaseException:
            self.drop(plan)
            raise

    def settle(self, plan: Plan, vectors: list[Tensor], ahead: Ahead | Bursting) -> list[Update]:
        """Choose tokens, tell the scheduler, and say what is new."""
        updates = [
            self.read(one.request.id, x_TD)
            for one, x_TD in zip(plan.poolings, vectors, strict=True)
        ]
        if isinstance(ahead, Bursting):
            outcome = publish_burst(ahead, self.beams, updates)
        else:
            outcome = choose_tokens(ahead, self.lines, updates)
        self.scheduler.commit(plan, outcome.grown, outcome.branched)
        for key in outcome.ended:
            self.scheduler.finish(*key)
        for update in updates:
            if update.error is not None:
                self.cancel(update.request_id)
            elif update.finish is not None:
                self.finish(update)
        return updates

    def read(self, name: str, x_TD: Tensor) -> Update:
        """What is published of a text that was read as a whole."""
        text = self.scored.get(name)
        if text is None:
            return Update(name, vectors_TD=x_TD, finish=Finish("end"))
        found = zip(text[1:], self.runner.foreseen(x_TD, text[1:]), strict=True)
        return Update(name, logprobs=[TokenLogprob(*one) for one in found], finish=Finish("end"))

    def drop(self, plan: Plan) -> None:
        """A step failed behind its pass. Its requests may have taken tokens that the scheduler does
        not know of, so that they cannot go on: they leave, and give everything back."""
        if self.scheduler.in_flight is plan:
            self.scheduler.rollback(plan)
        names = [chunk.request.id for chunk in plan.chunks]
        for name in {*names, *(embedding.request.id for embedding in plan.poolings)}:
            self.cancel(name)

    def drafts_of(self, request: Request, sequence: Sequence) -> list[int]:
        """Guesses at what follows in one sequence; the scheduler cuts what it has no room for."""
        line = self.lines.get(request.id, {}).get(sequence.index)
        return [] if line is None or line.drafter is None else line.drafter.propose()

    def finish(self, update: Update) -> None:
        """One sample has ended; with the last one its request is forgotten."""
        lines = self.lines.get(update.request_id, {})
        line, request = lines.pop(update.index, None), self.requests.get(update.request_id)
        if request is not None and line is not None:
            self.past.add(request, update.index, line.output)
        for place, one in enumerate(update.hypotheses):
            assert request is not None, f"{update.request_id} was searched but never submitted"
            self.past.add(request, place, one.ids)
        if not lines:
            self.forget(update.request_id)

    def forget(self, name: str) -> None:
        """Nothing more comes of a request; what it has written can still be looked at."""
        request = self.requests.pop(name, None)
        for index, line in self.lines.pop(name, {}).items():
            assert request is not None, f"{name} has lines but was never submitted"
            self.past.add(request, index, line.output)
        self.beams.pop(name, None)
        self.scored.pop(name, None)

    def attention(
        self, name: str, layer: int, head: int, query: int, sample: int = 0
    ) -> AttentionRow:
        """What the token at position `query` of a request looks at in one head: weights over all
        tokens up to itself, and over the source. Nothing in the cache changes."""
        self.runner.need_store()
        check_place("layer", layer, self.runner.stack.num_layers, "the model")
        check_place("head", head, self.model.config.attention.num_heads, "a layer")
        return self.look(name, query, sample, [layer]).of_head(head)

    def attention_rows(self, name: str, query: int, sample: int = 0) -> AttentionRows:
        """The same of all heads of all layers, by one pass."""
        self.runner.need_store()
        return self.look(name, query, sample, list(range(self.runner.stack.num_layers)))

    def look(self, name: str, query: int, sample: int, layers: list[int]) -> AttentionRows:
        trail = find_trail(self.scheduler.state, self.past, name, sample)
        store = self.runner.need_store()
        return attention_rows(self.runner.stack, store, self.kv_cache, trail, query, layers)

    def statistics(self) -> EngineStats:
        """Hits, pages and counts so far, with the best possible hit rate beside the real one."""
        return self.scheduler.state.engine_stats()

    def listen(self, listener: EventListener | None) -> None:
        """Hear of every change of the pages from now on (cache/events.py); None: no more."""
        self.kv_cache.pool.listener = listener

    def save_cache(self, path: str | Path) -> Carried:
        """Write what the caches hold into a file, for the next start."""
        return save_cache(Path(path), self.cache_key, self.kv_cache, self.runner.need_store())

    def load_cache(self, path: str | Path) -> Carried:
        """Begin with what an engine of the same model and settings has saved; as much as fits, used
        last before used first. A DataError, and still an empty cache, for any other file."""
        return load_cache(Path(path), self.cache_key, self.kv_cache, self.runner.need_store())

    @cached_property
    def cache_key(self) -> dict[str, str]:
        """What rows depend on; made when first needed, as it reads all weights."""
        return cache_key(self.model, self.kv_cache.layout, self.runner.need_store())
