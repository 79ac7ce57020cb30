"""Messages and tool calls between Ollama's form and OpenAI's.

    Ollama    {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
              {"role": "tool", "tool_name": "weather", "content": "21"}
    OpenAI    {"id": "call_1", "type": "function", "function": {"name", "arguments": JSON text}}
              {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": "21"}

Most of Ollama's clients send no ids of calls: calls are numbered (call_ids.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from weft.core.errors import shown
from weft.serve.api_errors import ApiError
from weft.serve.call_ids import number_calls
from weft.serve.generation import ChoiceEvent, ToolCall, add_calls
from weft.serve.tool_formats import ToolFormat

MESSAGE_FIELDS = ("role", "content", "thinking", "tool_calls", "tool_call_id")


def openai_messages(
    messages: Sequence[Mapping[str, Any]], tool_format: ToolFormat
) -> list[dict[str, Any]]:
    """The messages of a conversation in OpenAI's form; roles and types are checked later."""
    translated = [openai_message(one, f"messages[{n}]") for n, one in enumerate(messages)]
    number_calls(translated, tool_format)
    return translated


def openai_message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    if message.get("images"):
        raise ApiError(
            400,
            f"{where}.images is not supported: models here read text only. Leave it out.",
            where,
        )
    kept = {key: message[key] for key in MESSAGE_FIELDS if message.get(key) is not None}
    kept.setdefault("content", "")
    if message.get("tool_name"):
        kept["name"] = message["tool_name"]
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise ApiError(400, f"{where}.tool_calls is {shown(calls)}: it must be a list.", where)
    if calls:
        kept["tool_calls"] = [openai_call(call, where) for call in calls]
    return kept


def openai_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise ApiError(
            400,
            f"{where}.tool_calls has {shown(call)}: a call is "
            '{"function": {"name": ..., "arguments": {...}}}.',
            where,
        )
    kept = {key: function[key] for key in ("name", "arguments") if key in function}
    return {"id": call.get("id"), "type": "function", "function": kept}


@dataclass
class CompleteCalls:
    """Tool calls as they arrive -> Ollama's objects, each when it is complete. A call that the end
    of the text has cut off is left out."""

    calls: list[ToolCall] = field(default_factory=list)
    num_taken: int = 0

    def add(self, event: ChoiceEvent) -> list[dict[str, Any]]:
        """Add what a step generated; returns the calls that are complete now."""
        add_calls(self.calls, event.deltas)
        return self.take(is_end=event.finish is not None)

    def take(self, is_end: bool) -> list[dict[str, Any]]:
        """The calls that are complete and were not returned before."""
        taken = []
        while self.num_taken < len(self.calls):
            call = self.calls[self.num_taken]
            has_ended = is_end or self.num_taken + 1 < len(self.calls)
            arguments = arguments_object(call.arguments, has_ended)
            if arguments is None and not has_ended:
                break
            if arguments is not None:
                function = {"index": self.num_taken, "name": call.name, "arguments": arguments}
                taken.append({"id": call.id, "function": function})
            self.num_taken += 1
        return taken


def arguments_object(text: str, has_ended: bool) -> dict[str, Any] | None:
    """The arguments of a call; None: they are not complete."""
    if not text.strip():
        return {} if has_ended else None
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
