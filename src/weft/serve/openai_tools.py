"""Tools in OpenAI's requests: fields, and their translation for a Conversation.

Tools that are not functions, which agents send whatever the server can do, are dropped with a
warning. A `custom` tool becomes a function with one string, `input`. The tools of a `namespace`
become functions whose names begin with that of the namespace: `files.read`. `functions` and
`function_call` are the older forms of `tools` and `tool_choice`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from weft.core.errors import shown
from weft.serve.api_errors import ApiError
from weft.serve.bodies import Body
from weft.serve.context import HttpCall
from weft.serve.schema_types import ANY_TOOL, FUNCTION, TOOL_CHOICE, described, list_of

CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


Tools = Annotated[list[dict[str, Any]] | None, described(list_of(ANY_TOOL, 0))]


class ToolFields(Body):
    """Fields about tools."""

    tools: Tools = None
    """Functions that the model may call."""
    tool_choice: Annotated[str | dict[str, Any] | None, TOOL_CHOICE] = None
    """none, auto, required, a function or custom tool by name, or allowed_tools."""
    parallel_tool_calls: bool | None = None
    """false: at most one call."""
    functions: Annotated[list[dict[str, Any]] | None, described(list_of(FUNCTION, 0))] = None
    """The older form of tools; the answer has at most one call, as function_call."""
    function_call: Annotated[str | dict[str, Any] | None, TOOL_CHOICE] = None
    """The older form of tool_choice."""


def chat_tools(body: ToolFields, call: HttpCall) -> list[dict[str, Any]]:
    """The tools of a body as functions, limited to allowed_tools."""
    older = [{"type": "function", "function": one} for one in body.functions or ()]
    tools = [*function_tools(body.tools or (), call), *older]
    allowed = allowed_names(body.tool_choice)
    if allowed is None:
        return tools
    return [tool for tool in tools if function_name(tool) in allowed]


def function_tools(tools: Sequence[Mapping[str, Any]], call: HttpCall) -> list[dict[str, Any]]:
    """Tools as functions, without those that cannot be functions."""
    flat = flat_tools(tools)
    return [tool for one in flat if (tool := function_tool(one, call)) is not None]


def flat_tools(tools: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The tools of a request, with those of namespaces in their places."""
    flat: list[Mapping[str, Any]] = []
    for index, tool in enumerate(tools):
        if tool.get("type") != "namespace":
            flat.append(tool)
            continue
        namespace, inner = tool.get("name"), tool.get("tools")
        is_list = isinstance(inner, list) and all(isinstance(one, Mapping) for one in inner)
        if not isinstance(namespace, str) or not is_list:
            raise ApiError(400, f"tools[{index}] is a namespace: it needs name and tools.", "tools")
        flat += [{**one, "name": flat_name(namespace, one.get("name"))} for one in inner or ()]
    return flat


def flat_name(namespace: str | None, name: Any) -> Any:
    """The name of a tool as the model knows it."""
    return f"{namespace}.{name}" if namespace and isinstance(name, str) else name


def function_tool(tool: Mapping[str, Any], call: HttpCall) -> dict[str, Any] | None:
    """A tool in the form of chat completions; None: it is not a function."""
    kind = tool.get("type", "function")
    if kind == "function":
        if "function" in tool:
            return dict(tool)
        inner = {key: value for key, value in tool.items() if key != "type"}  # that of responses
        return {"type": "function", "function": inner}
    if kind == "custom":
        custom = mapping_in(tool, "custom")
        function = {"name": custom.get("name"), "parameters": CUSTOM_PARAMETERS}
        if custom.get("description"):
            function["description"] = custom["description"]
        return {"type": "function", "function": function}
    call.warn(f"tool of type {kind!r} was dropped: only functions can be called")
    return None


def is_older_form(body: ToolFields) -> bool:
    """Whether a body has functions instead of tools, so that its answer has a function_call."""
    return bool(body.functions) and not body.tools


def function_name(tool: Mapping[str, Any]) -> str | None:
    """The name in a definition or a choice; None if it has none that is text."""
    name = mapping_in(tool, "function").get("name")
    return name if isinstance(name, str) else None


def allowed_names(choice: Any) -> set[str] | None:
    """The names in a tool_choice of type allowed_tools; None: it is another one."""
    if not isinstance(choice, Mapping) or choice.get("type") != "allowed_tools":
        return None
    tools = mapping_in(choice, "allowed_tools").get("tools")
    if not isinstance(tools, list):
        raise ApiError(
            400,
            f"tool_choice.tools is {shown(tools)}: allowed_tools has a list of them.",
            "tool_choice",
        )
    names = (function_name(one) for one in tools if isinstance(one, Mapping))
    return {name for name in names if name is not None}


def mapping_in(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object under a key; the value itself if there is none, as some clients send it."""
    inner = value.get(key)
    return inner if isinstance(inner, Mapping) else value


def tool_choice_of(body: ToolFields, tools: Sequence[Mapping[str, Any]]) -> str:
    """auto, none, required, or the name of a function."""
    choice = body.tool_choice if body.tool_choice is not None else body.function_call or None
    if choice is None:
        return "auto"
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise ApiError(
                400,
                f"tool_choice is {choice!r}: it must be none, auto, required or a function.",
                "tool_choice",
            )
        return choice
    if choice.get("type") == "allowed_tools":
        mode = mapping_in(choice, "allowed_tools").get("mode")
        return "required" if mode == "required" else "auto"
    name = mapping_in(mapping_in(choice, "custom"), "function").get("name")
    if not isinstance(name, str):
        raise ApiError(
            400, "tool_choice is an object without the name of a function.", "tool_choice"
        )
    return name
