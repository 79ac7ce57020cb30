"""OpenAI's /v1/embeddings: one vector of length 1 per text, by any kind of model.

Texts and token ids are accepted, alone or as a list. `encoding_format` base64 is the vector as
little-endian float32, which OpenAI's Python client asks for. `dimensions` keeps the first numbers
of a vector and scales them to length 1 again, as models trained for it expect (Kusupati 2022).
"""

from __future__ import annotations

import asyncio
import base64
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from starlette.responses import Response

from weft.serve.api_errors import ApiError
from weft.serve.api_route import ApiRoute
from weft.serve.bodies import Body, NoEffect
from weft.serve.context import CallOf
from weft.serve.responses import JsonResponse
from weft.serve.schema_types import DIMENSIONS, ModelName, TextsOrIds
from weft.serve.served_model import ServedModel
from weft.serve.text_vectors import TextOrIds, TextVectors, embed_inputs, normalized

router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=ApiRoute)


class EmbeddingBody(Body):
    """The body of /v1/embeddings."""

    model: ModelName
    """Name of a served model."""
    input: TextsOrIds
    """A text, token ids, or a list of either. Token ids are read as they are, without begin and
    end."""
    encoding_format: Literal["float", "base64"] | None = None
    """float: lists of numbers. base64: little-endian float32."""
    dimensions: Annotated[int | None, Field(ge=1), DIMENSIONS] = None
    """Numbers of a vector to keep; default: all."""
    user: NoEffect[str] = None
    """Accepted; the API key tells who calls."""


class EmbeddingItem(BaseModel):
    """The vector of one text."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    """Token counts of texts that were read."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(BaseModel):
    """The response of /v1/embeddings."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage


@router.post("/embeddings", response_model=EmbeddingList)
async def create_embeddings(body: EmbeddingBody, call: CallOf) -> Response:
    """One vector per text."""
    served = call.open(body, body.model)
    check_dimensions(served, body.dimensions)
    vectors = await embed_inputs(call, served, inputs_of(body.input))
    return await asyncio.to_thread(response_of, body, vectors)


def inputs_of(value: str | list[str] | list[int] | list[list[int]]) -> list[TextOrIds]:
    """The texts or token ids of an input."""
    if isinstance(value, str):
        return [value]
    if value and isinstance(value[0], int):
        return [[one for one in value if isinstance(one, int)]]
    return [one for one in value if not isinstance(one, int)]


def check_dimensions(served: ServedModel, dimensions: int | None) -> None:
    width = served.loaded.model.config.width
    if dimensions is not None and dimensions > width:
        raise ApiError(
            400,
            f"dimensions is {dimensions}, but the vectors of model '{served.name}' have {width}. "
            f"Use 1 to {width}.",
            "dimensions",
        )


def response_of(body: EmbeddingBody, vectors: TextVectors) -> Response:
    """OpenAI's response."""
    array_BD = vectors.array_BD
    if body.dimensions is not None and body.dimensions < array_BD.shape[1]:
        array_BD = normalized(array_BD[:, : body.dimensions])
    is_base64 = body.encoding_format == "base64"
    data = [
        {"object": "embedding", "index": index, "embedding": base64_of(row) if is_base64 else row}
        for index, row in enumerate(array_BD)
    ]
    content = {
        "object": "list",
        "data": data,
        "model": body.model,
        "usage": read_usage(vectors.num_tokens),
    }
    return JsonResponse(content)


def base64_of(row_D: NDArray[np.float32]) -> str:
    return base64.b64encode(row_D.astype("<f4").tobytes()).decode("ascii")


def read_usage(num_tokens: int) -> dict[str, Any]:
    """The usage of texts that were read, not generated."""
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
