"""/tokenize and /detokenize, in the shapes of vLLM and llama-server.

    {"prompt": "a text"}        -> {"tokens", "count", "max_model_len", "token_strs"}    vLLM
    {"messages": [...]}         -> the same, of a conversation in the chat template
    {"content": "a text"}       -> {"tokens"}, with_pieces: [{"id", "piece"}]           llama-server
    {"tokens": [...]}           -> {"prompt", "content"}: the text under both names

The tokens of a prompt or of messages are those that a completion or a chat reads; for other kinds
of models those that an embedding or a translation reads.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from weft.serve.api_errors import ApiError
from weft.serve.api_route import ApiRoute
from weft.serve.bodies import Body
from weft.serve.context import CallOf, HttpCall
from weft.serve.conversation import Conversation, chat_prompt
from weft.serve.openai_messages import ChatMessage, chat_messages
from weft.serve.openai_tools import Tools, function_tools
from weft.serve.responses import JsonResponse
from weft.serve.schema_types import (
    NULL,
    TEXT,
    ModelName,
    TokenIds,
    fields,
    list_of,
)
from weft.serve.served_model import ServedModel

router = APIRouter(tags=["tokens"], route_class=ApiRoute)


ONE_TEXT: list[Any] = [
    fields("prompt", prompt=TEXT, messages=NULL, content=NULL),
    fields("messages", messages=list_of({}), prompt=NULL, content=NULL),
    fields("content", content=TEXT, prompt=NULL, messages=NULL),
]


class TokenizeBody(Body):
    """The body of /tokenize: prompt, messages or content."""

    model_config = ConfigDict(json_schema_extra={"oneOf": ONE_TEXT})

    model: ModelName | None = None
    """Name of a served model; may be left out if there is one."""
    prompt: str | None = None
    """A text."""
    messages: list[ChatMessage] | None = None
    """A conversation, in OpenAI's form."""
    content: str | None = None
    """A text, in the form of llama-server."""
    add_special_tokens: bool = True
    """Add begin (and end) to a prompt."""
    return_token_strs: bool | None = None
    """Also return the text of each token."""
    add_generation_prompt: bool | None = None
    """End messages with the beginning of the next answer."""
    continue_final_message: bool | None = None
    """The last message is continued."""
    tools: Tools = None
    """Functions that the conversation offers, in all forms that chats accept."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Further variables of the chat template."""
    add_special: bool = False
    """Add begin (and end) to content."""
    parse_special: bool = True
    """Special tokens in content are tokens, not text."""
    with_pieces: bool = False
    """The tokens of content with their texts."""


class TokenPiece(BaseModel):
    """A token and its text."""

    id: int
    piece: str | list[int]
    """The bytes, if they are not characters."""


class TokenizeResult(BaseModel):
    """The response of /tokenize."""

    tokens: list[int] | list[TokenPiece]
    count: int
    max_model_len: int
    token_strs: list[str] | None


class DetokenizeBody(Body):
    """The body of /detokenize."""

    model: ModelName | None = None
    """Name of a served model; may be left out if there is one."""
    tokens: TokenIds
    """Token ids, special ones included."""


class DetokenizeResult(BaseModel):
    """The response of /detokenize."""

    prompt: str
    content: str
    """The same."""


@router.post("/tokenize", response_model=TokenizeResult)
async def tokenize(body: TokenizeBody, call: CallOf) -> Response:
    """The tokens of a text or a conversation."""
    served = call.open(body, body.model)
    check_one_text(body)
    return await asyncio.to_thread(tokenize_response, call, served, body)


@router.post("/detokenize", response_model=DetokenizeResult)
async def detokenize(body: DetokenizeBody, call: CallOf) -> Response:
    """The text of tokens."""
    served = call.open(body, body.model)
    text = await asyncio.to_thread(served.tokenizer.decode, body.tokens, False)
    return JsonResponse({"prompt": text, "content": text}, headers=call.response_headers)


def check_one_text(body: TokenizeBody) -> None:
    texts = {"prompt": body.prompt, "messages": body.messages, "content": body.content}
    names = [name for name, value in texts.items() if value is not None]
    if len(names) != 1:
        raise ApiError(
            400,
            f"{' and '.join(names) or 'none of prompt, messages and content'} was sent: one of "
            "prompt, messages and content is needed. Send one.",
            names[0] if names else "prompt",
        )


def tokenize_response(call: HttpCall, served: ServedModel, body: TokenizeBody) -> Response:
    """Called in a thread: chat templates and tokenizers take time."""
    ids = ids_of(call, served, body)
    tokens: Sequence[Any] = ids
    if body.content is not None and body.with_pieces:
        pairs = zip(ids, served.tokenizer.token_bytes(ids), strict=True)
        tokens = [{"id": index, "piece": piece_of(data)} for index, data in pairs]
    content = {
        "tokens": tokens,
        "count": len(ids),
        "max_model_len": served.max_len,
        "token_strs": served.tokenizer.pieces(ids) if body.return_token_strs else None,
    }
    return JsonResponse(content, headers=call.response_headers)


def ids_of(call: HttpCall, served: ServedModel, body: TokenizeBody) -> list[int]:
    """The token ids of what was sent."""
    tokenizer = served.tokenizer
    if body.messages is not None:
        return chat_prompt(call, served, conversation_of(body, call, served)).ids
    if body.content is not None:
        return tokenizer.encode(body.content, body.add_special, sys.maxsize, body.parse_special)
    text = body.prompt or ""
    if served.kind == "decoder" and body.add_special_tokens:
        return served.builder.prompt_ids(text)
    return tokenizer.encode(text, body.add_special_tokens, sys.maxsize)


def conversation_of(body: TokenizeBody, call: HttpCall, served: ServedModel) -> Conversation:
    return Conversation(
        chat_messages(body.messages or (), served.tool_format),
        function_tools(body.tools or (), call),
        template=body.chat_template_kwargs or {},
        continue_final_message=bool(body.continue_final_message),
        add_generation_prompt=body.add_generation_prompt,
    )


def piece_of(data: bytes) -> str | list[int]:
    """The text of a token; its bytes if they are not whole characters."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return list(data)
