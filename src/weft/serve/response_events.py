"""Choices -> output items of OpenAI's /v1/responses, and the events of their stream.

    output = OutputItems(...)
    events = output.add(choice_event)      what the step added, as events without sequence numbers
    events = output.finish()
    output.items                           the same, complete

Each item is announced (output_item.added), grows by deltas and ends (output_item.done); text and
reasoning are inside of a content part, which is announced and ends as well. A response that is not
streamed is built from the same events, so both have the same items.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from typing import Any

from weft.serve.generation import ChoiceEvent, Usage, is_json
from weft.serve.openai_fields import logprobs_json
from weft.serve.openai_tools import flat_name
from weft.serve.output_parser import Delta, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallStart
from weft.serve.pending_logprobs import PendingLogprobs
from weft.serve.response_items import new_id
from weft.serve.response_store import Item
from weft.serve.served_model import ServedModel

CALLS = ("function_call", "custom_tool_call")

Event = dict[str, Any]


class OutputItems:
    """The output of one response."""

    def __init__(
        self,
        served: ServedModel,
        tools: Sequence[Mapping[str, Any]] = (),
        has_logprobs: bool = False,
        visible_ids: Collection[int] = (),
    ) -> None:
        """`tools`: those of the request. `visible_ids`: special tokens that are part of the text
        that was parsed."""
        self.served, self.has_logprobs = served, has_logprobs
        self.tool_names = tool_names(tools)
        self.items: list[Item] = []
        self.is_open = False
        """Whether the last item may grow."""
        self.is_complete = True
        """False: the response was cut at its maximum length."""
        self.arguments = ""
        """Of the open call, as generated."""
        self.logprobs = PendingLogprobs(served, visible_ids)

    @property
    def item(self) -> Item:
        return self.items[-1]

    def add(self, event: ChoiceEvent) -> list[Event]:
        """What a step of the engine added."""
        if self.has_logprobs:
            self.logprobs.entries += event.logprobs[: len(event.tokens)]  # without an end token
        events = [one for delta in event.deltas for one in self.add_delta(delta)]
        if event.finish is not None:
            self.is_complete = event.finish.reason != "length"
        return events

    def add_delta(self, delta: Delta) -> list[Event]:
        match delta:
            case TextDelta(text):
                return [*self.need("message"), *self.add_text(text)]
            case ReasoningDelta(text):
                return [*self.need("reasoning"), *self.add_reasoning(text)]
            case ToolCallStart():
                return [*self.close(), *self.open_call(delta)]
            case ToolCallDelta(_, fragment):
                self.arguments += fragment
                if self.item["type"] == "custom_tool_call":
                    return []
                self.item["arguments"] += fragment
                return [self.event("function_call_arguments.delta", delta=fragment)]

    def finish(self) -> list[Event]:
        """The end of the response. One without any text has an empty message."""
        return [*([] if self.items else self.need("message")), *self.close()]

    # --- items ---

    def need(self, kind: str) -> list[Event]:
        """Open an item of this kind, unless the open one is."""
        if self.is_open and self.item["type"] == kind:
            return []
        events = self.close()
        if kind == "message":
            opened = self.open({"type": kind, "role": "assistant", "content": []})
            part: Item = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        else:
            opened = self.open({"type": kind, "summary": [], "content": []})
            part = {"type": "reasoning_text", "text": ""}
        self.item["content"].append(part)
        added = self.event("content_part.added", content_index=0, part=deepcopy(part))
        return [*events, opened, added]

    def open(self, item: Item) -> Event:
        self.items.append({"id": new_id(item["type"]), "status": "in_progress", **item})
        self.is_open, self.arguments = True, ""
        return self.item_event("output_item.added")

    def open_call(self, start: ToolCallStart) -> list[Event]:
        kind, names = self.tool_names.get(start.name, ("function", {"name": start.name}))
        call = {"call_id": start.id, **names}
        if kind == "custom":
            return [self.open({"type": "custom_tool_call", **call, "input": ""})]
        return [self.open({"type": "function_call", **call, "arguments": ""})]

    def add_text(self, text: str) -> list[Event]:
        part = self.item["content"][0]
        logprobs = logprobs_json(self.served, self.logprobs.take(text))
        part["text"] += text
        part["logprobs"] += logprobs
        return [self.event("output_text.delta", content_index=0, delta=text, logprobs=logprobs)]

    def add_reasoning(self, text: str) -> list[Event]:
        self.logprobs.entries.clear()
        self.item["content"][0]["text"] += text
        return [self.event("reasoning_text.delta", content_index=0, delta=text)]

    def close(self) -> list[Event]:
        """End the open item, if there is one."""
        if not self.is_open:
            return []
        self.is_open = False
        is_call = self.item["type"] in CALLS
        is_whole = is_json(self.arguments) if is_call else self.is_complete
        self.item["status"] = "completed" if is_whole else "incomplete"
        return [*self.done_events(), self.item_event("output_item.done")]

    def done_events(self) -> list[Event]:
        """The ends of what is inside of the item."""
        item = self.item
        if item["type"] == "function_call":
            fields = {"name": item["name"], "arguments": item["arguments"]}
            return [self.event("function_call_arguments.done", **fields)]
        if item["type"] == "custom_tool_call":
            item["input"] = custom_input(self.arguments)
            delta = self.event("custom_tool_call_input.delta", delta=item["input"])
            return [delta, self.event("custom_tool_call_input.done", input=item["input"])]
        part = item["content"][0]
        done = self.event("reasoning_text.done", content_index=0, text=part["text"])
        if item["type"] == "message":
            part["logprobs"] += logprobs_json(self.served, self.logprobs.take_all())
            fields = {"text": part["text"], "logprobs": part["logprobs"]}
            done = self.event("output_text.done", content_index=0, **fields)
        return [done, self.event("content_part.done", content_index=0, part=dict(part))]

    # --- events ---

    def event(self, kind: str, **fields: Any) -> Event:
        place = {"item_id": self.item["id"], "output_index": len(self.items) - 1}
        return {"type": f"response.{kind}", **place, **fields}

    def item_event(self, kind: str) -> Event:
        """An event with a copy of the item as it is now."""
        item = dict(self.item)
        if "content" in item:
            item["content"] = [dict(part) for part in item["content"]]
        index = len(self.items) - 1
        return {"type": f"response.{kind}", "output_index": index, "item": item}


def tool_names(tools: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, dict[str, str]]]:
    """Names as the model knows them -> the kind of the tool, and the fields that name it."""
    known: dict[str, tuple[str, dict[str, str]]] = {}
    for tool in tools:
        namespace = tool.get("name") if tool.get("type") == "namespace" else None
        for one in [tool] if namespace is None else tool["tools"]:
            name, kind = one.get("name"), one.get("type")
            if isinstance(name, str) and kind in ("function", "custom"):
                place = {} if namespace is None else {"namespace": namespace}
                known[flat_name(namespace, name)] = kind, {**place, "name": name}
    return known


def custom_input(arguments: str) -> str:
    """The text in the arguments of a custom tool, {"input": text}; as they are if they are cut."""
    parsed = json.loads(arguments) if is_json(arguments) else None
    text = parsed.get("input") if isinstance(parsed, dict) else None
    return text if isinstance(text, str) else arguments


def response_usage(usage: Usage) -> dict[str, Any]:
    """The usage object of /v1/responses. Nothing is charged for writing to the cache."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
