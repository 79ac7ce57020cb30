"""Messages of a conversation as a template reads them: checked copies made of JSON types.

    {"role": "user", "content": "How warm is it?"}
    {"role": "assistant", "content": null, "reasoning_content": "...", "tool_calls": [
        {"id": "call_1", "type": "function",
         "function": {"name": "weather", "arguments": "{\\"city\\": \\"Rome\\"}"}}]}
    {"role": "tool", "tool_call_id": "call_1", "name": "weather", "content": "21"}

As `transformers` expects it, arguments that are the JSON text of an object are passed as a dict,
and reasoning is copied to `reasoning_content` and `thinking`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from weft.core.errors import UsageError, shown

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_DEPTH = 80
"""Levels of a value: a tool's JSON schema may have 64."""
REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")

Message = Mapping[str, Any]


def check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies of the messages as plain values. Raises a UsageError for the first invalid one."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        raise UsageError(f"messages is {type(messages).__name__}: a conversation is a list.")
    if not messages:
        raise UsageError("messages is empty: a conversation has at least one message.")
    return [check_message(message, index) for index, message in enumerate(messages)]


def check_message(message: Message, index: int) -> dict[str, Any]:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise UsageError(
            f'{where} is {type(message).__name__}: a message is {{"role": ..., "content": ...}}.'
        )
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        raise UsageError(f"{where} has role {shown(role)}: it must be one of {', '.join(ROLES)}.")
    checked = {str(key): plain(value, where) for key, value in message.items()}
    has_calls = check_tool_calls(checked, where)
    if not isinstance(content, str) and not (content is None and has_calls):
        raise UsageError(f"{where} has content of type {type(content).__name__}: it must be text.")
    checked["content"] = None if content is None else str.__str__(content)
    return with_reasoning(checked, where)


def check_tool_calls(message: dict[str, Any], where: str) -> bool:
    """Whether the message calls tools. Parses their arguments in place; an empty list is removed,
    because some templates only test whether there is one."""
    calls = message.pop("tool_calls", None)
    if not calls:
        return False
    where = f"{where}.tool_calls"
    if message["role"] != "assistant":
        raise UsageError(
            f"{where} is set, but the role is {message['role']!r}: only the assistant calls tools."
        )
    if not isinstance(calls, list):
        raise UsageError(f"{where} is {type(calls).__name__}: it must be a list of tool calls.")
    message["tool_calls"] = [check_call(call, f"{where}[{n}]") for n, call in enumerate(calls)]
    return True


def check_call(call: Any, where: str) -> dict[str, Any]:
    """A call with parsed arguments. Its function may also be the call itself, as some templates
    have it."""
    if not isinstance(call, dict):
        raise UsageError(
            f'{where} is {type(call).__name__}: a tool call is {{"id": ..., "type": "function", '
            '"function": {"name": ..., "arguments": ...}}.'
        )
    if "function" not in call and "name" in call:
        return check_function(call, where)
    return {**call, "function": check_function(call.get("function"), f"{where}.function")}


def check_function(function: Any, where: str) -> dict[str, Any]:
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise UsageError(
            f"{where} is {shown(function)}: it must be an object with the name of a tool. Use "
            '{"name": ..., "arguments": ...}.'
        )
    return {**function, "arguments": parse_arguments(function.get("arguments"), where)}


def parse_arguments(arguments: Any, where: str) -> Any:
    """Arguments as a dict; as the text they are if that is not the JSON of an object."""
    if arguments is None or isinstance(arguments, dict):
        return arguments or {}
    if not isinstance(arguments, str):
        raise UsageError(
            f"{where}.arguments is {type(arguments).__name__}: it must be an object or its JSON."
        )
    if not arguments.strip():
        return {}
    try:
        parsed = json.loads(arguments, parse_constant=reject_constant)
    except (ValueError, RecursionError):
        return arguments
    return plain(parsed, f"{where}.arguments") if isinstance(parsed, dict) else arguments


def reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def with_reasoning(message: dict[str, Any], where: str) -> dict[str, Any]:
    """The message with its reasoning under the names that templates read."""
    values = (message[key] for key in REASONING_KEYS if message.get(key) is not None)
    reasoning = next(values, None)
    if reasoning is None or message["role"] != "assistant":
        return message
    if not isinstance(reasoning, str):
        raise UsageError(
            f"{where} has reasoning_content of type {type(reasoning).__name__}: it must be text."
        )
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """A copy made of JSON types, which is what reaches the helper process."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if depth < MAX_DEPTH and isinstance(value, Mapping):
        return {str(key): plain(item, where, depth + 1) for key, item in value.items()}
    if depth < MAX_DEPTH and isinstance(value, (list, tuple)):
        return [plain(item, where, depth + 1) for item in value]
    raise UsageError(
        f"{where} holds a {type(value).__name__}: templates take plain values (text, numbers, "
        f"lists and dicts), {MAX_DEPTH} deep at most."
    )
