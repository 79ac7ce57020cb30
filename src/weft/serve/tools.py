"""Tools of a request: definitions -> checked functions, and conversations for templates without
them.

Definitions have OpenAI's form: {"type": "function", "function": {"name", "description",
"parameters": a JSON schema, "strict"}}. Protocols with another form translate it first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.core.errors import UsageError, shown
from weft.text.chat_messages import Message, check_messages, plain

NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
MAX_TOOLS = 1_024
NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}

SECTION = """\
# Tools

You may call one or more functions to answer the user. These are the functions:
<tools>
{tools}
</tools>

To call a function, write its name and its arguments as a JSON object between tags:
<tool_call>
{{"name": <name of the function>, "arguments": <object with the arguments>}}
</tool_call>"""
"""What a model without tools in its template is told, in the style of Hermes."""


@dataclass(frozen=True)
class FunctionTool:
    """A function that the model may call."""

    name: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments, an object."""
    is_strict: bool
    """Whether the arguments must be valid under the schema."""
    definition: Mapping[str, Any]
    """The whole definition, for the template."""


def check_tools(tools: Sequence[Mapping[str, Any]]) -> list[FunctionTool]:
    """The functions of a request; raises a UsageError that names the first wrong definition."""
    if isinstance(tools, (str, bytes, Mapping)) or not isinstance(tools, Sequence):
        raise UsageError(f"tools is {type(tools).__name__}: it must be a list of functions.")
    if len(tools) > MAX_TOOLS:
        raise UsageError(
            f"tools has {len(tools)} functions: at most {MAX_TOOLS} are allowed. Use fewer."
        )
    checked = [check_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    names = [tool.name for tool in checked]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"tools has {twice!r} twice: each function needs a name of its own. Rename one."
        )
    return checked


def check_tool(tool: Mapping[str, Any], where: str) -> FunctionTool:
    definition = plain(tool, where) if isinstance(tool, Mapping) else {}
    function = definition.get("function")
    if definition.get("type", "function") != "function" or not isinstance(function, dict):
        raise UsageError(
            f'{where} is {shown(tool)}: it must be a function. Use {{"type": "function", '
            '"function": {"name": ..., "parameters": ...}}.'
        )
    name = function.get("name")
    if not isinstance(name, str) or NAME.fullmatch(name) is None:
        raise UsageError(
            f"{where}.function.name is {shown(name)}: it must be 1 to 128 letters, digits or "
            "_ - . : / of ASCII. Rename it."
        )
    parameters = check_parameters(function.get("parameters"), f"{where}.function.parameters")
    is_strict = function.get("strict")
    if is_strict not in (None, True, False):
        raise UsageError(
            f"{where}.function.strict is {shown(is_strict)}: it must be true or false."
        )
    return FunctionTool(name, parameters, bool(is_strict), {"type": "function", **definition})


def check_parameters(parameters: Any, where: str) -> Mapping[str, Any]:
    """The schema of the arguments; an empty one means that there are none."""
    if not isinstance(parameters, dict) and parameters is not None:
        raise UsageError(
            f'{where} is {shown(parameters)}: it must be a JSON schema. Use {{"type": "object", '
            '"properties": {...}}.'
        )
    if not parameters:
        return NO_PARAMETERS
    kind = parameters.get("type", "object")
    if kind != "object":
        raise UsageError(
            f"{where} has type {shown(kind)}: arguments are an object. Use type object, and "
            "properties for the arguments."
        )
    return {"type": "object", **parameters}


def with_tool_section(
    messages: Sequence[Message], tools: Sequence[FunctionTool]
) -> list[dict[str, Any]]:
    """The conversation for a template that does not use tools: their definitions are in the system
    message, calls and results in the content of messages. The format of calls is hermes."""
    written = [write_message(message) for message in check_messages(messages)]
    if tools:
        lines = [json.dumps(tool.definition, ensure_ascii=False) for tool in tools]
        section = SECTION.format(tools="\n".join(lines))
        if written[0]["role"] in ("system", "developer"):
            content = f"{written[0]['content']}\n\n{section}".lstrip()
            written[0] = {**written[0], "content": content}
        else:
            written.insert(0, {"role": "system", "content": section})
    return join_results(written)


def write_message(message: dict[str, Any]) -> dict[str, Any]:
    """A message without keys of tools. `is_protected`: arguments are not the assistant's text, so
    special tokens in them are not parsed."""
    if message["role"] == "tool":
        content = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": content, "is_result": True}
    calls = message.get("tool_calls")
    if not calls:
        return message
    texts = [message["content"] or "", *map(write_call, calls)]
    kept = {key: item for key, item in message.items() if key != "tool_calls"}
    return {**kept, "content": "\n".join(filter(None, texts)), "is_protected": True}


def write_call(call: Mapping[str, Any]) -> str:
    function = call.get("function", call)
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'<tool_call>\n{{"name": {name}, "arguments": {text}}}\n</tool_call>'


def join_results(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Results that follow each other as one message, because some templates require that roles
    alternate."""
    joined: list[dict[str, Any]] = []
    was_result = False
    for message in messages:
        is_result = message.pop("is_result", False)
        if is_result and was_result:
            joined[-1]["content"] += "\n" + message["content"]
        else:
            joined.append(message)
        was_result = is_result
    return joined
