"""Choices -> Anthropic's messages, whole and as a stream of events.

    message_start           when the first token is there: then the cached tokens are known
    content_block_start     one for each text, reasoning (thinking) and tool call (tool_use)
    content_block_delta     text_delta, thinking_delta, signature_delta or input_json_delta
    content_block_stop
    message_delta           why the message ends, and all token counts
    message_stop

`ping` is sent while nothing else is, and `error` instead of the rest. A whole message is made of
the same deltas, so both have the same blocks. Signatures are empty: reasoning is not encrypted.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from typing import Any

from pydantic_core import from_json

from weft.engine.detokenizer import FinishReason
from weft.serve.api_errors import ApiError, error_body
from weft.serve.context import HttpCall
from weft.serve.generation import Generation, Usage
from weft.serve.output_parser import Delta, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallStart
from weft.serve.streaming import sse

PING = sse({"type": "ping"}, "ping")
STOP_REASONS = {"end": "end_turn", "length": "max_tokens", "stop": "stop_sequence"}

Event = dict[str, Any]


class ContentBlocks:
    """Deltas -> content blocks, and the events of their stream."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []
        """As they are in a whole message; the last one is filled when it is closed."""
        self.parts: list[str] = []
        """Text of the open block."""
        self.is_open = False

    @property
    def has_calls(self) -> bool:
        return any(block["type"] == "tool_use" for block in self.blocks)

    def add(self, delta: Delta) -> list[Event]:
        """Add a delta; returns its events."""
        if isinstance(delta, ToolCallStart):
            return self.open({"type": "tool_use", "id": delta.id, "name": delta.name, "input": {}})
        if isinstance(delta, ToolCallDelta):
            text = delta.arguments_fragment
            return [self.append(text, {"type": "input_json_delta", "partial_json": text})]
        if isinstance(delta, TextDelta):
            events = self.ensure("text", {"type": "text", "text": ""})
            change = {"type": "text_delta", "text": delta.text}
        else:
            assert isinstance(delta, ReasoningDelta), f"a delta of type {type(delta).__name__}"
            events = self.ensure("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            change = {"type": "thinking_delta", "thinking": delta.text}
        return [*events, self.append(delta.text, change)]

    def ensure(self, kind: str, block: dict[str, Any]) -> list[Event]:
        """Open a block unless one of its kind is open."""
        return [] if self.is_open and self.blocks[-1]["type"] == kind else self.open(block)

    def open(self, block: dict[str, Any]) -> list[Event]:
        """End the open block and begin another."""
        events = self.close()
        self.blocks.append(block)
        self.is_open = True
        start = {"type": "content_block_start", "index": len(self.blocks) - 1}
        return [*events, {**start, "content_block": dict(block)}]

    def append(self, text: str, change: dict[str, Any]) -> Event:
        self.parts.append(text)
        return self.delta_event(change)

    def delta_event(self, change: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": change}

    def close(self) -> list[Event]:
        """End the open block, if there is one."""
        if not self.is_open:
            return []
        block, text = self.blocks[-1], "".join(self.parts)
        events = []
        if block["type"] == "tool_use":
            block["input"] = parse_input(text)
        else:
            block[block["type"]] = text
        if block["type"] == "thinking":
            events.append(self.delta_event({"type": "signature_delta", "signature": ""}))
        self.is_open, self.parts = False, []
        return [*events, {"type": "content_block_stop", "index": len(self.blocks) - 1}]


def parse_input(text: str) -> dict[str, Any]:
    """The arguments of a call. If max_tokens has cut their text, those that are complete, as the
    client's own package reads the events of a stream."""
    try:
        value = from_json(text, allow_partial=True) if text else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class MessageFormat:
    """One message of the assistant."""

    def __init__(self, call: HttpCall, model: str) -> None:
        self.call, self.model = call, model
        self.id = f"msg_{secrets.token_hex(12)}"
        self.content = ContentBlocks()

    async def whole(self, generation: Generation) -> dict[str, Any]:
        """The response of a request that is not streamed."""
        finish = None
        async for event in generation.events():
            for delta in event.deltas:
                self.content.add(delta)
            finish = event.finish
        self.content.close()
        return self.message(self.content.blocks, self.ending(finish), usage_json(generation.usage))

    def message(
        self, content: list[dict[str, Any]], ending: dict[str, Any], usage: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            **ending,
            "usage": usage,
        }

    def ending(self, finish: FinishReason | None) -> dict[str, Any]:
        """stop_reason and stop_sequence; both are null while the message goes on."""
        if finish is None:
            return {"stop_reason": None, "stop_sequence": None}
        reason = STOP_REASONS[finish.reason]
        if reason == "end_turn" and self.content.has_calls:
            reason = "tool_use"
        return {"stop_reason": reason, "stop_sequence": finish.stop}

    async def chunks(self, generation: Generation) -> AsyncIterator[bytes]:
        """The server-sent events of a streamed response."""
        finish, has_started = None, False
        async for event in generation.events():
            if not has_started:
                has_started = True
                yield self.start(generation.usage)
            events = [one for delta in event.deltas for one in self.content.add(delta)]
            if events:
                yield b"".join(sse(one, one["type"]) for one in events)
            finish = event.finish
        last = [
            *self.content.close(),
            {
                "type": "message_delta",
                "delta": self.ending(finish),
                "usage": usage_json(generation.usage),
            },
            {"type": "message_stop"},
        ]
        yield b"".join(sse(one, one["type"]) for one in last)

    def start(self, usage: Usage) -> bytes:
        """The first event, with the token counts of the prompt."""
        counts = usage_json(Usage(usage.prompt_tokens, usage.cached_tokens))
        message = self.message([], self.ending(None), counts)
        return sse({"type": "message_start", "message": message}, "message_start")

    def error_chunk(self, error: ApiError) -> bytes:
        return sse(error_body("/v1/messages", error, self.call.id), "error")


def usage_json(usage: Usage) -> dict[str, Any]:
    """Anthropic's usage object; its input_tokens are those that were not in the cache."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }
