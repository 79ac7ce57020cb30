"""`ScratchEngine`: a second engine on the weights of a loaded model, with a small page pool, for
observing the KV cache. The owner runs its steps.

    scratch = ScratchEngine(model, tokenizer, ScratchConfig(num_pages=24, page_size=4))
    scratch.submit(request)             -> "a", the name of the request in the events
    step = scratch.step()               what changed: events, tokens, preempted requests
    scratch.run()                       steps until nothing is left to do
    scratch.snapshot()                  pages, tree and requests, as JSON
    scratch.steps_since(4)              steps 5 and later

`submit_later` submits a request before a later step; `with_scenario` creates a script of requests
in which prefixes are shared, pages evicted and a request preempted.

Weights are shared, the KV cache is separate, so the engine that serves the model is not affected.
Steps must be run in the thread that runs the kernels of that model.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from pydantic import Field

from weft.cache.events import CacheEvent, EventLog
from weft.cache.kv_groups import KVCacheLayout
from weft.cache.page_tables import num_blocks_for
from weft.cache.replay import ReplayedState
from weft.core.config import Config
from weft.core.errors import UsageError
from weft.engine.beam_search import BeamConfig
from weft.engine.config import EngineConfig
from weft.engine.engine import Engine
from weft.engine.engine_state import PreparedRequest
from weft.engine.request import GenerationRequest, RequestOutput
from weft.engine.scheduling.sequence import RequestTimes
from weft.engine.scheduling.sequence import Sequence as TokenSequence
from weft.models.build import AnyModel
from weft.sampling.params import SamplingParams
from weft.text.tokenizer import Tokenizer

MAX_STEPS = 4096
"""Maximum number of steps that are kept; older ones are dropped."""
SCENARIO_PAGES, SEQUENCE_PAGES, SHARED_PAGES = 24, 10, 3
SCENARIO_PROMPT_PAGES = 4
"""Of the text of a scenario, at least."""


class ScratchConfig(Config):
    """Settings of a scratch engine."""

    num_pages: int = Field(24, ge=2, le=4096)
    """Size of the KV cache: so few pages that evictions can be watched."""
    page_size: int = Field(16, ge=1, le=256)
    """Tokens whose keys and values are stored together; a prefix is shared in whole pages."""
    prefix_cache: str = "radix"
    """How earlier prompts are found: a name in PREFIX_CACHES (none, hash or radix)."""
    token_budget: int = Field(64, ge=8, le=512)
    """Maximum number of tokens of one step: longer prompts take several."""

    def engine_config(self) -> EngineConfig:
        return EngineConfig(
            num_pages=self.num_pages,
            page_size=self.page_size,
            prefix_cache=self.prefix_cache,
            token_budget=self.token_budget,
            encoder_budget=self.token_budget,
            max_running=min(16, self.token_budget),
            num_steps=1,
        )


@dataclass(frozen=True)
class ScratchStep:
    """The events and results of one step."""

    number: int
    """Counted from 1."""
    events: list[CacheEvent]
    """Events in order. Their field `step` is the scheduler's number, which counts planned steps
    only."""
    outputs: list[RequestOutput]
    arrived: list[str]
    """Names of the requests submitted before this step."""
    preempted: list[str]
    """Names of the requests preempted in this step."""
    finished: list[str]
    """Names of the requests that ended in this step."""
    num_evicted: int
    """Number of pages evicted from the caches."""
    beams: dict[str, list[list[int]]] = field(default_factory=dict)
    """New tokens of the hypotheses of each beam search that runs after the step."""
    seconds: float = 0.0


class ScratchEngine:
    """A small engine and the history of its steps."""

    def __init__(
        self, model: AnyModel, tokenizer: Tokenizer | None, config: ScratchConfig | None = None
    ) -> None:
        self.config = config or ScratchConfig()
        self.engine = Engine(model, tokenizer, self.config.engine_config())
        self.log = EventLog(None)
        self.engine.listen(self.log)
        self.steps: deque[ScratchStep] = deque(maxlen=MAX_STEPS)
        self.num_steps = 0
        self.names = map(letters, count())
        self.requests: dict[str, ScratchRequest] = {}
        self.arrivals: list[tuple[int, PreparedRequest]] = []
        """Requests that arrive before a later step."""

    @property
    def is_idle(self) -> bool:
        """Whether no request runs, waits or is to be submitted later."""
        return self.engine.is_idle and not self.arrivals

    @property
    def state(self) -> ReplayedState:
        """Pages and tree, from the engine's own structures."""
        return self.engine.cache_state()

    def submit(self, request: GenerationRequest) -> str:
        """Submit a request before the next step; returns its name. Raises a UsageError if it does
        not fit into the pages."""
        return self.submit_later(request, self.num_steps + 1)

    def submit_later(self, request: GenerationRequest, step: int) -> str:
        """Submit a request before a later step; returns its name, a letter."""
        name = next(self.names)
        prepared = self.engine.prepare(request, name)
        self.requests[name] = ScratchRequest(name, request)
        self.arrivals.append((step, prepared))
        return name

    def abort(self, name: str) -> None:
        """Abort a request and free its pages. The events belong to the next step."""
        self.arrivals = [one for one in self.arrivals if one[1].id != name]
        self.engine.abort(name)
        if name in self.requests:
            self.requests[name].finish = self.requests[name].finish or "aborted"

    def step(self) -> ScratchStep:
        """Submit the requests that are due, and run one engine step. Raises a UsageError if there
        is nothing to do."""
        if self.is_idle:
            raise UsageError("nothing is left to do in this engine. Submit a request first.")
        self.num_steps += 1
        begin = time.perf_counter()
        arrived = self.submit_due()
        running, num_evicted = [*self.engine.scheduler.state.running], self.num_evicted
        outputs = self.engine.step() if not self.engine.is_idle else []
        state = self.engine.scheduler.state
        preempted = [name for name in running if name in state.groups and name not in state.running]
        for output in outputs:
            self.requests[output.request_id].take(output)
        for one in self.requests.values():
            one.note_cached(self.engine.scheduler.times_of(one.name))
        events = list(self.log.events)
        self.log.events.clear()
        ended = {output.request_id for output in outputs if output.is_end}
        step = ScratchStep(
            *(self.num_steps, events, outputs, arrived, preempted),
            finished=sorted(name for name in ended if name not in state.groups),
            num_evicted=self.num_evicted - num_evicted,
            beams=self.beams(),
            seconds=time.perf_counter() - begin,
        )
        self.steps.append(step)
        return step

    def beams(self) -> dict[str, list[list[int]]]:
        """New tokens of the running beams of each beam search, by name of the request."""
        groups = self.engine.scheduler.state.groups
        return {
            name: [one.tokens[one.num_prompt :] for one in groups[name].sequences]
            for name, one in self.requests.items()
            if one.request.beam is not None and name in groups
        }

    def submit_due(self) -> list[str]:
        """Submit the requests that are due before this step; returns their names."""
        due = [one for step, one in self.arrivals if step <= self.num_steps]
        self.arrivals = [one for one in self.arrivals if one[0] > self.num_steps]
        for prepared in due:
            self.engine.add(prepared)
        return [prepared.id for prepared in due]

    def run(self, limit: int = MAX_STEPS) -> list[ScratchStep]:
        """Run steps until nothing is left to do, at most `limit`."""
        steps: list[ScratchStep] = []
        while not self.is_idle and len(steps) < limit:
            steps.append(self.step())
        return steps

    def steps_since(self, number: int) -> list[ScratchStep]:
        """The steps after step `number`; a UsageError if they are not all kept."""
        first = self.steps[0].number if self.steps else 1
        if number + 1 < first:
            raise UsageError(
                f"since is {number}, but steps before {first} are not kept. Start from a snapshot."
            )
        return [step for step in self.steps if step.number > number]

    @property
    def num_evicted(self) -> int:
        return self.engine.kv_cache.num_evicted

    def snapshot(self) -> dict[str, Any]:
        """Pages and tree (`ReplayedState.to_json`), and the requests, after the last step."""
        pool = self.engine.kv_cache.pool
        return {
            "step": self.num_steps,
            "num_pages": pool.num_usable,
            "page_size": pool.page_size,
            "max_len": self.engine.scheduler.config.max_len,
            "is_idle": self.is_idle,
            "evicted": self.num_evicted,
            "preemptions": self.engine.scheduler.statistics.preempted,
            **self.state.to_json(),
            "requests": [one.to_json(self) for one in self.requests.values()],
        }

    @classmethod
    def with_scenario(
        cls,
        model: AnyModel,
        tokenizer: Tokenizer | None,
        ids: Sequence[int],
        source: Sequence[int] | None = None,
        config: ScratchConfig | None = None,
    ) -> ScratchEngine:
        """An engine to which the requests of `scenario` will arrive. `config` None: pages of 4
        tokens, as many as `scenario_pages`."""
        if config is None:
            config = ScratchConfig(num_pages=scenario_pages(model, source, 4), page_size=4)
        scratch = cls(model, tokenizer, config)
        for step, request in scenario(ids, config.page_size, source):
            scratch.submit_later(request, step)
        return scratch


@dataclass
class ScratchRequest:
    """State of a request, for viewers."""

    name: str
    request: GenerationRequest
    finish: str | None = None
    """Finish reason: end, stop, length, error or aborted."""
    outputs: dict[int, list[int]] = field(default_factory=dict)
    """Tokens of each sample that have been returned; of a beam search, its hypotheses at the
    end."""

    num_cached: int | None = None
    """Prompt tokens that the prefix cache had at its first admission; None: it waits."""

    def note_cached(self, times: RequestTimes | None) -> None:
        if times is not None and times.admitted_at is not None:
            self.num_cached = times.num_cached

    def take(self, output: RequestOutput) -> None:
        self.outputs.setdefault(output.index, []).extend(output.tokens)
        for index, hypothesis in enumerate(output.hypotheses):
            self.outputs[index] = list(hypothesis.ids)
        if output.error is not None:
            self.finish = "error"
        elif output.finish is not None:
            self.finish = output.finish.reason

    def to_json(self, scratch: ScratchEngine) -> dict[str, Any]:
        scheduler = scratch.engine.scheduler
        group = scheduler.state.groups.get(self.name)
        state = "waiting" if group is None else "running"
        if self.finish is not None:
            state = "finished"
        elif group is not None and self.name not in scheduler.state.running:
            state = "waiting"
        sequences = [] if group is None else [sequence_json(one) for one in group.sequences]
        return {
            "name": self.name,
            "state": state,
            "finish": self.finish,
            "prompt": list(self.request.prompt),
            "num_cached": self.num_cached,
            "beam": self.request.beam.width if self.request.beam else 0,
            "n": self.request.n,
            "max_tokens": self.request.max_tokens,
            "outputs": [self.outputs[index] for index in sorted(self.outputs)],
            "sequences": sequences,
        }


def sequence_json(sequence: TokenSequence) -> dict[str, Any]:
    """A sequence of a running request: new tokens, rows computed, and its page tables."""
    tables = sequence.tables
    return {
        "index": sequence.index,
        "owner": None if tables is None else tables.owner,
        "tokens": sequence.tokens[sequence.num_prompt :],
        "num_computed": sequence.num_computed,
        "tables": [] if tables is None else [list(table) for table in tables.by_group],
    }


def letters(number: int) -> str:
    """0 -> a, 25 -> z, 26 -> aa."""
    text = ""
    while number >= 0:
        text = chr(ord("a") + number % 26) + text
        number = number // 26 - 1
    return text


def scenario_pages(model: AnyModel, source: Sequence[int] | None, page_size: int) -> int:
    """Pages for `scenario`: 24, or so many for each KV cache group of self-attention, and those of
    the source."""
    layout = KVCacheLayout.of(model.kv_specs())
    num_source = num_blocks_for(len(source or ()), page_size) * len(layout.cross_groups)
    return SCENARIO_PAGES * len(layout.self_groups) + num_source


def scenario(
    ids: Sequence[int], page_size: int, source: Sequence[int] | None = None
) -> list[tuple[int, GenerationRequest]]:
    """Requests for a pool of 24 pages, each with the step before which it arrives.

    a fills six pages and ends: they stay cached. b and c share three pages of their prompts, d is a
    beam search of width 4, e has a prompt of its own. All write up to ten pages, more than there
    are: the pages of a are evicted, and the request admitted last is preempted and continues later
    (with sliding windows, which free pages, there may be enough of them).
    `ids`: at least 4 pages of a text; parts of it are the prompts."""
    if len(ids) < SCENARIO_PROMPT_PAGES * page_size:
        raise UsageError(
            f"the text has {len(ids)} tokens, but the scenario needs "
            f"{SCENARIO_PROMPT_PAGES * page_size}, four pages. "
            "Use a longer text, or smaller pages."
        )
    R, text = page_size, tuple(ids)
    shared, rest = text[: SHARED_PAGES * R], text[SHARED_PAGES * R :]
    half = max(1, R // 2)
    greedy = SamplingParams(temperature=0.0, logprobs=5)
    read = None if source is None else tuple(source)

    def ask(
        prompt: Iterable[int], num_pages: int, beam: BeamConfig | None = None
    ) -> GenerationRequest:
        tokens = tuple(prompt)
        sampling = SamplingParams(temperature=0.0) if beam else greedy
        return GenerationRequest(tokens, num_pages * R - len(tokens), read, sampling, beam=beam)

    long = (*reversed(text), *text)[: 6 * R]
    return [
        (1, ask(long, 7)),
        (3, ask((*shared, *rest[:half]), SEQUENCE_PAGES)),
        (7, ask((*shared, *reversed(rest[-half:])), SEQUENCE_PAGES)),
        (8, ask(text[R : 2 * R + half], 5, BeamConfig(4, num_best=4))),
        (9, ask(tuple(reversed(shared)), SEQUENCE_PAGES)),
    ]
