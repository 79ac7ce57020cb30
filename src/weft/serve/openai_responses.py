"""OpenAI's /v1/responses: the next items of a conversation, which the server may keep.

    POST /v1/responses                      text, reasoning and calls of functions
    POST /v1/responses/input_tokens         the number of tokens of such a request
    GET, DELETE /v1/responses/{id}          a stored response
    GET /v1/responses/{id}/input_items      the conversation before it

`previous_response_id` continues a stored response with all of its items; its instructions are not
carried over. Responses are stored unless `store` is false (response_store.py).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import Response

from weft.engine.grammar import Grammar, make_grammar
from weft.serve.api_errors import ApiError
from weft.serve.api_route import ApiRoute
from weft.serve.bodies import Body, NoEffect, TemplateVariable, rejected
from weft.serve.context import CallOf, HttpCall
from weft.serve.conversation import Conversation, chat_prompt, start_chat
from weft.serve.generation import Generation
from weft.serve.openai_fields import SamplingBody, StreamOptions, text_options
from weft.serve.openai_results import DeletedResponse, InputTokens, ItemList, ResponseObject
from weft.serve.openai_tools import ToolFields, chat_tools, tool_choice_of
from weft.serve.response_events import Event, OutputItems, response_usage
from weft.serve.response_items import input_items, messages_of
from weft.serve.response_store import Item, StoredResponse
from weft.serve.responses import JsonResponse, or_streamed
from weft.serve.schema_types import RESPONSE_INPUT, ChatModelName, ResponseId, described
from weft.serve.served_model import ServedModel
from weft.serve.streaming import event_stream, sse, until_gone
from weft.serve.text_options import TextOptions

router = APIRouter(prefix="/v1/responses", tags=["OpenAI"], route_class=ApiRoute)

LOGPROBS = "message.output_text.logprobs"
ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}


CREATED = or_streamed()
CREATED[200]["links"] = {
    name: {"operationId": name, "parameters": {"response_id": "$response.body#/id"}}
    for name in ("get_response", "delete_response", "list_input_items")
}
"""Routes that take the id of a response that was created."""


class TextFormat(Body):
    """text, json_object, or json_schema with a schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: NoEffect[str] = None
    description: NoEffect[str] = None
    strict: NoEffect[bool] = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")


class TextConfig(Body):
    """How the text is written."""

    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningConfig(Body):
    """How the model reasons."""

    effort: str | None = None
    summary: NoEffect[str] = None
    generate_summary: NoEffect[str] = None


class ResponseInput(ToolFields):
    """Fields that make a prompt."""

    model: ChatModelName | None = None
    """Name of a served model; without it, the only one."""
    input: Annotated[str | list[dict[str, Any]], described(RESPONSE_INPUT, False)]
    """A text, or items: messages, reasoning, calls of functions and their outputs, references."""
    instructions: str | None = None
    """The system message."""
    previous_response_id: str | None = None
    """A stored response that is continued."""
    text: TextConfig | None = None
    """format: text, json_object or json_schema; verbosity: a variable of the chat template."""
    reasoning: ReasoningConfig | None = None
    """effort: the variable reasoning_effort of the chat template; summary has no effect."""
    chat_template_kwargs: TemplateVariable[dict[str, Any]] = None
    """Further variables of the chat template, such as enable_thinking."""
    truncation: NoEffect[str] = None
    """Accepted; a conversation that does not fit is an error."""
    conversation: Annotated[
        Any, rejected("conversations are not stored. Use previous_response_id.")
    ] = None
    prompt: Annotated[Any, rejected("prompt templates are not stored. Use input.")] = None
    functions: Annotated[Any, rejected("it is an older form. Use tools.")] = None
    function_call: Annotated[Any, rejected("it is an older form. Use tool_choice.")] = None


class ResponseBody(ResponseInput, SamplingBody):
    """The body of /v1/responses."""

    max_output_tokens: Annotated[int | None, Field(ge=1)] = None
    """Maximum number of new tokens, reasoning included; default: all the room there is."""
    top_logprobs: Annotated[int | None, Field(ge=0, le=20)] = None
    """Return the N most likely tokens in each position; include must ask for them."""
    include: list[str] | None = None
    """message.output_text.logprobs: the log-probability of each token. Others have no effect."""
    store: bool | None = None
    """false: the response is not stored."""
    metadata: Annotated[dict[str, str] | None, Field(max_length=16)] = None
    """Returned as it is."""
    client_metadata: NoEffect[dict[str, Any]] = None
    """Accepted; Codex sends it."""
    max_tool_calls: NoEffect[int] = None
    """Accepted; it limits hosted tools."""
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
    context_management: NoEffect[Any] = None
    """Accepted; nothing is compacted."""
    moderation: NoEffect[Any] = None
    """Accepted."""
    access_programs: NoEffect[Any] = None
    """Accepted."""
    image: NoEffect[Any] = None
    """Accepted; models here read text."""
    background: Annotated[Any, rejected("responses are not computed later. Use stream.")] = None
    web_search_options: Annotated[Any, rejected("there is no web search. Leave it out.")] = None
    n: Annotated[Any, rejected("a response has one text. Send several requests.")] = None
    use_beam_search: Annotated[Any, rejected("use /v1/completions.")] = None
    length_penalty: Annotated[Any, rejected("it is for beam search. Use /v1/completions.")] = None
    stream_options: NoEffect[StreamOptions] = None
    """Accepted; the last event always has the token counts."""


class ItemQuery(BaseModel):
    """The query of input_items."""

    limit: Annotated[int, Field(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"
    after: str | None = None


@router.post("", response_model=ResponseObject, responses=CREATED)
async def create_response(body: ResponseBody, call: CallOf) -> Response:
    """The next items of a conversation."""
    served = call.open(body, body.model, "decoder")
    items: list[Item] = []

    def build() -> tuple[Conversation, TextOptions]:
        items.extend(all_items(body, call))
        return conversation(body, call, items), options(body, call, served)

    generation = await until_gone(call, start_chat(call, served, build))
    writer = ResponseWriter(call, served, body, generation, items)
    call.service.recent.remember(writer.id, call.caller, served, generation)
    if body.stream:
        return await event_stream(call, writer.chunks(), writer.error_chunk)
    response = await until_gone(call, writer.whole())
    return JsonResponse(response, headers=call.response_headers)


@router.post("/input_tokens", response_model=InputTokens)
async def count_input_tokens(body: ResponseInput, call: CallOf) -> Response:
    """The number of tokens of a request."""
    served = call.open(body, body.model, "decoder")

    def count() -> int:
        chat = conversation(body, call, all_items(body, call))
        return len(chat_prompt(call, served, chat).ids)

    value = {"object": "response.input_tokens", "input_tokens": await asyncio.to_thread(count)}
    return JsonResponse(value, headers=call.response_headers)


@router.get("/{response_id}", response_model=ResponseObject, operation_id="get_response")
async def get_response(response_id: ResponseId, call: CallOf, stream: bool = False) -> Response:
    """A stored response."""
    if stream:
        raise ApiError(400, "stream is true: events are not stored. Leave it out.", "stream")
    stored = call.service.stored_responses.get(call.caller.name, response_id)
    return JsonResponse(stored.response)


@router.delete("/{response_id}", response_model=DeletedResponse, operation_id="delete_response")
async def delete_response(response_id: ResponseId, call: CallOf) -> Response:
    """Forget a response. Responses that continue it keep its items."""
    call.service.stored_responses.delete(call.caller.name, response_id)
    return JsonResponse({"id": response_id, "object": "response", "deleted": True})


@router.get("/{response_id}/input_items", response_model=ItemList, operation_id="list_input_items")
async def list_input_items(
    response_id: ResponseId, call: CallOf, query: Annotated[ItemQuery, Query()]
) -> Response:
    """The conversation before a response, newest item first unless the order is asc."""
    stored = call.service.stored_responses.get(call.caller.name, response_id)
    items = list(stored.input_items)
    if query.order == "desc":
        items.reverse()
    if query.after is not None:
        ids = [item["id"] for item in items]
        if query.after not in ids:
            raise ApiError(400, f"after is {query.after[:80]!r}: there is no such item.", "after")
        items = items[ids.index(query.after) + 1 :]
    page = items[: query.limit]
    content = {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else "",
        "last_id": page[-1]["id"] if page else "",
        "has_more": len(items) > len(page),
    }
    return JsonResponse(content)


def all_items(body: ResponseInput, call: HttpCall) -> list[Item]:
    """The conversation of a body: that of the previous response, and the input."""
    store, key = call.service.stored_responses, call.caller.name
    earlier: list[Item] = []
    if body.previous_response_id is not None:
        earlier = store.get(key, body.previous_response_id, "previous_response_id").items
    items = [*earlier, *input_items(body.input, lambda: store.items(key))]
    if not items:
        raise ApiError(400, "input is empty: it needs at least one item. Add a message.", "input")
    return items


def conversation(body: ResponseInput, call: HttpCall, items: list[Item]) -> Conversation:
    template = dict(body.chat_template_kwargs or {})
    effort = body.reasoning.effort if body.reasoning else None
    verbosity = body.text.verbosity if body.text else None
    for name, value in (("reasoning_effort", effort), ("verbosity", verbosity)):
        if value is not None:
            template.setdefault(name, value)
    tools = chat_tools(body, call)
    return Conversation(
        messages_of(items, body.instructions),
        tools,
        tool_choice_of(body, tools),
        body.parallel_tool_calls is not False,
        template,
    )


def options(body: ResponseBody, call: HttpCall, served: ServedModel) -> TextOptions:
    logprobs = (body.top_logprobs or 0) if LOGPROBS in (body.include or ()) else None
    if logprobs is None and body.top_logprobs:
        call.warn(f"top_logprobs has no effect unless include has {LOGPROBS}")
    grammar = text_grammar(body.text.format if body.text else None)
    return text_options(body, served, body.max_output_tokens, logprobs=logprobs, grammar=grammar)


def text_grammar(wanted: TextFormat | None) -> Grammar | None:
    """The grammar of text.format."""
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return make_grammar("json_object")
    if wanted.schema_ is None:
        raise ApiError(
            400, "text.format is json_schema without a schema: add text.format.schema.", "text"
        )
    return make_grammar("json_schema", wanted.schema_)


class ResponseWriter:
    """Choices -> OpenAI's objects."""

    def __init__(
        self,
        call: HttpCall,
        served: ServedModel,
        body: ResponseBody,
        generation: Generation,
        items: list[Item],
    ) -> None:
        self.call, self.body, self.generation, self.input_items = call, body, generation, items
        has_logprobs, visible = LOGPROBS in (body.include or ()), generation.requests[0].visible_ids
        self.output = OutputItems(served, body.tools or (), has_logprobs, visible)
        self.id, self.created = f"resp_{secrets.token_hex(24)}", int(time.time())
        self.num_events = 0

    def response(self, status: str, error: ApiError | None = None) -> dict[str, Any]:
        """The response as it is now."""
        has_ended = status not in ("in_progress", "failed")
        is_cut = status == "incomplete"
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None if error is None else failure(error),
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            **self.echoed(),
            "output": self.output.items if has_ended else [],
            "usage": response_usage(self.generation.usage) if has_ended else None,
        }

    def echoed(self) -> dict[str, Any]:
        """The settings of the request."""
        body, sampling = self.body, self.generation.requests[0].sampling
        text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text else {}
        reasoning = body.reasoning.model_dump(exclude_none=True) if body.reasoning else {}
        return {
            "model": body.model or self.generation.served.name,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "prompt_cache_key": body.prompt_cache_key,
            "reasoning": {"effort": None, "summary": None, **reasoning},
            "safety_identifier": body.safety_identifier,
            "service_tier": "default",
            "store": body.store is not False,
            "temperature": sampling.temperature,
            "text": {"format": {"type": "text"}, **text},
            "tool_choice": body.tool_choice or "auto",
            "tools": [echoed_tool(tool) for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": "disabled",
            "user": body.user,
        }

    async def whole(self) -> dict[str, Any]:
        """The response of a request that is not streamed."""
        async for event in self.generation.events():
            self.output.add(event)
        self.output.finish()
        return self.finished()

    def finished(self) -> dict[str, Any]:
        """The final response, which is stored."""
        response = self.response("completed" if self.output.is_complete else "incomplete")
        if self.body.store is not False:
            stored = StoredResponse(response, self.input_items)
            self.call.service.stored_responses.put(self.call.caller.name, stored)
        return response

    async def chunks(self) -> AsyncIterator[bytes]:
        """The server-sent events of a streamed response. They begin with the first output of the
        engine, so that errors before it are status codes."""
        async for event in self.generation.events():
            if not self.num_events:
                yield self.about("response.created", self.response("in_progress"))
                yield self.about("response.in_progress", self.response("in_progress"))
            for one in self.output.add(event):
                yield self.numbered(one)
        for one in self.output.finish():
            yield self.numbered(one)
        response = self.finished()
        yield self.about(f"response.{response['status']}", response)

    def about(self, kind: str, response: dict[str, Any]) -> bytes:
        """An event with the whole response."""
        return self.numbered({"type": kind, "response": response})

    def numbered(self, event: Event) -> bytes:
        self.num_events += 1
        return sse({**event, "sequence_number": self.num_events - 1}, event["type"])

    def error_chunk(self, error: ApiError) -> bytes:
        """The last events of a response that fails after it has begun."""
        fields = {"code": error.code, "message": error.message, "param": error.param}
        failed = self.response("failed", error)
        return self.numbered({"type": "error", **fields}) + self.about("response.failed", failed)


def failure(error: ApiError) -> dict[str, Any]:
    return {"code": ERROR_CODES.get(error.status, "server_error"), "message": error.message}


def echoed_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """A tool of the request, with all fields that clients read."""
    if tool.get("type") == "namespace":
        return {"description": "", **tool}
    if tool.get("type") != "function":
        return tool
    return {"description": None, "parameters": None, "strict": False, **tool}
