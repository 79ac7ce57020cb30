"""Response classes of Anthropic's routes, for /openapi.json and for tests that check responses."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from weft.serve.openai_results import Result


class TextBlock(Result):
    """A text."""

    type: Literal["text"]
    text: str


class ThinkingBlock(Result):
    """Reasoning before the answer."""

    type: Literal["thinking"]
    thinking: str
    signature: str


class ToolUseBlock(Result):
    """A call of a function."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


ContentBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]


class ThinkingTokens(Result):
    """Details of the answer's tokens."""

    thinking_tokens: int


class MessageUsage(Result):
    """Token counts; input_tokens are those that were not in the cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: ThinkingTokens


class AssistantMessage(Result):
    """The response of /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(Result):
    """The response of /v1/messages/count_tokens."""

    input_tokens: int
