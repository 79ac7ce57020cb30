"""Messages and tool calls between Ollama's form and OpenAI's.

    Ollama    {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
              {"role": "tool", "tool_name": "weather", "content": "21"}
    OpenAI    {"id": "call_1", "type": "function", "function": {"name", "arguments": JSON text}}
              {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": "21"}

Most of Ollama's clients send no ids of calls, but templates of some models need them: calls are
numbered, so that a conversation has the same tokens, and the same cached prefix, every time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from weft.core.errors import shown
from weft.serve.api_errors import ApiError
from weft.serve.generation import ChoiceEvent, ToolCall
from weft.serve.output_parser import ToolCallDelta, ToolCallStart
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


def number_calls(messages: Sequence[dict[str, Any]], tool_format: ToolFormat) -> None:
    """Give ids to calls without one, and to the results that follow them: by name, or in order."""
    count = 0
    unanswered: list[dict[str, Any]] = []
    for message in messages:
        for call in message.get("tool_calls", ()):
            count += 1
            call["id"] = call["id"] or f"{tool_format.id_prefix}{count:0{tool_format.id_length}d}"
            unanswered.append(call)
        if message.get("role") == "tool":
            answer_call(message, unanswered)


def answer_call(message: dict[str, Any], unanswered: list[dict[str, Any]]) -> None:
    """Name the call that a result belongs to, and remove it from the unanswered ones."""
    wanted, name = message.get("tool_call_id"), message.get("name")
    call = next((one for one in unanswered if is_answer(one, wanted, name)), None)
    if call is not None:
        unanswered.remove(call)
        message["tool_call_id"] = call["id"]
        message.setdefault("name", call["function"].get("name"))


def is_answer(call: Mapping[str, Any], wanted: str | None, name: str | None) -> bool:
    """Whether a result with this id or name belongs to a call."""
    if wanted:
        return bool(call["id"] == wanted)
    return name is None or bool(call["function"].get("name") == name)


@dataclass
class CompleteCalls:
    """Tool calls as they arrive -> Ollama's objects, each when it is complete. A call that the end
    of the text has cut off is left out."""

    calls: list[ToolCall] = field(default_factory=list)
    num_taken: int = 0

    def add(self, event: ChoiceEvent) -> list[dict[str, Any]]:
        """Add what a step generated; returns the calls that are complete now."""
        for delta in event.deltas:
            if isinstance(delta, ToolCallStart):
                self.calls.append(ToolCall(delta.id, delta.name))
            elif isinstance(delta, ToolCallDelta):
                self.calls[delta.index].arguments += delta.arguments_fragment
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
