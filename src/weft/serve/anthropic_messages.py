"""Anthropic's /v1/messages and /v1/messages/count_tokens: the next message of a conversation.

The headers anthropic-version and anthropic-beta, `?beta=true` and cache_control are accepted and
have no effect: the prefix cache finds common prefixes by itself. Differs from Anthropic in that
text blocks of one message are joined by a newline, because chat templates take one text, and in
that an assistant's message at the end is continued by every model.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import ConfigDict, Field
from starlette.responses import Response

from weft.engine.grammar import make_grammar
from weft.serve.anthropic_events import PING, MessageFormat
from weft.serve.anthropic_results import AssistantMessage, TokenCount
from weft.serve.api_errors import ApiError
from weft.serve.api_route import ApiRoute
from weft.serve.bodies import Body, LooseBody, NoEffect, TemplateVariable, rejected
from weft.serve.context import CallOf, HttpCall
from weft.serve.conversation import Conversation, chat_prompt, part_text, start_chat
from weft.serve.responses import JsonResponse, or_streamed
from weft.serve.schema_types import (
    ANTHROPIC_MESSAGE,
    ANTHROPIC_TOOL,
    STOP_LIST,
    SYSTEM_BLOCKS,
    ChatModelName,
    described,
    list_of,
    replaced_by,
    sampling_range,
)
from weft.serve.streaming import event_stream, until_gone
from weft.serve.text_options import TextOptions

router = APIRouter(prefix="/v1/messages", tags=["Anthropic"], route_class=ApiRoute)

BILLING_LINES = re.compile(r"(?:x-anthropic-[a-z-]+:[^\n]*(?:\n|\Z))+")
"""Lines that agents put before their system prompt and that change with every request."""
CHOICES = {"auto": "auto", "any": "required", "none": "none"}

Blocks = str | list[dict[str, Any]]


class AnthropicMessage(Body):
    """One message: a text or content blocks."""

    model_config = ConfigDict(json_schema_extra=replaced_by(ANTHROPIC_MESSAGE))

    role: Literal["user", "assistant", "system"]
    content: Blocks


class AnthropicTool(LooseBody):
    """A function if its type is absent or custom; other types are tools of Anthropic."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class AnthropicToolChoice(Body):
    """How tools are used."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    """With type tool: the function that is called."""
    disable_parallel_tool_use: bool | None = None
    """true: at most one call."""


class AnthropicFormat(Body):
    """A JSON schema for the answer."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Body):
    """effort and format."""

    effort: TemplateVariable[str] = None
    """low, medium, high, xhigh or max: the variable reasoning_effort of the template."""
    format: AnthropicFormat | None = None
    """json_schema: the answer is valid JSON."""
    task_budget: NoEffect[dict[str, Any]] = None
    """Accepted; max_tokens limits an answer."""


class AnthropicPrompt(Body):
    """Fields that are part of the prompt, and those that accompany it."""

    model: ChatModelName
    """Name of a served model."""
    messages: Annotated[list[AnthropicMessage], Field(min_length=1)]
    """The conversation. If the assistant has the last message, it is continued."""
    system: Annotated[Blocks | None, described(SYSTEM_BLOCKS)] = None
    """System prompt: a text or text blocks."""
    tools: Annotated[list[AnthropicTool] | None, described(list_of(ANTHROPIC_TOOL, 0))] = None
    """Functions that the model may call; hosted tools are dropped with a warning."""
    tool_choice: AnthropicToolChoice | None = None
    """auto, any, tool with a name, or none; disable_parallel_tool_use: at most one call."""
    output_config: OutputConfig | None = None
    """effort: the variable reasoning_effort of the template; format: a JSON schema."""
    output_format: AnthropicFormat | None = None
    """The older place of output_config.format."""
    chat_template_kwargs: TemplateVariable[dict[str, Any]] = None
    """Further variables of the chat template, such as enable_thinking."""
    thinking: NoEffect[dict[str, Any]] = None
    """Accepted; the model and its template decide whether it reasons."""
    cache_control: NoEffect[dict[str, Any]] = None
    """Accepted; the prefix cache finds common prefixes by itself."""
    context_management: NoEffect[dict[str, Any]] = None
    """Accepted; no message is removed or summarized."""
    compaction: NoEffect[dict[str, Any]] = None
    """Accepted; no message is removed or summarized."""
    speed: NoEffect[str] = None
    """Accepted."""
    mcp_servers: Annotated[
        Any, rejected("the server calls no MCP servers. Send their tools as functions.")
    ] = None


class MessagesBody(AnthropicPrompt):
    """The body of /v1/messages."""

    max_tokens: Annotated[int, Field(ge=0)]
    """Maximum number of new tokens, cut to the room that the prompt leaves. 0: the prompt is
    computed and cached, and the message is empty."""
    stop_sequences: Annotated[list[str] | None, described(STOP_LIST)] = None
    """Up to 64 stop strings, which are not part of the text."""
    stream: bool | None = None
    """Send the message as it is generated."""
    temperature: Annotated[float | None, sampling_range("temperature")] = None
    """Sampling temperature; 0: greedy."""
    top_k: Annotated[int | None, sampling_range("top_k")] = None
    """Sample from the k most likely tokens; 0: all."""
    top_p: Annotated[float | None, sampling_range("top_p")] = None
    """Nucleus sampling; 0: only the most likely token."""
    cache_salt: str | None = None
    """Requests with different salts share nothing in the prefix cache."""
    metadata: NoEffect[dict[str, Any]] = None
    """Accepted; the API key tells who calls."""
    service_tier: NoEffect[str] = None
    """Accepted."""
    inference_geo: NoEffect[str] = None
    """Accepted."""
    diagnostics: NoEffect[dict[str, Any]] = None
    """Accepted."""
    fallbacks: NoEffect[Any] = None
    """Accepted; no other model answers."""
    fallback_credit_token: NoEffect[Any] = None
    """Accepted."""
    container: Annotated[Any, rejected("the server executes no code. Leave it out.")] = None
    thread: Annotated[
        Any,
        # the client's tool runner then continues without it
        rejected("messages are not stored. Send all of them.", "thread_unsupported_request"),
    ] = None


class CountTokensBody(AnthropicPrompt):
    """The body of /v1/messages/count_tokens."""


@router.post("", response_model=AssistantMessage, responses=or_streamed())
async def create_message(body: MessagesBody, call: CallOf) -> Response:
    """The next message of a conversation."""
    served = call.open(body, body.model, "decoder")
    generation = await until_gone(
        call, start_chat(call, served, lambda: (conversation(body, call), options(body)))
    )
    writer = MessageFormat(call, body.model)
    call.service.recent.remember(writer.id, call.caller, served, generation)
    if body.stream:
        return await event_stream(call, writer.chunks(generation), writer.error_chunk, PING)
    message = await until_gone(call, writer.whole(generation))
    return JsonResponse(message, headers=call.response_headers)


@router.post("/count_tokens", response_model=TokenCount)
async def count_tokens(body: CountTokensBody, call: CallOf) -> Response:
    """The number of tokens of a prompt: input_tokens and cache_read_input_tokens together."""
    served = call.open(body, body.model, "decoder")

    def count() -> int:
        return len(chat_prompt(call, served, conversation(body, call)).ids)

    num_tokens = await until_gone(call, asyncio.to_thread(count))
    return JsonResponse({"input_tokens": num_tokens}, headers=call.response_headers)


def options(body: MessagesBody) -> TextOptions:
    """The options of a body's text."""
    values = {name: getattr(body, name) for name in ("temperature", "top_k", "top_p")}
    wanted = body.output_config.format if body.output_config is not None else None
    wanted = wanted or body.output_format
    return TextOptions(
        max_tokens=body.max_tokens,
        sampling={name: value for name, value in values.items() if value is not None},
        stop=body.stop_sequences or (),
        grammar=None if wanted is None else make_grammar("json_schema", wanted.schema_),
        cache_salt=body.cache_salt,
        is_streamed=bool(body.stream),
    )


def conversation(body: AnthropicPrompt, call: HttpCall) -> Conversation:
    """The conversation of a body."""
    messages = MessageReader().read(body)
    if not call.config.keep_billing_header:
        messages = without_billing_lines(messages)
    last = messages[-1] if messages else {}
    if last.get("tool_calls"):
        raise ApiError(
            400, "messages ends with tool_use: send its tool_result as a user message.", "messages"
        )
    template = dict(body.chat_template_kwargs or {})
    if body.output_config is not None and body.output_config.effort is not None:
        template.setdefault("reasoning_effort", body.output_config.effort)
    choice = body.tool_choice
    return Conversation(
        messages,
        functions(body.tools or (), call),
        tool_choice_of(choice),
        not (choice is not None and choice.disable_parallel_tool_use),
        template,
        continue_final_message=last.get("role") == "assistant",
    )


def functions(tools: Sequence[AnthropicTool], call: HttpCall) -> list[dict[str, Any]]:
    """The functions among the tools, in OpenAI's form."""
    dropped = [str(one.type) for one in tools if one.type not in (None, "custom")]
    if dropped:
        names = ", ".join(dropped)
        call.warn(f"tools that are not functions were dropped: {names}")
    return [function(one) for one in tools if one.type in (None, "custom")]


def function(tool: AnthropicTool) -> dict[str, Any]:
    entries = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }
    return {
        "type": "function",
        "function": {key: value for key, value in entries.items() if value is not None},
    }


def tool_choice_of(choice: AnthropicToolChoice | None) -> str:
    """auto, none, required, or the name of a function."""
    if choice is None:
        return "auto"
    if choice.type != "tool":
        return CHOICES[choice.type]
    if not choice.name:
        raise ApiError(
            400, "tool_choice is of type tool without a name. Name a function.", "tool_choice"
        )
    return choice.name


def without_billing_lines(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages without the lines `x-anthropic-...:` that begin the system prompt; they change
    with every request, so no prefix after them would be found in the cache."""
    if not messages or messages[0]["role"] != "system":
        return messages
    text = messages[0]["content"]
    lines = BILLING_LINES.match(text)
    if lines is None:
        return messages
    rest = text[lines.end() :]
    return [{**messages[0], "content": rest}, *messages[1:]] if rest.strip() else messages[1:]


class MessageReader:
    """Messages of content blocks -> messages in OpenAI's form. Successive messages of one role are
    joined, as Anthropic does."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.tool_names: dict[str, str] = {}
        """Of the calls so far, by id: some templates write the name with the result."""

    def read(self, body: AnthropicPrompt) -> list[dict[str, Any]]:
        if body.system:
            self.add("system", content=texts(body.system, "system"))
        for index, message in enumerate(body.messages):
            where = f"messages[{index}].content"
            if message.role == "system":
                self.add("system", content=texts(message.content, where))
                continue
            if not message.content and message.role == "user":
                raise ApiError(400, f"{where} is empty: a user message has text.", where)
            for number, block in enumerate(blocks_of(message.content)):
                self.read_block(message.role, block, f"{where}[{number}]")
        return self.messages

    def read_block(self, role: str, block: Mapping[str, Any], where: str) -> None:
        kind = block.get("type")
        if role == "user" and kind == "tool_result":
            self.add_result(block, where)
        elif role == "assistant" and kind == "tool_use":
            self.add_call(block, where)
        elif role == "assistant" and kind == "thinking":
            self.add(role, reasoning_content=string_of(block, "thinking", where))
        elif role == "assistant" and kind == "redacted_thinking":
            self.add(role)  # encrypted: only Anthropic can read it
        elif kind in ("tool_result", "tool_use", "thinking", "redacted_thinking"):
            raise ApiError(
                400, f"{where} is of type {kind!r}: a message of role {role} has none.", where
            )
        else:
            self.add(role, content=part_text(block, where))

    def add_result(self, block: Mapping[str, Any], where: str) -> None:
        """The result of a call: a message of its own."""
        content = block.get("content")
        text = texts(content, f"{where}.content") if content else ""
        if block.get("is_error") and not text.lower().startswith("error"):
            text = f"Error: {text}"
        call_id = string_of(block, "tool_use_id", where)
        message = {"role": "tool", "tool_call_id": call_id, "content": text}
        if call_id in self.tool_names:
            message["name"] = self.tool_names[call_id]
        self.messages.append(message)

    def add_call(self, block: Mapping[str, Any], where: str) -> None:
        call_id, name = string_of(block, "id", where), string_of(block, "name", where)
        self.tool_names[call_id] = name
        function = {"name": name, "arguments": block.get("input") or {}}
        message = self.add("assistant")
        message.setdefault("tool_calls", []).append(
            {"id": call_id, "type": "function", "function": function}
        )

    def add(self, role: str, **values: str) -> dict[str, Any]:
        """Append texts to the last message, which is begun if it has another role."""
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role, "content": ""})
        message = self.messages[-1]
        for key, text in values.items():
            message[key] = f"{message[key]}\n{text}" if message.get(key) else text
        return message


def blocks_of(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def texts(content: Any, where: str) -> str:
    """The text of text blocks; others are rejected by name."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(
            400, f"{where} is {type(content).__name__}: it must be text or text blocks.", where
        )
    return "\n".join(part_text(one, f"{where}[{index}]") for index, one in enumerate(content))


def string_of(block: Mapping[str, Any], key: str, where: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise ApiError(400, f"{where}.{key} is missing: a {block['type']} block has it.", where)
    return value
