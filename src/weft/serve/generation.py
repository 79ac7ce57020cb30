"""The texts of one HTTP call: engine outputs -> events that protocols convert to their own form.

    generation = await Generation.start(call, served, lambda: Submitted([request, ...]))
    async for event in generation.events(): ...     streamed
    choices = await generation.collect()            as a whole

The third argument of `start` runs in a thread, so that tokenization, chat templates and grammars do
not block the event loop.
Choice i of n samples of several prompts is numbered prompt * n + sample, as OpenAI does. Usage and
times are counted here, so that no protocol counts by itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from weft.engine.beam_search import Hypothesis
from weft.engine.client import translation
from weft.engine.detokenizer import Detokenizer, FinishReason
from weft.engine.engine_state import PreparedRequest
from weft.engine.logprobs import TokenLogprob
from weft.engine.output_stream import OutputStream
from weft.engine.request import GenerationRequest, RequestOutput
from weft.engine.sampling_step import ALL_EXCLUDED
from weft.serve.api_errors import ApiError, server_fault
from weft.serve.context import HttpCall
from weft.serve.limits import Reservation
from weft.serve.output_parser import (
    Delta,
    OutputParser,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
)
from weft.serve.served_model import ServedModel

MakeParser = Callable[[], OutputParser]


@dataclass(frozen=True)
class Submitted:
    """The requests of one HTTP call, and a factory of the parser of each text; None: text is not
    parsed."""

    requests: Sequence[GenerationRequest]
    make_parser: MakeParser | None = None
    include_stop: bool = False
    """Whether the stop string is included in the text."""
    is_prompt_only: bool = False
    """Only compute and cache the prompts; the texts are empty."""


@dataclass
class Usage:
    """Token counts of one HTTP call."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    completion_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class ChoiceEvent:
    """The output of one engine step for one choice."""

    index: int
    deltas: list[Delta]
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: FinishReason | None = None
    """Finish reason, in the last event of a choice."""
    is_reasoning: bool = False
    """Whether tokens of this step are reasoning, or the tags around it."""


@dataclass
class ToolCall:
    """A complete tool call."""

    id: str
    name: str
    arguments: str = ""
    """JSON text."""

    @property
    def is_complete(self) -> bool:
        """Whether the arguments are JSON: a stop string or max_tokens may have cut them."""
        return is_json(self.arguments)


def is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@dataclass
class Choice:
    """A complete text of a response."""

    index: int
    text: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: FinishReason | None = None
    score: float | None = None
    """Score of a beam search: log-probability divided by length ** length_penalty."""

    def add(self, event: ChoiceEvent) -> None:
        """Append what a step added."""
        self.tokens += event.tokens
        self.logprobs += event.logprobs
        self.finish = event.finish
        for delta in event.deltas:
            if isinstance(delta, TextDelta):
                self.text += delta.text
            elif isinstance(delta, ReasoningDelta):
                self.reasoning += delta.text
        add_calls(self.tool_calls, event.deltas)


def add_calls(calls: list[ToolCall], deltas: Sequence[Delta]) -> None:
    """Add the parts of calls to those of a text."""
    for delta in deltas:
        if isinstance(delta, ToolCallStart):
            calls.append(ToolCall(delta.id, delta.name))
        elif isinstance(delta, ToolCallDelta):
            calls[delta.index].arguments += delta.arguments_fragment


class Generation:
    """The running requests of one HTTP call."""

    def __init__(
        self,
        call: HttpCall,
        served: ServedModel,
        submitted: Submitted,
        stream: OutputStream,
    ) -> None:
        self.call, self.served, self.stream = call, served, stream
        self.requests, self.make_parser = list(submitted.requests), submitted.make_parser
        self.include_stop, self.is_prompt_only = submitted.include_stop, submitted.is_prompt_only
        self.positions = {name: place for place, name in enumerate(stream.ids)}
        self.parsers: dict[int, OutputParser] = {}
        self.usage = Usage(sum(request.num_read for request in self.requests))

    @classmethod
    async def start(
        cls,
        call: HttpCall,
        served: ServedModel,
        build: Callable[[], Submitted],
    ) -> Generation:
        """Build the requests, reserve their places in the queue, and submit them."""

        def prepare() -> tuple[Submitted, Reservation, list[PreparedRequest]]:
            built = build()
            built = replace(built, requests=call.limits.capped(built.requests))
            place = call.reserve(served, built.requests)
            return built, place, [served.engine.engine.prepare(one) for one in built.requests]

        built, place, prepared = await asyncio.to_thread(prepare)
        stream = served.engine.stream(*prepared)
        place.stream, stream.when_ended = stream, partial(call.limits.release, place)
        generation = cls(call, served, built, stream)
        call.record.started(generation)
        return generation

    @property
    def num_choices(self) -> int:
        return sum(request.num_choices for request in self.requests)

    def place_of(self, index: int) -> int:
        """The request that a choice belongs to."""
        return index * len(self.requests) // self.num_choices

    async def events(self) -> AsyncGenerator[ChoiceEvent]:
        """Iterate over the events of all choices. Raises an ApiError if a request fails or the
        deadline of the call passes. Closing the iterator aborts the requests."""
        # one timer for all outputs
        loop, expired = asyncio.get_running_loop(), TimeoutError("the deadline has passed")
        timer = loop.call_at(self.call.deadline, self.stream.interrupt, expired)
        try:
            while (output := await self.next_output()) is not None:
                self.call.record.received(output)
                for event in self.events_of(output):
                    yield event
        finally:
            timer.cancel()
            self.stream.close()
            self.finish_usage()

    async def next_output(self) -> RequestOutput | None:
        """The next output of the engine; None after the last one."""
        if asyncio.get_running_loop().time() >= self.call.deadline:
            raise self.call.timed_out()
        try:
            return await anext(self.stream, None)
        except TimeoutError:
            raise self.call.timed_out() from None

    def events_of(self, output: RequestOutput) -> list[ChoiceEvent]:
        """The events of one engine output."""
        if output.error == ALL_EXCLUDED:
            raise ApiError(400, f"{output.error} Lower min_tokens, or allow longer texts.")
        if output.error is not None:
            raise server_fault(output.error, self.call.id)
        place = self.positions[output.request_id]
        request = self.requests[place]
        self.count_cached()
        if request.beam is not None:
            return self.hypotheses(place, request, output.hypotheses)
        index = place * request.n + output.index
        if self.is_prompt_only:  # the engine has chosen one token, which is not returned
            return [ChoiceEvent(index, [], finish=FinishReason("length"))]
        text = output.text
        if self.include_stop and output.finish is not None:
            text += output.finish.stop or ""
        num_reasoning = self.usage.reasoning_tokens
        deltas = self.parsed(index, text, len(output.tokens), output.finish is not None)
        is_reasoning = self.usage.reasoning_tokens > num_reasoning
        self.usage.completion_tokens += len(output.tokens)
        is_end = output.finish is not None and output.finish.reason == "end"
        self.usage.completion_tokens += is_end and bool(request.ends)  # the end token is one too
        tokens, logprobs, finish = output.tokens, output.logprobs, output.finish
        return [ChoiceEvent(index, deltas, tokens, logprobs, finish, is_reasoning)]

    def parsed(self, index: int, text: str, num_tokens: int, is_end: bool) -> list[Delta]:
        """The deltas of a text that was added to a choice. Tokens from the start tag of reasoning
        to its end tag are counted as reasoning, also those whose text is held back."""
        if self.make_parser is None:
            return [TextDelta(text)] if text else []
        if index not in self.parsers:
            self.parsers[index] = self.make_parser()
        parser = self.parsers[index]
        was_in_reasoning = parser.mode == "reasoning"
        deltas = parser.feed(text) if text else []
        if was_in_reasoning or parser.mode == "reasoning":
            self.usage.reasoning_tokens += num_tokens
        return deltas + (parser.finish() if is_end else [])

    def hypotheses(
        self, place: int, request: GenerationRequest, found: Sequence[Hypothesis]
    ) -> list[ChoiceEvent]:
        """The events of a finished beam search, one per hypothesis."""
        events = []
        for rank, one in enumerate(found):
            self.usage.completion_tokens += len(one.ids)
            reason = FinishReason("length" if len(one.ids) >= request.max_tokens else "end")
            index = place * request.num_choices + rank
            deltas = self.parsed_hypothesis(index, request, one)
            events.append(ChoiceEvent(index, deltas, list(one.ids), finish=reason))
        return events

    def parsed_hypothesis(
        self, index: int, request: GenerationRequest, hypothesis: Hypothesis
    ) -> list[Delta]:
        """The deltas of a hypothesis: with a parser token by token, as those of a sample."""
        if self.make_parser is None:
            text = translation(self.served.tokenizer.target, hypothesis.ids, hypothesis.score).text
            return [TextDelta(text)]
        detokenizer = Detokenizer(self.served.tokenizer, visible_ids=request.visible_ids)
        deltas: list[Delta] = []
        for token in hypothesis.ids:
            deltas += self.parsed(index, detokenizer.append(token), 1, False)
        return deltas + self.parsed(index, detokenizer.finalize(), 0, True)

    def count_cached(self) -> None:
        """Update the number of cached prompt tokens."""
        self.usage.cached_tokens = sum(times.num_cached for times in self.stream.times.values())

    def finish_usage(self) -> None:
        self.count_cached()
        self.call.record.used(self.usage)

    async def collect(self) -> list[Choice]:
        """All choices, complete, in order."""
        return await collect(self.events())


async def collect(events: AsyncIterator[ChoiceEvent]) -> list[Choice]:
    """The choices of events, complete, in order."""
    choices: dict[int, Choice] = {}
    async for event in events:
        choices.setdefault(event.index, Choice(event.index)).add(event)
    return [choices[index] for index in sorted(choices)]
