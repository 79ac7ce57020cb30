"""`ApiRoute`, the class of all routes: reads JSON strictly, and declares its protocol's errors.

router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=ApiRoute)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import PlainTextResponse, Response

from weft.serve.api_errors import protocol_of
from weft.serve.json_bodies import JsonRequest
from weft.serve.responses import error_responses

ERROR_STATUSES = {
    "openai": (400, 401, 403, 404, 413, 415, 429, 500, 503, 504),
    "anthropic": (400, 401, 403, 404, 413, 415, 429, 500, 503, 504),
    "ollama": (400, 401, 403, 404, 413, 429, 500, 503, 504),
    "libretranslate": (400, 403, 413, 429, 500, 503, 504),
}
"""What the routes of a protocol may answer besides 200."""
ONLY_WITH_BODY = (413, 415, 429, 504)
OPERATIONS = (400, 401, 403, 500, 503)
"""Of routes for operators."""


class ApiRoute(APIRoute):
    """A route of one of the protocols."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        methods, tags = options.get("methods") or {"GET"}, options.get("tags") or ()
        protocol = protocol_of(path)
        statuses = OPERATIONS if "operations" in tags else ERROR_STATUSES[protocol]
        if "POST" not in methods:
            statuses = tuple(one for one in statuses if one not in ONLY_WITH_BODY)
        more = options.pop("responses", None) or {}
        is_text = options.get("response_class") is PlainTextResponse
        errors = error_responses(*statuses, protocol=protocol, is_text=is_text)
        super().__init__(path, endpoint, responses={**errors, **more}, **options)

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json
