"""`ApiRoute`, the class of all routes: reads JSON strictly, and declares its protocol's errors. A
route that answers GET answers HEAD too, without the body, which uvicorn leaves out.

router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=ApiRoute)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

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

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return super().matches(as_get(scope, self.methods or ()))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().handle(as_get(scope, self.methods or ()), receive, send)

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        handle = super().get_route_handler()

        async def handle_json(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_json


def as_get(scope: Scope, methods: Collection[str]) -> Scope:
    """A HEAD request as the GET request that it asks about, if only that has a route."""
    is_head = scope.get("method") == "HEAD" and "GET" in methods and "HEAD" not in methods
    return {**scope, "method": "GET"} if is_head else scope
