"""JSON responses, and the error responses that routes declare in OpenAPI (api_route.py)."""

from __future__ import annotations

from typing import Any

import orjson
from pydantic import BaseModel
from starlette.responses import JSONResponse

from weft.serve.api_errors import error_status


class JsonResponse(JSONResponse):
    """JSON by orjson, which is several times as fast as the standard library. Writes NumPy arrays
    as lists; float32 values with as many digits as they have."""

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)


class OpenAIErrorFields(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIErrorBody(BaseModel):
    """OpenAI's error object."""

    error: OpenAIErrorFields


class AnthropicErrorFields(BaseModel):
    """What went wrong."""

    type: str
    message: str


class AnthropicErrorBody(BaseModel):
    """Anthropic's error object."""

    type: str
    error: AnthropicErrorFields
    request_id: str | None = None


class ErrorSentence(BaseModel):
    """The error object of Ollama and LibreTranslate."""

    error: str


ERROR_BODIES: dict[str, type[BaseModel]] = {
    "openai": OpenAIErrorBody,
    "anthropic": AnthropicErrorBody,
    "ollama": ErrorSentence,
    "libretranslate": ErrorSentence,
}
"""By protocol, as `api_errors.error_body` builds them."""

STATUS_MEANINGS = {
    400: "The request cannot be served; the sentence says why.",
    401: "The API key is missing or not valid.",
    403: "The server does not allow this.",
    404: "There is no such model, or no such object of this API key.",
    413: "The body is too large.",
    415: "The content type is not application/json.",
    429: "The server is busy; Retry-After says when to try again.",
    500: "A fault of the server; the log has its traceback under the request id.",
    503: "The model is being loaded, or the server is shutting down.",
    504: "The request took longer than its timeout.",
}


EVENT_STREAM, JSON_LINES = "text/event-stream", "application/x-ndjson"


EVENT_SCHEMA = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
"""Of one event: its data is JSON, or [DONE]."""


def or_streamed(media_type: str = EVENT_STREAM) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that can also stream, or return another type of text."""
    schema = EVENT_SCHEMA if media_type == EVENT_STREAM else {"type": "string"}
    return {200: {"content": {media_type: {"schema": schema}}}}


def error_responses(
    *statuses: int, protocol: str, is_text: bool = False
) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route that may answer with these error statuses. `is_text`: the route
    returns text; its errors are JSON, and FastAPI would describe them as text too."""
    body: dict[str, Any] = {"model": ERROR_BODIES[protocol]}
    if is_text:
        reference = f"#/components/schemas/{ERROR_BODIES[protocol].__name__}"
        body = {"content": {"application/json": {"schema": {"$ref": reference}}}}
    declared: dict[int | str, dict[str, Any]] = {
        error_status(protocol, status): {**body, "description": STATUS_MEANINGS[status]}
        for status in statuses
    }
    # `default` also replaces FastAPI's 422, which this server never sends
    return {**declared, "default": {**body, "description": "Another error."}}
