"""Ollama's /api/embed, and /api/embeddings, which it replaces: one vector of length 1 per text.

A text that is too long is truncated, as Ollama does, unless `truncate` is false; the header
x-weft-truncated says how many were. `dimensions` keeps the first numbers of a vector and scales
them to length 1 again.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

from pydantic import Field
from starlette.responses import Response

from weft.serve.bodies import NoEffect
from weft.serve.context import CallOf, HttpCall
from weft.serve.ollama_fields import OllamaBody, OllamaOptions, nanoseconds, ollama_router
from weft.serve.ollama_results import OllamaEmbeddingsResult, OllamaEmbedResult
from weft.serve.openai_embeddings import check_dimensions
from weft.serve.responses import JsonResponse
from weft.serve.schema_types import DIMENSIONS
from weft.serve.served_model import ServedModel
from weft.serve.text_vectors import TextVectors, embed_inputs, normalized

router = ollama_router()


class OllamaEmbedBody(OllamaBody):
    """The body of /api/embed."""

    input: str | list[str] | None = None
    """A text, or several."""
    truncate: bool | None = None
    """false: a text that is too long is an error; default true."""
    dimensions: Annotated[int | None, Field(ge=1), DIMENSIONS] = None
    """Numbers of a vector to keep; default: all."""
    options: NoEffect[OllamaOptions] = None
    """Vectors do not depend on options."""


class OllamaEmbeddingsBody(OllamaBody):
    """The body of /api/embeddings."""

    prompt: str | None = None
    """A text."""
    options: NoEffect[OllamaOptions] = None
    """Vectors do not depend on options."""


@router.post("/embed", response_model=OllamaEmbedResult)
async def ollama_embed(body: OllamaEmbedBody, call: CallOf) -> Response:
    """One vector per text."""
    served = call.open(body, body.model)
    check_dimensions(served, body.dimensions)
    texts = [body.input] if isinstance(body.input, str) else body.input or []
    truncate, began_at = body.truncate is not False, time.perf_counter()
    has_text = any(texts) or len(texts) > 1  # "" alone has no vector, as in Ollama
    vectors = await text_vectors(call, served, texts, truncate) if has_text else None
    rows: Any = [] if vectors is None else vectors.array_BD
    if vectors is not None and body.dimensions is not None:
        rows = normalized(vectors.array_BD[:, : body.dimensions])
    content = {
        "model": body.model,
        "embeddings": rows,
        "total_duration": nanoseconds(time.perf_counter() - call.record.began_at),
        "load_duration": nanoseconds(began_at - call.record.began_at),
        "prompt_eval_count": 0 if vectors is None else vectors.num_tokens,
    }
    return JsonResponse(content)


@router.post("/embeddings", response_model=OllamaEmbeddingsResult)
async def ollama_embeddings(body: OllamaEmbeddingsBody, call: CallOf) -> Response:
    """The vector of one text."""
    served = call.open(body, body.model)
    if not body.prompt:
        return JsonResponse({"embedding": []})
    vectors = await text_vectors(call, served, [body.prompt], truncate=True)
    return JsonResponse({"embedding": vectors.array_BD[0]})


async def text_vectors(
    call: HttpCall, served: ServedModel, texts: list[str], truncate: bool
) -> TextVectors:
    """The vectors of texts; a header says how many were truncated."""
    vectors = await embed_inputs(call, served, texts, truncate=truncate)
    if vectors.num_truncated:
        call.response_headers["x-weft-truncated"] = str(vectors.num_truncated)
    return vectors
