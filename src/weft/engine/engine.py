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
from itertools import count

import torch

from weft.cache import PREFIX_CACHES
from weft.cache.layout import Layout
from weft.cache.memory import Memory
from weft.cache.pages import PagePool
from weft.cache.store import PageStore
from weft.core.choices import pick
from weft.engine.beam import Beams, advance_all
from weft.engine.drafts import Drafter
from weft.engine.grammar import GrammarVocabulary
from weft.engine.runner import Results, Runner
from weft.engine.schedule.plan import Chunk, Plan
from weft.engine.schedule.request import Request, Sequence
from weft.engine.schedule.scheduler import Scheduler
from weft.engine.settings import EngineConfig
from weft.engine.step import Outcome, choose_all, publish_beams
from weft.engine.stops import Finish, IdStream, TextStream
from weft.engine.writing import Line, Update, Writing
from weft.models.build import Model
from weft.nn.linear import pack_model
from weft.text.tokenizer import Tokenizer


class Engine:
    """One model, one pool of pages, any number of requests."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer | None = None, config: EngineConfig | None = None
    ) -> None:
        """Without a tokenizer it deals in ids alone: no texts, stops or grammars."""
        self.config = config or EngineConfig()
        self.model, self.tokenizer = model.eval(), tokenizer
        first = next(model.parameters())
        if first.device.type == "cpu" and first.dtype == torch.float32:
            pack_model(model)
        specs = model.kv_specs()
        layout = Layout.of(specs)
        store = make_store(model, layout, self.config) if specs else None
        num_pages = store.num_pages if store is not None else 2
        pool = PagePool(num_pages, self.config.page_size)
        self.memory = Memory(layout, pool, pick(PREFIX_CACHES, self.config.prefix_cache, "cache"))
        self.scheduler = Scheduler(self.config.scheduler(model.config.max_len), self.memory)
        self.runner = Runner(model, layout, store)
        self.names = count()
        self.lines: dict[str, dict[int, Line]] = {}
        self.beams: dict[str, Beams] = {}
        self.vocabularies: dict[frozenset[int], GrammarVocabulary] = {}

    @property
    def is_idle(self) -> bool:
        return self.scheduler.is_idle

    def submit(self, writing: Writing) -> str:
        """A new request; its name. Raises UsageError, and nothing is taken, for one that can never
        be served."""
        name = f"r{next(self.names)}"
        writing.sampling.check_ids(self.model.config.vocab_size)
        lines = self.make_lines(writing)
        self.scheduler.add(
            Request(
                name,
                tuple(writing.prompt),
                writing.max_tokens,
                writing.source,
                writing.salt,
                writing.n,
                writing.beam.width if writing.beam else 0,
            )
        )
        if writing.beam:
            end = next(iter(writing.ends), None)
            self.beams[name] = Beams(writing.beam, writing.max_tokens, end)
        else:
            self.lines[name] = lines
        return name

    def submit_text(self, ids: Iterable[int]) -> str:
        """A text for the encoder: its vectors come in one update."""
        name = f"r{next(self.names)}"
        self.scheduler.add(Request(name, tuple(ids), 0, is_embedding=True))
        return name

    def cancel(self, name: str) -> None:
        """Nobody waits for this request any more: its pages go back at once."""
        self.scheduler.cancel(name)
        self.forget(name)

    def step(self) -> list[Update]:
        """One pass for everybody whose turn it is."""
        plan = self.scheduler.plan(self.drafts_of if self.config.speculate else None)
        try:
            results = self.runner.run(plan)
        except BaseException:
            self.scheduler.abandon(plan)
            raise
        return self.settle(plan, results)

    def settle(self, plan: Plan, results: Results) -> list[Update]:
        """Choose tokens, tell the scheduler, and say what is new."""
        updates = [
            Update(one.request.id, vectors_TD=x_TD, finish=Finish("end"))
            for one, x_TD in zip(plan.embeddings, results.vectors, strict=True)
        ]
        sampled = [
            (chunk, rows)
            for chunk, rows in zip(plan.chunks, results.rows, strict=True)
            if chunk.num_samples
        ]
        outcome = self.choose(sampled, results, updates)
        self.scheduler.commit(plan, outcome.grown, outcome.branched)
        for key in outcome.ended:
            self.scheduler.finish(*key)
        for update in updates:
            if update.error is not None:
                self.cancel(update.request_id)
            elif update.finish is not None:
                self.finish(update)
        return updates

    def choose(
        self, sampled: list[tuple[Chunk, slice]], results: Results, updates: list[Update]
    ) -> Outcome:
        """Tokens of lines and beams, from the rows of the logits that belong to them."""
        if results.logits_NV is None:
            return Outcome()
        written = [pair for pair in sampled if pair[0].request.id in self.lines]
        searched = [pair for pair in sampled if pair[0].request.id in self.beams]
        outcome = choose_all(written, self.lines, results.logits_NV, updates)
        if searched:
            rows = [row for _, part in searched for row in range(part.start, part.stop)]
            names = list(dict.fromkeys(chunk.request.id for chunk, _ in searched))
            beams = [self.beams[name] for name in names]
            parents = advance_all(beams, results.logits_NV[rows])
            outcome.branched |= publish_beams(names, beams, parents, updates)
        return outcome

    def drafts_of(self, request: Request, sequence: Sequence) -> list[int]:
        """Guesses at what follows in one sequence; the scheduler cuts what it has no room for."""
        line = self.lines.get(request.id, {}).get(sequence.index)
        return [] if line is None or line.drafter is None else line.drafter.propose()

    def finish(self, update: Update) -> None:
        """One sample has ended; with the last one its request is forgotten."""
        lines = self.lines.get(update.request_id, {})
        lines.pop(update.index, None)
        if not lines:
            self.forget(update.request_id)

    def forget(self, name: str) -> None:
        self.lines.pop(name, None)
        self.beams.pop(name, None)

    def make_lines(self, writing: Writing) -> dict[int, Line]:
        return {index: self.make_line(writing, index) for index in range(writing.n)}

    def make_line(self, writing: Writing, index: int) -> Line:
        line = Line(writing, self.make_stream(writing), index=index)
        if writing.grammar is not None:
            line.matcher = self.vocabulary(writing.ends).matcher(writing.grammar)
        if self.config.speculate:
            line.drafter = Drafter(writing.prompt)
        return line

    def make_stream(self, writing: Writing) -> TextStream | IdStream:
        if self.tokenizer is None:
            assert not writing.stops, "stops are texts, and this engine has no tokenizer"
            return IdStream(writing.ends)
        is_continuation = writing.source is None
        return TextStream(self.tokenizer, writing.stops, writing.ends, is_continuation)

    def vocabulary(self, ends: frozenset[int]) -> GrammarVocabulary:
        """The model's tokens as a grammar reads them, made when first needed."""
        if ends not in self.vocabularies:
            assert self.tokenizer is not None, "a grammar needs the tokenizer's texts"
            size = self.model.config.vocab_size
            self.vocabularies[ends] = GrammarVocabulary(self.tokenizer, ends, size)
        return self.vocabularies[ends]


def make_store(model: Model, layout: Layout, config: EngineConfig) -> PageStore:
    """As many pages as the cache's memory holds."""
    first = next(model.parameters())
    specs = model.kv_specs()
    row = specs[0].bytes_per_token(first.dtype) * layout.num_layers_per_stripe
    longest = -(-model.config.max_len // config.page_size) * len(layout.stripes)
    # one sequence of any length always fits, whatever it costs: memory is taken as it is used
    num_pages = max(2 + 2 * longest, int(config.cache_gib * 2**30) // (row * config.page_size))
    with torch.inference_mode(False):
        return PageStore(
            specs, layout.places, num_pages, config.page_size, first.device, first.dtype
        )
