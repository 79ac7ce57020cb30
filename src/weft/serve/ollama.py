"""Ollama's /api/chat and /api/generate: lines of JSON, the last with counts and times.

    {"model": ..., "message": {"role": "assistant", "content": "Hel"}, "done": false, ...}
    {"model": ..., "done": true, "done_reason": "stop", "eval_count": 9, ...}

/api/generate puts its prompt into the model's chat template, as Ollama does, unless it is `raw` or
the model has none; a translation model translates the prompt. A request without a prompt or
messages is Ollama's way to load or unload a model. Differs from Ollama in that nothing is
truncated: a prompt that does not fit is an error with both lengths.
"""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from starlette.responses import Response

from weft.engine.detokenizer import FinishReason
from weft.engine.logprobs import TokenLogprob
from weft.engine.request import GenerationRequest
from weft.engine.request_builder import GenerationOptions
from weft.serve.api_errors import ApiError, error_body
from weft.serve.bodies import NoEffect, rejected
from weft.serve.context import CallOf, HttpCall
from weft.serve.conversation import Conversation, start_chat
from weft.serve.generation import Choice, ChoiceEvent, Generation, Submitted
from weft.serve.ollama_fields import (
    OllamaTextBody,
    nanoseconds,
    ollama_router,
    ollama_text_options,
    source_ids,
    thinking_variables,
    timestamp,
    warn_ignored,
)
from weft.serve.ollama_messages import CompleteCalls, openai_messages
from weft.serve.ollama_results import OllamaChatResult, OllamaGenerateResult
from weft.serve.openai_fields import finish_name, logprobs_json
from weft.serve.output_parser import ReasoningDelta, TextDelta
from weft.serve.responses import JSON_LINES, JsonResponse, or_streamed
from weft.serve.schema_types import OLLAMA_MESSAGE, TOOL, ChatModelName, described, list_of
from weft.serve.served_model import ServedModel
from weft.serve.streaming import event_stream, json_line, until_gone
from weft.serve.text_options import TextOptions, make_request, sampling_params

router = ollama_router()

PING = b" "
"""White space before the next line: clients parse every line, so there is no empty one."""


class OllamaChatBody(OllamaTextBody):
    """The body of /api/chat."""

    model: ChatModelName
    """Name of a served model, with or without `:latest`."""
    messages: Annotated[list[dict[str, Any]] | None, described(list_of(OLLAMA_MESSAGE, 0))] = None
    """role, content, thinking, tool_calls, tool_name; empty: load the model. If the last one is the
    assistant's, it is continued."""
    tools: Annotated[list[dict[str, Any]] | None, described(list_of(TOOL, 0))] = None
    """Functions that the model may call, as JSON schemas."""


class OllamaGenerateBody(OllamaTextBody):
    """The body of /api/generate."""

    prompt: str | None = None
    """The text to answer, continue or translate; empty: load the model."""
    system: str | None = None
    """System message."""
    raw: bool | None = None
    """Continue the prompt as it is, without the chat template; special tokens in it are parsed."""
    suffix: Annotated[
        Any, rejected("models here continue a text; they do not fill gaps. Leave it out.")
    ] = None
    template: NoEffect[str] = None
    """The chat template is the model's."""
    context: NoEffect[list[int]] = None
    """Use /api/chat for a conversation."""


@router.post("/chat", response_model=OllamaChatResult, responses=or_streamed(JSON_LINES))
async def ollama_chat(body: OllamaChatBody, call: CallOf) -> Response:
    """Answer a conversation."""
    served = call.open(body, body.model)
    form = OllamaFormat(call, served, body, is_chat=True)
    if not body.messages:
        return form.load_response()
    warn_ignored(call, body, "shift")
    messages = body.messages

    def build() -> tuple[Conversation, TextOptions]:
        is_continued = messages[-1].get("role") == "assistant" and bool(messages[-1].get("content"))
        chat = Conversation(
            openai_messages(messages, served.tool_format),
            body.tools or (),
            template=thinking_variables(served, body.think),
            continue_final_message=is_continued and not messages[-1].get("tool_calls"),
        )
        return chat, ollama_text_options(body)

    return await form.respond(await until_gone(call, start_chat(call, served, build)))


@router.post("/generate", response_model=OllamaGenerateResult, responses=or_streamed(JSON_LINES))
async def ollama_generate(body: OllamaGenerateBody, call: CallOf) -> Response:
    """Answer, continue or translate a prompt."""
    served = call.open(body, body.model)
    form = OllamaFormat(call, served, body, is_chat=False)
    if not body.prompt:
        return form.load_response()
    served.check_kind("decoder", "encoder-decoder")
    warn_ignored(call, body, "shift", "template", "context")
    return await form.respond(await until_gone(call, start_generate(call, served, body)))


async def start_generate(
    call: HttpCall, served: ServedModel, body: OllamaGenerateBody
) -> Generation:
    """Submit the prompt of /api/generate."""
    if served.can_chat and not body.raw:
        return await start_chat(
            call, served, lambda: (prompt_conversation(served, body), ollama_text_options(body))
        )
    if body.system and not body.raw:
        call.warn("system has no effect here: the model has no chat template")

    def build() -> Submitted:
        options = ollama_text_options(body)
        if not body.raw:
            thinking_variables(served, body.think)
        if served.kind == "encoder-decoder":
            return Submitted([translation_request(call, served, body.prompt or "", options)])
        ids = raw_ids(served, body.prompt or "", parse_special=bool(body.raw))
        return Submitted([make_request(served, call.caller, ids, options)])

    return await Generation.start(call, served, build)


def prompt_conversation(served: ServedModel, body: OllamaGenerateBody) -> Conversation:
    """A prompt as the message of a user."""
    messages = [{"role": "system", "content": body.system}] if body.system else []
    messages.append({"role": "user", "content": body.prompt or ""})
    return Conversation(messages, template=thinking_variables(served, body.think))


def raw_ids(served: ServedModel, prompt: str, parse_special: bool) -> list[int]:
    """The ids of a prompt; one in which special tokens are parsed may begin with BOS itself."""
    begin = served.tokenizer.frame[0]
    ids = served.tokenizer.encode(prompt, False, sys.maxsize, parse_special)
    has_begin = parse_special and ids[: len(begin)] == begin
    return ids if has_begin else [*begin, *ids]


def translation_request(
    call: HttpCall, served: ServedModel, text: str, options: TextOptions
) -> GenerationRequest:
    """A request that translates a text; greedy unless the caller or the server sets a
    temperature."""
    greedy = {"temperature": 0.0, **served.defaults, **options.sampling}
    sampling = sampling_params(served, replace(options, sampling=greedy, defaults={}))
    room = served.max_len - 2  # begin, and the first token that some models prescribe
    limit = None if options.max_tokens is None else min(options.max_tokens, room)
    made = GenerationOptions(limit, 1, sampling, tuple(options.stop), options.grammar)
    request = served.builder.sample(source_ids(served, text), made)
    caller = call.caller
    return replace(
        request, salt=caller.salted(None), key=caller.name, is_streamed=options.is_streamed
    )


@dataclass
class OllamaFormat:
    """Choices -> Ollama's objects. Created when the request has arrived."""

    call: HttpCall
    served: ServedModel
    body: OllamaTextBody
    is_chat: bool
    submitted_at: float = 0.0
    logprobs: list[TokenLogprob] = field(default_factory=list)
    """Of tokens whose text is not certain yet."""
    calls: CompleteCalls = field(default_factory=CompleteCalls)

    async def respond(self, generation: Generation) -> Response:
        """The response to a request that was submitted just now."""
        service, caller = self.call.service, self.call.caller
        service.recent.remember(self.call.id, caller, self.served, generation)
        self.submitted_at = time.perf_counter()
        if self.body.is_streamed:
            lines = self.lines(generation)
            return await event_stream(self.call, lines, self.error_line, PING, JSON_LINES)
        [choice] = await until_gone(self.call, generation.collect())
        return JsonResponse(self.whole(generation, choice), headers=self.call.response_headers)

    def load_response(self) -> Response:
        """The response to a request that only loads a model."""
        reason = "unload" if self.body.is_unload else "load"
        if self.body.is_unload:
            self.call.warn("keep_alive has no effect here: models stay loaded")
        return JsonResponse({**self.part(""), "done": True, "done_reason": reason})

    def part(
        self,
        text: str,
        thinking: str = "",
        calls: Sequence[Mapping[str, Any]] = (),
        logprobs: Sequence[TokenLogprob] = (),
    ) -> dict[str, Any]:
        """One object; the text is part of the answer, or all of it."""
        head = {"model": self.body.model, "created_at": timestamp()}
        content: dict[str, Any] = {"content" if self.is_chat else "response": text}
        content |= {"thinking": thinking} if thinking else {}
        if self.is_chat:
            content |= {"tool_calls": list(calls)} if calls else {}
            content = {"message": {"role": "assistant", **content}}
        if logprobs:
            content["logprobs"] = logprobs_json(self.served, logprobs)
        return {**head, **content, "done": False}

    def whole(self, generation: Generation, choice: Choice) -> dict[str, Any]:
        """The response of a request that is not streamed."""
        calls = CompleteCalls(choice.tool_calls).take(is_end=True)
        logprobs = choice.logprobs if self.body.logprobs else ()
        part = self.part(choice.text, choice.reasoning, calls, logprobs)
        return {**part, **self.end(generation, choice.finish)}

    async def lines(self, generation: Generation) -> AsyncIterator[bytes]:
        """The lines of a streamed response. Tool calls are sent when they are complete."""
        finish: FinishReason | None = None
        async for event in generation.events():
            finish = event.finish or finish
            part = self.part_of(event)
            if part is not None:
                yield json_line(part)
        yield json_line({**self.part(""), **self.end(generation, finish)})

    def part_of(self, event: ChoiceEvent) -> dict[str, Any] | None:
        """The object of one engine step; None: nothing is certain yet."""
        text = "".join(one.text for one in event.deltas if isinstance(one, TextDelta))
        thinking = "".join(one.text for one in event.deltas if isinstance(one, ReasoningDelta))
        if self.body.logprobs:
            self.logprobs += event.logprobs
        calls = self.calls.add(event)
        is_last = event.finish is not None and bool(self.logprobs)
        if not (text or thinking or calls or is_last):
            return None
        logprobs, self.logprobs = self.logprobs, []
        return self.part(text, thinking, calls, logprobs)

    def end(self, generation: Generation, finish: FinishReason | None) -> dict[str, Any]:
        """The fields of the last object: counts, and times in nanoseconds."""
        record, now = self.call.record, time.perf_counter()
        first = now if record.first_token_at is None else record.first_token_at
        queued = sum(times.queue_seconds or 0.0 for times in generation.stream.times.values())
        return {
            "done": True,
            "done_reason": finish_name(finish) or "stop",
            "total_duration": nanoseconds(now - record.began_at),
            "load_duration": nanoseconds(self.submitted_at - record.began_at),
            "prompt_eval_count": generation.usage.prompt_tokens,
            "prompt_eval_duration": nanoseconds(first - self.submitted_at - queued),
            "eval_count": generation.usage.completion_tokens,
            "eval_duration": nanoseconds(now - first),
        }

    def error_line(self, error: ApiError) -> bytes:
        return json_line(error_body("/api", error))
