"""Ids of tool calls in a conversation whose client sends none.

Ollama's clients and OpenAI's older `function_call` have no ids, but templates of some models need
them: calls are numbered, so that a conversation has the same tokens, and the same cached prefix,
every time. A result belongs to the first call before it that has its id or name and no result yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.serve.tool_formats import ToolFormat


def number_calls(messages: Sequence[dict[str, Any]], tool_format: ToolFormat) -> None:
    """Give ids to calls without one, and to the results that follow them: by name, or in order."""
    count = 0
    unanswered: list[dict[str, Any]] = []
    for message in messages:
        for call in message.get("tool_calls", ()):
            count += 1
            call["id"] = (
                call.get("id") or f"{tool_format.id_prefix}{count:0{tool_format.id_length}d}"
            )
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
