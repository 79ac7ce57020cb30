"""Response classes of OpenAI's routes, for /openapi.json and for tests that check every response.

The routes write plain dicts, which is faster than instances of these classes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Result(BaseModel):
    """Base of the objects that routes return: exactly these fields."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class CachedTokens(Result):
    """Details of the prompt's tokens."""

    cached_tokens: int


class ReasoningTokens(Result):
    """Details of the answer's tokens."""

    reasoning_tokens: int


class CompletionUsage(Result):
    """Token counts of a generated text."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens
    completion_tokens_details: ReasoningTokens


class TopLogprob(Result):
    """The log-probability of a token that could have been chosen."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(TopLogprob):
    """The log-probability of a token of the answer."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(Result):
    """The log-probabilities of an answer."""

    content: list[ChatLogprob] | None
    refusal: list[ChatLogprob] | None


class CalledFunction(Result):
    """Name and arguments of a call."""

    name: str
    arguments: str
    """JSON text."""


class ChatToolCall(Result):
    """A call of a function."""

    id: str
    type: Literal["function"]
    function: CalledFunction


class AnswerMessage(Result):
    """The assistant's message."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning: str | None = None
    """vLLM's name."""
    reasoning_content: str | None = None
    """The name of llama-server and SGLang."""
    tool_calls: Annotated[list[ChatToolCall] | None, Field(min_length=1)] = None
    function_call: CalledFunction | None = None
    """The call, if the request has functions instead of tools."""


class ChatChoice(Result):
    """One answer."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"]


class PromptLogprob(Result):
    """A token of the prompt, or one that could have been in its place."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobList = list[dict[str, PromptLogprob] | None]


class ChatCompletion(Result):
    """The response of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: CompletionUsage
    prompt_logprobs: PromptLogprobList | None = None


class TextLogprobs(Result):
    """The log-probabilities of a text of /v1/completions."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]
    bytes: list[list[int]]
    """Of each token; OpenAI has them in chats only."""


class TextChoice(Result):
    """One text."""

    text: str
    index: int
    logprobs: TextLogprobs | None
    finish_reason: Literal["stop", "length"]
    prompt_logprobs: PromptLogprobList | None = None


class TextCompletion(Result):
    """The response of /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: CompletionUsage


class ModelCard(Result):
    """A model, with the fields of vLLM that gateways and agents read."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int | None


class ModelList(Result):
    """The response of /v1/models."""

    object: Literal["list"]
    data: list[ModelCard]


class InputTokenDetails(Result):
    """Details of the prompt's tokens."""

    cached_tokens: int
    cache_write_tokens: int


class ResponseUsage(Result):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: InputTokenDetails
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class ResponseFailure(Result):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(Result):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseItem(BaseModel):
    """An item of a conversation: a message, reasoning, a call or its output."""

    model_config = ConfigDict(extra="allow")

    id: str
    type: str


class ResponseObject(Result):
    """The response of /v1/responses, with the settings of its request."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["completed", "incomplete", "failed", "in_progress"]
    background: bool
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    model: str
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    user: str | None
    output: list[ResponseItem]
    usage: ResponseUsage | None


class InputTokens(Result):
    """The response of /v1/responses/input_tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class DeletedResponse(Result):
    """The response of DELETE /v1/responses/{id}."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ItemList(Result):
    """A page of the conversation before a response."""

    object: Literal["list"]
    data: list[ResponseItem]
    first_id: str
    last_id: str
    has_more: bool
