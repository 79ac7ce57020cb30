"""Relevance of texts: /v1/rerank in the shape of Jina and Cohere, /v1/score in that of vLLM.

    /v1/rerank   one query, many documents -> documents by relevance
    /v1/score    pairs of texts -> one score each

The score is the cosine of the vectors that /v1/embeddings returns, from -1 to 1. A cross-encoder
would read both texts together; Weft has none. The yes/no logits of decoder rerankers are not
computed: a decoder is scored by its embeddings too, with a warning.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from starlette.responses import Response

from weft.serve.api_errors import ApiError
from weft.serve.api_route import ApiRoute
from weft.serve.bodies import Body, NoEffect
from weft.serve.context import CallOf, HttpCall
from weft.serve.openai_embeddings import EmbeddingUsage, read_usage
from weft.serve.responses import JsonResponse
from weft.serve.schema_types import TEXT, ModelName, described, fields, list_of
from weft.serve.served_model import ServedModel
from weft.serve.text_vectors import MAX_TEXTS, embed_inputs

router = APIRouter(tags=["rerank"], route_class=ApiRoute)


DOCUMENT = {"anyOf": [TEXT, fields("text", text=TEXT)]}
DOCUMENTS = described(list_of(DOCUMENT, 1, MAX_TEXTS // 2), is_optional=False)
TEXTS = described({"anyOf": [TEXT, list_of(TEXT, 1, MAX_TEXTS // 2)]}, is_optional=False)


class DocumentText(BaseModel):
    """A document in an object."""

    text: str


class RerankBody(Body):
    """The body of /v1/rerank."""

    model: ModelName | None = None
    """Name of a served model; may be left out if there is one."""
    query: str
    """What the documents are compared with."""
    documents: Annotated[list[str | DocumentText], DOCUMENTS]
    """Texts, or objects with a text."""
    top_n: Annotated[int | None, Field(ge=1)] = None
    """Number of results; default: all documents."""
    return_documents: bool | None = None
    """Add the text of each document to its result."""
    user: NoEffect[str] = None
    """Accepted; the API key tells who calls."""


class RerankItem(BaseModel):
    """One document."""

    index: int
    """Its place in the request."""
    relevance_score: float
    document: DocumentText | None = None
    """With return_documents."""


class RerankResult(BaseModel):
    """The response of /v1/rerank."""

    id: str
    model: str
    results: list[RerankItem]
    """Most relevant first."""
    usage: EmbeddingUsage


class ScoreBody(Body):
    """The body of /v1/score."""

    model: ModelName | None = None
    """Name of a served model; may be left out if there is one."""
    text_1: Annotated[str | list[str], TEXTS]
    """One text for all of text_2, or as many."""
    text_2: Annotated[str | list[str], TEXTS]
    """A text, or several."""
    user: NoEffect[str] = None
    """Accepted; the API key tells who calls."""


class ScoreItem(BaseModel):
    """The score of one pair."""

    index: int
    object: Literal["score"]
    score: float


class ScoreList(BaseModel):
    """The response of /v1/score."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[ScoreItem]
    usage: EmbeddingUsage


@router.post("/v2/rerank", response_model=RerankResult, include_in_schema=False)
@router.post("/rerank", response_model=RerankResult, include_in_schema=False)
@router.post("/v1/rerank", response_model=RerankResult)
async def rerank(body: RerankBody, call: CallOf) -> Response:
    """Order documents by their relevance to a query."""
    served = open_scorer(call, body, body.model)
    texts = [one if isinstance(one, str) else one.text for one in body.documents]
    check_number("documents", texts)
    names = ["query", *(f"documents {index}" for index in range(len(texts)))]
    vectors = await embed_inputs(call, served, [body.query, *texts], names=names)
    scores_B = await asyncio.to_thread(cosines, vectors.array_BD[:1], vectors.array_BD[1:])
    order = sorted(range(len(texts)), key=lambda index: (-scores_B[index], index))
    content = {
        "id": f"rerank-{secrets.token_hex(12)}",
        "model": body.model or served.name,
        "results": [
            rerank_item(index, scores_B[index], texts[index] if body.return_documents else None)
            for index in order[: body.top_n]
        ],
        "usage": read_usage(vectors.num_tokens),
    }
    return JsonResponse(content)


def rerank_item(index: int, score: float, text: str | None) -> dict[str, Any]:
    document = {} if text is None else {"document": {"text": text}}
    return {"index": index, "relevance_score": float(score), **document}


@router.post("/score", response_model=ScoreList, include_in_schema=False)
@router.post("/v1/score", response_model=ScoreList)
async def score(body: ScoreBody, call: CallOf) -> Response:
    """Score pairs of texts."""
    served = open_scorer(call, body, body.model)
    first, second = as_list(body.text_1), as_list(body.text_2)
    check_number("text_1", first)
    check_number("text_2", second)
    if len(first) not in (1, len(second)):
        raise ApiError(
            400,
            f"text_1 has {len(first)} texts and text_2 {len(second)}: text_1 must be one text, or "
            "as many as text_2. Send equal numbers.",
            "text_1",
        )
    names = [f"text_1 {index}" for index in range(len(first))]
    names += [f"text_2 {index}" for index in range(len(second))]
    vectors = await embed_inputs(call, served, [*first, *second], names=names)
    array_BD, number = vectors.array_BD, len(first)
    scores_B = await asyncio.to_thread(cosines, array_BD[:number], array_BD[number:])
    content = {
        "id": f"score-{secrets.token_hex(12)}",
        "object": "list",
        "created": int(time.time()),
        "model": body.model or served.name,
        "data": [
            {"index": index, "object": "score", "score": float(one)}
            for index, one in enumerate(scores_B)
        ],
        "usage": read_usage(vectors.num_tokens),
    }
    return JsonResponse(content)


def open_scorer(call: HttpCall, body: Body, model: str | None) -> ServedModel:
    """The model of a request."""
    served = call.open(body, model)
    if served.kind == "decoder":
        call.warn(
            f"model '{served.name}' is a decoder: scores are cosines of its embeddings, not the "
            "yes/no logits of a reranker"
        )
    return served


def check_number(name: str, texts: list[str]) -> None:
    limit = MAX_TEXTS // 2
    if not 1 <= len(texts) <= limit:
        raise ApiError(400, f"{name} has {len(texts)} entries: 1 to {limit} are allowed.", name)


def as_list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def cosines(first_BD: NDArray[np.float32], second_BD: NDArray[np.float32]) -> NDArray[np.float64]:
    """Products of rows of length 1; one row of `first_BD` stands for all."""
    products_BD = first_BD.astype(np.float64) * second_BD
    scores_B: NDArray[np.float64] = products_BD.sum(1)
    return np.clip(scores_B, -1.0, 1.0)
