"""OpenAI's /v1/chat/completions: the next message of a conversation.

Reasoning is returned as `reasoning` (vLLM's name) and `reasoning_content` (llama-server's), and
both are accepted in messages. `max_tokens` is the older name of `max_completion_tokens`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.responses import Response

from weft.engine.grammar import Grammar, make_grammar
from weft.sampling.params import MAX_LOGPROBS
from weft.serve.api_errors import ApiError, error_body
from weft.serve.api_route import ApiRoute
from weft.serve.bodies import Body, NoEffect, TemplateVariable, rejected
from weft.serve.context import CallOf, HttpCall
from weft.serve.conversation import Conversation, start_chat
from weft.serve.generation import Choice, ChoiceEvent, Generation, ToolCall, add_calls, collect
from weft.serve.openai_fields import (
    ChunkWriter,
    SamplingBody,
    finish_name,
    logprobs_json,
    text_options,
    usage_json,
)
from weft.serve.openai_messages import ChatMessage, chat_messages
from weft.serve.openai_results import ChatCompletion
from weft.serve.openai_tools import ToolFields, chat_tools, is_older_form, tool_choice_of
from weft.serve.output_parser import (
    Delta,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
)
from weft.serve.pending_logprobs import ReasoningFilter
from weft.serve.prompt_logprobs import (
    PromptLogprobs,
    check_prompt_logprobs,
    prompt_logprobs_json,
    score_prompts,
)
from weft.serve.responses import JsonResponse, or_streamed
from weft.serve.schema_types import ChatModelName
from weft.serve.served_model import ServedModel
from weft.serve.streaming import DONE, event_stream, sse, until_gone
from weft.serve.text_options import TextOptions

router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=ApiRoute)


class JsonSchemaFormat(Body):
    """The schema of response_format."""

    name: NoEffect[str] = None
    description: NoEffect[str] = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: NoEffect[bool] = None


class ResponseFormat(Body):
    """text, json_object or json_schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")  # llama-server's place of it


class ChatBody(SamplingBody, ToolFields):
    """The body of /v1/chat/completions."""

    model: ChatModelName
    """Name of a served model."""
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    """The conversation."""
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    """Maximum number of new tokens; default: all the room that the prompt leaves."""
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    """The older name of max_completion_tokens."""
    logprobs: bool | None = None
    """Return the log-probability of each token."""
    top_logprobs: Annotated[int | None, Field(ge=0, le=20)] = None
    """Return the N most likely tokens in each position; needs logprobs."""
    prompt_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    """Return the log-probability of each token of the prompt, and of the N most likely ones."""
    response_format: ResponseFormat | None = None
    """json_object, or json_schema with a schema: the answer is valid JSON, or with tools a call."""
    reasoning_effort: TemplateVariable[str] = None
    """none, minimal, low, medium, high, xhigh or max, for templates that know it."""
    verbosity: TemplateVariable[str] = None
    """low, medium or high, for templates that know it."""
    chat_template_kwargs: TemplateVariable[dict[str, Any]] = None
    """Further variables of the chat template, such as enable_thinking."""
    add_generation_prompt: bool | None = None
    """Begin a new message of the assistant; default true."""
    continue_final_message: bool | None = None
    """Continue the last message of the assistant."""
    include_reasoning: bool | None = None
    """false: reasoning is left out of the answer, with the log-probabilities of its tokens."""
    modalities: NoEffect[list[str]] = None
    """Accepted; answers are text."""
    metadata: NoEffect[dict[str, Any]] = None
    """Accepted."""
    store: NoEffect[bool] = None
    """Accepted; chat completions are not stored."""
    service_tier: NoEffect[str] = None
    """Accepted."""
    safety_identifier: NoEffect[str] = None
    """Accepted."""
    prompt_cache_key: NoEffect[str] = None
    """Accepted; the prefix cache finds common prefixes by itself."""
    prompt_cache_retention: NoEffect[str] = None
    """Accepted."""
    prompt_cache_options: NoEffect[dict[str, Any]] = None
    """Accepted."""
    prediction: NoEffect[dict[str, Any]] = None
    """Accepted; see speculative decoding."""
    moderation: NoEffect[Any] = None
    """Accepted."""
    audio: Annotated[Any, rejected("answers are text. Leave it out.")] = None
    web_search_options: Annotated[Any, rejected("there is no web search. Leave it out.")] = None
    chat_template: Annotated[
        Any, rejected("the template belongs to the server. Start it with --chat-template.")
    ] = None


@router.post("/chat/completions", response_model=ChatCompletion, responses=or_streamed())
async def create_chat_completion(body: ChatBody, call: CallOf) -> Response:
    """The next message of a conversation."""
    served = call.open(body, body.model, "decoder")
    check_prompt_logprobs(body.prompt_logprobs, body.stream)
    generation = await until_gone(
        call,
        start_chat(call, served, lambda: (conversation(body, call, served), options(body, served))),
    )
    writer = ChatFormat(call, served, body)
    call.service.recent.remember(writer.id, call.caller, served, generation)
    if body.stream:
        return await event_stream(call, writer.chunks(generation), writer.error_chunk)
    if body.prompt_logprobs is not None:
        scored = score_prompts(generation, body.prompt_logprobs)
        [writer.prompt_logprobs] = await until_gone(call, scored)
    choices = await until_gone(call, collect(writer.events(generation)))
    return JsonResponse(writer.whole(generation, choices), headers=call.response_headers)


def conversation(body: ChatBody, call: HttpCall, served: ServedModel) -> Conversation:
    """The conversation of a body."""
    template = dict(body.chat_template_kwargs or {})
    for name in ("reasoning_effort", "verbosity"):
        if getattr(body, name) is not None:
            template.setdefault(name, getattr(body, name))
    tools = chat_tools(body, call)
    return Conversation(
        chat_messages(body.messages, served.tool_format),
        tools,
        tool_choice_of(body, tools),
        body.parallel_tool_calls is not False and not is_older_form(body),
        template,
        bool(body.continue_final_message),
        body.add_generation_prompt,
    )


def options(body: ChatBody, served: ServedModel) -> TextOptions:
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(
            400,
            f"top_logprobs is {body.top_logprobs}, but logprobs is not true. Set it.",
            "logprobs",
        )
    limit = body.max_completion_tokens or body.max_tokens
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    grammar = response_grammar(body.response_format)
    return text_options(body, served, limit, logprobs=logprobs, grammar=grammar)


def response_grammar(wanted: ResponseFormat | None) -> Grammar | None:
    """The grammar of response_format."""
    if wanted is None or wanted.type == "text":
        return None
    schema = wanted.json_schema.schema_ if wanted.json_schema is not None else wanted.schema_
    if schema is None:
        if wanted.type == "json_schema":
            raise ApiError(
                400,
                "response_format is json_schema without a schema: put it into json_schema.schema.",
                "response_format",
            )
        return make_grammar("json_object")
    return make_grammar("json_schema", schema)


class ChatFormat:
    """Choices -> OpenAI's objects."""

    def __init__(self, call: HttpCall, served: ServedModel, body: ChatBody) -> None:
        self.call, self.served, self.body = call, served, body
        self.is_older_form = is_older_form(body)
        """Whether a call is a function_call."""
        self.calls: dict[int, list[ToolCall]] = {}
        """Of a stream, by index of the choice."""
        self.filters: dict[int, ReasoningFilter] = {}
        """With include_reasoning: false, by index of the choice."""
        self.id, self.created = f"chatcmpl-{secrets.token_hex(12)}", int(time.time())
        self.prompt_logprobs: PromptLogprobs | None = None

    def head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.body.model,
        }

    def whole(self, generation: Generation, choices: Sequence[Choice]) -> dict[str, Any]:
        """The response of a request that is not streamed."""
        more = {}
        if self.prompt_logprobs is not None:
            more["prompt_logprobs"] = prompt_logprobs_json(self.served, self.prompt_logprobs)
        return {
            **self.head("chat.completion"),
            "choices": [
                {
                    "index": one.index,
                    "message": self.message(one),
                    "logprobs": self.logprobs(one),
                    "finish_reason": self.finish(one, one.tool_calls),
                }
                for one in choices
            ],
            "usage": usage_json(generation.usage),
            **more,
        }

    async def events(self, generation: Generation) -> AsyncIterator[ChoiceEvent]:
        """The events of a generation, without reasoning if it is left out."""
        visible_ids = generation.requests[0].visible_ids
        async with aclosing(generation.events()) as events:
            async for event in events:
                if self.body.include_reasoning is False:
                    if event.index not in self.filters:
                        self.filters[event.index] = ReasoningFilter(self.served, visible_ids)
                    event = self.filters[event.index].without_reasoning(event)
                yield event

    def message(self, choice: Choice) -> dict[str, Any]:
        calls = choice.tool_calls
        content = choice.text if choice.text or not calls else None
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if choice.reasoning:
            message |= {"reasoning": choice.reasoning, "reasoning_content": choice.reasoning}
        functions = [{"name": one.name, "arguments": one.arguments} for one in calls]
        if functions and self.is_older_form:
            return {**message, "function_call": functions[0]}
        made = [
            {"id": one.id, "type": "function", "function": function}
            for one, function in zip(calls, functions, strict=True)
        ]
        return {**message, "tool_calls": made} if made else message

    def finish(self, part: Choice | ChoiceEvent, calls: Sequence[ToolCall]) -> str | None:
        """The finish reason. A text that ends within a call does not ask for results."""
        name = finish_name(part.finish)
        if name != "stop" or not calls or not all(one.is_complete for one in calls):
            return name
        return "function_call" if self.is_older_form else "tool_calls"

    def logprobs(self, part: Choice | ChoiceEvent) -> dict[str, Any] | None:
        if not self.body.logprobs:
            return None
        entries = part.logprobs[: len(part.tokens)]  # without an end token
        return {"content": logprobs_json(self.served, entries), "refusal": None}

    async def chunks(self, generation: Generation) -> AsyncIterator[bytes]:
        """The server-sent events of a streamed response."""
        with_usage = bool(self.body.stream_options and self.body.stream_options.include_usage)
        writer = ChunkWriter(self.head("chat.completion.chunk"), with_usage)
        started: set[int] = set()
        async for event in self.events(generation):
            if event.index not in started:
                started.add(event.index)
                first = {"role": "assistant", "content": "", "refusal": None}
                yield writer.chunk(self.part(event.index, first))
            for chunk in self.parts(event):
                yield writer.chunk(chunk)
        if with_usage:
            yield writer.last(usage_json(generation.usage))
        yield DONE

    def parts(self, event: ChoiceEvent) -> list[dict[str, Any]]:
        """The chunks of one event: one for each delta; the last has the log-probabilities, and the
        finish reason is in a chunk of its own, as clients expect it."""
        deltas = [self.delta(delta) for delta in event.deltas]
        calls = self.calls.setdefault(event.index, [])
        add_calls(calls, event.deltas)
        logprobs = self.logprobs(event)
        if not deltas and logprobs is not None and event.tokens:
            deltas = [{}]
        parts = [self.part(event.index, delta) for delta in deltas]
        if parts:
            parts[-1]["logprobs"] = logprobs
        if event.finish is not None:
            last = self.part(event.index, {})
            last["finish_reason"] = self.finish(event, calls)
            parts.append(last)
        return parts

    def part(self, index: int, delta: Mapping[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def delta(self, delta: Delta) -> dict[str, Any]:
        match delta:
            case TextDelta(text):
                return {"content": text}
            case ReasoningDelta(text):
                return {"reasoning": text, "reasoning_content": text}
            case ToolCallStart(index, call_id, name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": call_id, "type": "function", "function": function}
            case ToolCallDelta(index, fragment):
                function = {"arguments": fragment}
                call = {"index": index, "function": function}
        return {"function_call": function} if self.is_older_form else {"tool_calls": [call]}

    def error_chunk(self, error: ApiError) -> bytes:
        return sse(error_body("/v1/chat/completions", error))
