"""/v1/attention: the attention weights of one token of a recent response, by its id.

    {"id": "cmpl-...", "position": 12}                      all heads of all layers
    {"id": "cmpl-...", "position": 12, "layer": 3, "head": 0}

Weft's own route. Nothing is recorded while a response is generated: the token is run once more
against its keys in the KV cache (engine/attention_rows.py), which is possible while they are cached
and for the last 256 responses of each API key. Only the API key that a response belongs to can ask
for it, and on addresses other than loopback only with --look.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, Field
from starlette.responses import Response
from torch import Tensor

from weft.core.errors import UsageError
from weft.engine.attention_rows import AttentionRows, check_index, find_pages
from weft.engine.engine import Engine
from weft.serve.api_errors import ApiError
from weft.serve.api_route import ApiRoute
from weft.serve.bodies import Body
from weft.serve.context import CallOf, HttpCall
from weft.serve.recent_responses import RecentResponse
from weft.serve.responses import JsonResponse
from weft.serve.served_model import ServedModel
from weft.text.tokenizer import Tokenizer

router = APIRouter(prefix="/v1", tags=["Weft"], route_class=ApiRoute)


class AttentionBody(Body):
    """The body of /v1/attention."""

    id: str
    """Id of a response, such as cmpl-...; for /translate and /api its x-request-id."""
    index: Annotated[int, Field(ge=0)] = 0
    """Index of a choice."""
    position: Annotated[int, Field(ge=0)]
    """Index of the token among prompt and answer."""
    layer: Annotated[int | None, Field(ge=0)] = None
    """One layer; default: all."""
    head: Annotated[int | None, Field(ge=0)] = None
    """One head; default: all."""


class AttentionToken(BaseModel):
    """A key."""

    id: int
    text: str


class HeadAttention(BaseModel):
    """The weights of one head, which sum to 1."""

    layer: int
    head: int
    weights: list[float]
    """Over `tokens`."""
    source_weights: list[float] | None
    """Over the tokens of the source, for an encoder-decoder."""


class AttentionResult(BaseModel):
    """The response of /v1/attention."""

    object: str
    id: str
    model: str
    index: int
    position: int
    tokens: list[AttentionToken]
    """All tokens up to `position`."""
    source_tokens: list[AttentionToken] | None
    heads: list[HeadAttention]


@router.post("/attention", response_model=AttentionResult)
async def read_attention(body: AttentionBody, call: CallOf) -> Response:
    """Attention weights of one token of a recent response."""
    check_allowed(call, body)
    recent = call.service.recent.find(body.id, call.caller)
    if recent is None:
        raise not_found(body.id)
    served = recent.served
    call.record.model = served.name
    request_id, sample = choice_of(recent, body)
    layers = layers_of(served, body)

    def read(engine: Engine) -> tuple[AttentionRows, Sequence[int] | None]:
        return rows_of(engine, request_id, sample, body, layers)

    rows, source = await asyncio.wrap_future(served.engine.call(read))
    return await asyncio.to_thread(response_of, body, served, rows, source, layers)


def check_allowed(call: HttpCall, body: AttentionBody) -> None:
    """Raise an ApiError for a wrong field, or if the server does not show attention weights."""
    for warning in body.check_fields(call.config.lenient):
        call.warn(warning)
    if not (call.config.is_loopback or call.config.look):
        raise ApiError(
            403,
            f"attention weights are not shown on {call.config.host}. Start the server with --look, "
            "or on a loopback address.",
        )


def not_found(response_id: str, reason: str = "") -> ApiError:
    return ApiError(
        404,
        f"there is no response '{response_id[:100]}' of this API key in the cache: "
        f"{reason or 'it is unknown, or too many others have followed'}. Ask sooner.",
        "id",
        "response_not_found",
    )


def choice_of(recent: RecentResponse, body: AttentionBody) -> tuple[str, int]:
    choice = recent.choice(body.index)
    if choice is None:
        number = recent.size
        raise ApiError(
            400,
            f"index is {body.index}, but the response has {number} choices. Use 0 to {number - 1}.",
            "index",
        )
    return choice


def layers_of(served: ServedModel, body: AttentionBody) -> list[int]:
    """The requested layers; a UsageError for a layer or head that the model does not have."""
    num_layers = served.engine.engine.runner.stack.num_layers
    if body.layer is not None:
        check_index("layer", body.layer, num_layers, "the model")
    if body.head is not None:
        check_index("head", body.head, served.loaded.model.config.attention.num_heads, "a layer")
    return list(range(num_layers)) if body.layer is None else [body.layer]


def rows_of(
    engine: Engine, request_id: str, sample: int, body: AttentionBody, layers: list[int]
) -> tuple[AttentionRows, Sequence[int] | None]:
    """Engine thread: the weights, and the tokens of the source."""
    try:
        tokens = find_pages(engine.scheduler.state, engine.finished, request_id, sample).tokens
    except UsageError:
        raise not_found(body.id) from None
    check_index("position", body.position, len(tokens), "this choice")
    try:
        rows = engine.attention_of_layers(request_id, body.position, sample, layers)
    except UsageError:
        raise not_found(body.id, "its keys were evicted from the KV cache") from None
    if request_id in engine.finished:
        return rows, engine.finished[request_id].request.source
    return rows, engine.requests[request_id].source


def response_of(
    body: AttentionBody,
    served: ServedModel,
    rows: AttentionRows,
    source: Sequence[int] | None,
    layers: list[int],
) -> Response:
    """The response as JSON; called in a thread, as there are many numbers."""
    tokenizer = served.tokenizer
    content = {
        "object": "attention",
        "id": body.id,
        "model": served.name,
        "index": body.index,
        "position": body.position,
        "tokens": tokens_of(tokenizer.target, rows.tokens),
        "source_tokens": None if source is None else tokens_of(tokenizer, source),
        "heads": [
            head_of(rows, place, layer, head)
            for place, layer in enumerate(layers)
            for head in heads_of(rows.weights_LHS, body.head)
        ],
    }
    return JsonResponse(content)


def heads_of(weights_LHS: Tensor, head: int | None) -> Sequence[int]:
    return range(weights_LHS.shape[1]) if head is None else [head]


def head_of(rows: AttentionRows, place: int, layer: int, head: int) -> dict[str, Any]:
    source = rows.source_weights_LHS
    return {
        "layer": layer,
        "head": head,
        "weights": rows.weights_LHS[place, head].numpy(),
        "source_weights": None if source is None else source[place, head].numpy(),
    }


def tokens_of(tokenizer: Tokenizer, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Ids with their texts; a token that is part of a character is shown as U+FFFD."""
    known = [index for index in ids if index < tokenizer.vocab_size]
    texts = dict(zip(known, tokenizer.token_bytes(known), strict=True))
    return [
        {"id": index, "text": texts.get(index, b"").decode("utf-8", "replace")} for index in ids
    ]
