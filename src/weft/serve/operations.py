"""Routes for operators: /health, /ready, /version and /."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from weft import __version__
from weft.serve.api_errors import ApiError
from weft.serve.context import CallOf

router = APIRouter(tags=["operations"])


@router.get("/health")
async def health(call: CallOf) -> dict[str, Any]:
    """200 while the server can answer; 503 if an engine thread has died."""
    problem = call.service.problem
    if problem is not None:
        raise ApiError(503, f"{problem}. Restart the server.")
    return {"status": "ok", "ready": is_ready(call) is None}


@router.get("/ready")
async def ready(call: CallOf) -> dict[str, Any]:
    """200 if requests are accepted; 503 with what is loading or draining."""
    reason = is_ready(call)
    if reason is not None:
        raise ApiError(503, reason, headers={"retry-after": "1"})
    return {"status": "ready"}


def is_ready(call: CallOf) -> str | None:
    """Why requests are not accepted; None: they are."""
    service = call.service
    if service.is_draining:
        return "the server is draining: running requests finish, and no others are accepted."
    if service.models.loading:
        return f"loading {', '.join(service.models.loading)}."
    return service.problem


@router.get("/version")
async def version() -> dict[str, str]:
    """The version of Weft."""
    return {"version": __version__}


@router.head("/", include_in_schema=False)
@router.get("/")
async def index(request: Request) -> Response:
    """The web page for browsers; for others what Ollama's clients look for."""
    page = request.app.state.index
    if (
        page is not None
        and request.method == "GET"
        and "text/html" in request.headers.get("accept", "")
    ):
        return page
    return PlainTextResponse("Ollama is running")
