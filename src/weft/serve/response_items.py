"""Items of OpenAI's /v1/responses: input -> items in full form -> messages of a conversation.

    message                 role and text; of the assistant, text that was generated
    reasoning               becomes `reasoning_content` of the assistant's next message
    function_call           joins the assistant's message before it; may have a namespace
    function_call_output    a message of the role tool
    custom_tool_call, custom_tool_call_output     the same, with one text instead of arguments
    item_reference          an item of a stored response, by its id

The full form has an id, a type and content as parts, as GET .../input_items returns it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from weft.core.errors import shown
from weft.serve.api_errors import ApiError
from weft.serve.conversation import content_text
from weft.serve.openai_tools import flat_name
from weft.serve.response_store import Item

ROLES = ("user", "assistant", "system", "developer")
ID_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
}
CALL_FIELDS = {"function_call": "arguments", "custom_tool_call": "input"}
OUTPUTS = ("function_call_output", "custom_tool_call_output")


def new_id(kind: str) -> str:
    """A new id of an item."""
    return f"{ID_PREFIXES[kind]}_{secrets.token_hex(16)}"


def input_items(
    given: str | Sequence[Any], stored_items: Callable[[], Mapping[str, Item]]
) -> list[Item]:
    """The input of a request in full form. `stored_items` is called if an item is a reference."""
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    known: Mapping[str, Item] | None = None
    items: list[Item] = []
    for index, one in enumerate(given):
        where = f"input[{index}]"
        if not isinstance(one, Mapping):
            raise ApiError(400, f"{where} is {type(one).__name__}: it must be an object.", where)
        if is_reference(one):
            known = stored_items() if known is None else known
            items.append(referenced(one, known, where))
        else:
            items.append(full_item(one, where))
    return items


def is_reference(item: Mapping[str, Any]) -> bool:
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and set(item) <= {"id", "type"})


def referenced(item: Mapping[str, Any], known: Mapping[str, Item], where: str) -> Item:
    name = item.get("id")
    if not isinstance(name, str) or name not in known:
        raise ApiError(
            404,
            f"{where} refers to item {name!r}, which no stored response has. Send the item itself.",
            where,
        )
    return known[name]


def full_item(item: Mapping[str, Any], where: str) -> Item:
    """One item with id, type and checked content."""
    kind = item.get("type") or "message"
    if not isinstance(kind, str) or kind not in ID_PREFIXES:
        raise ApiError(
            400,
            f"{where} is of type {kind!r}: it must be one of {', '.join(ID_PREFIXES)} or "
            "item_reference. Leave it out.",
            where,
        )
    name = item.get("id") or new_id(kind)
    if not isinstance(name, str):
        raise ApiError(400, f"{where}.id is {shown(name)}: it must be text. Leave it out.", where)
    head = {"id": name, "type": kind}
    if kind == "message":
        return {**head, **message_fields(item, where)}
    if kind == "reasoning":
        return {**head, **reasoning_fields(item, where)}
    return {**head, **call_fields(item, kind, where)}


def message_fields(item: Mapping[str, Any], where: str) -> Item:
    role = item.get("role")
    if role not in ROLES:
        raise ApiError(400, f"{where}.role is {role!r}: it must be one of {', '.join(ROLES)}.")
    text = content_text(item.get("content"), f"{where}.content")
    if text is None:
        raise ApiError(400, f"{where}.content is missing: a message has it.", where)
    part: dict[str, Any] = {"type": "input_text", "text": text}
    if role == "assistant":
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"role": role, "status": item.get("status") or "completed", "content": [part]}


def reasoning_fields(item: Mapping[str, Any], where: str) -> Item:
    fields: Item = {}
    for name, kind in (("summary", "summary_text"), ("content", "reasoning_text")):
        parts = item.get(name) or []
        is_valid = isinstance(parts, list) and all(
            isinstance(one, Mapping) and isinstance(one.get("text"), str) for one in parts
        )
        if not is_valid:
            raise ApiError(400, f"{where}.{name} must be a list of parts with text.", where)
        fields[name] = [{"type": kind, "text": one["text"]} for one in parts]
    return fields


def call_fields(item: Mapping[str, Any], kind: str, where: str) -> Item:
    """The fields of a call, or of its output."""
    names = ("call_id",) if kind in OUTPUTS else ("call_id", "name", CALL_FIELDS[kind])
    for name in names:
        if not isinstance(item.get(name), str):
            raise ApiError(400, f"{where}.{name} is {item.get(name)!r}: it must be text.", where)
    fields = {name: item[name] for name in names}
    if kind not in OUTPUTS and isinstance(item.get("namespace"), str):
        fields["namespace"] = item["namespace"]
    if kind in OUTPUTS:
        text = content_text(item.get("output"), f"{where}.output")
        if text is None:
            raise ApiError(400, f"{where}.output is missing: the output of a call has it.", where)
        fields["output"] = text
    return {**fields, "status": item.get("status") or "completed"}


def messages_of(items: Iterable[Item], instructions: str | None = None) -> list[dict[str, Any]]:
    """The messages of items in full form. Instructions and the system messages at the beginning
    are one message, because many templates know only one."""
    builder = MessageBuilder()
    for item in items:
        builder.add(item)
    messages = builder.messages
    system = [{"role": "system", "content": instructions}] if instructions else []
    while messages and messages[0]["role"] in ("system", "developer"):
        system.append(messages.pop(0))
    if not system:
        return messages
    content = "\n\n".join(message["content"] for message in system)
    return [{"role": system[0]["role"], "content": content}, *messages]


class MessageBuilder:
    """Joins the items of one turn of the assistant."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.reasoning: list[str] = []
        """Of the assistant's next message."""
        self.called: dict[str, str] = {}
        """Names of functions by id of the call."""

    def add(self, item: Item) -> None:
        kind = item["type"]
        if kind == "reasoning":
            self.reasoning += [part["text"] for part in item["content"] or item["summary"]]
        elif kind in CALL_FIELDS:
            self.add_call(item)
        elif kind in OUTPUTS:
            self.add_output(item)
        else:
            text = "".join(part["text"] for part in item["content"])
            self.add_message(item["role"], text)

    def add_message(self, role: str, text: str | None) -> dict[str, Any]:
        message: dict[str, Any] = {"role": role, "content": text}
        if role == "assistant" and self.reasoning:
            message["reasoning_content"] = "".join(self.reasoning)
        self.reasoning = []
        self.messages.append(message)
        return message

    def add_call(self, item: Item) -> None:
        arguments = item[CALL_FIELDS[item["type"]]]
        if item["type"] == "custom_tool_call":
            arguments = json.dumps({"input": arguments}, ensure_ascii=False)
        message = self.messages[-1] if self.messages else None
        if message is None or message["role"] != "assistant" or self.reasoning:
            message = self.add_message("assistant", None)
        name = flat_name(item.get("namespace"), item["name"])
        function = {"name": name, "arguments": arguments}
        call = {"id": item["call_id"], "type": "function", "function": function}
        message.setdefault("tool_calls", []).append(call)
        self.called[item["call_id"]] = name

    def add_output(self, item: Item) -> None:
        name = self.called.get(item["call_id"])
        if name is None:
            raise ApiError(
                400,
                f"input has the output of call {item['call_id'][:80]!r}, but not the call itself. "
                "Send the call before it, or previous_response_id.",
                "input",
            )
        message = self.add_message("tool", item["output"])
        message |= {"tool_call_id": item["call_id"], "name": name}
