"""Messages of OpenAI's chats: as clients send them -> as chat templates read them.

    ChatMessage      the fields of a message
    chat_messages    the messages of a conversation

Calls of custom tools become calls of a function with one string, `input`. The older `function_call`
of an answer becomes a call with an id, and the role `function` the result of that call. A refusal
is text of the assistant.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import compress
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from weft.core.errors import shown
from weft.serve.api_errors import ApiError
from weft.serve.call_ids import number_calls
from weft.serve.conversation import content_text
from weft.serve.schema_types import CHAT_MESSAGE, replaced_by
from weft.serve.tool_formats import ToolFormat


class ChatMessage(BaseModel):
    """One message. Content is text, a list of text parts, or null with calls or a refusal."""

    model_config = ConfigDict(extra="allow", json_schema_extra=replaced_by(CHAT_MESSAGE))

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Any] | None = None
    refusal: str | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    function_call: dict[str, Any] | None = None
    """The older form of a call."""
    tool_call_id: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


def chat_messages(messages: Sequence[ChatMessage], tool_format: ToolFormat) -> list[dict[str, Any]]:
    """The messages of a conversation as chat templates read them."""
    translated = [message_of(one, f"messages[{n}]") for n, one in enumerate(messages)]
    is_older = [one.function_call is not None or one.role == "function" for one in messages]
    number_calls(list(compress(translated, is_older)), tool_format)
    return translated


def message_of(message: ChatMessage, where: str) -> dict[str, Any]:
    """One message; a call in the older form has no id yet."""
    content = content_text(message.content, f"{where}.content")
    calls = [called(one, where) for one in message.tool_calls or ()]
    if message.function_call is not None and not calls:
        calls = [{"id": None, "type": "function", "function": message.function_call}]
    content = message.refusal if content is None else content
    if content is None and not calls:
        raise ApiError(
            400, f"{where}.content is null: only calls and refusals go without it.", where
        )
    role = "tool" if message.role == "function" else message.role
    fields = {
        "name": message.name,
        "tool_calls": calls or None,
        "tool_call_id": message.tool_call_id,
        "reasoning_content": message.reasoning_content or message.reasoning,
    }
    known = {key: value for key, value in fields.items() if value is not None}
    return {"role": role, "content": content, **known}


def called(call: dict[str, Any], where: str) -> dict[str, Any]:
    """A call with its function inside, which is where templates look for it."""
    if call.get("type") == "custom":
        return {**named(call), "type": "function", "function": custom_function(call, where)}
    if "function" in call or "name" not in call:
        return call
    inner = {key: call[key] for key in ("name", "arguments") if key in call}
    rest = {key: value for key, value in call.items() if key not in inner}
    return {"type": "function", **rest, "function": inner}


def named(call: Mapping[str, Any]) -> dict[str, Any]:
    """The id of a call, if it has one."""
    return {"id": call["id"]} if "id" in call else {}


def custom_function(call: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The function of a call of a custom tool."""
    custom = call.get("custom", call)
    name = custom.get("name") if isinstance(custom, Mapping) else None
    text = custom.get("input") if isinstance(custom, Mapping) else None
    if not isinstance(name, str) or not isinstance(text, str):
        raise ApiError(
            400,
            f"{where}.tool_calls has {shown(call)}: a custom call is "
            '{"type": "custom", "custom": {"name": ..., "input": text}}.',
            f"{where}.tool_calls",
        )
    return {"name": name, "arguments": json.dumps({"input": text}, ensure_ascii=False)}
