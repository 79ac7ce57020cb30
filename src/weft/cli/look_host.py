"""Implements look/host.py, the interface of the server that the routes below /look use.

serve and look do not import each other, so they are connected here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi import APIRouter
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from weft.look.cache_stream import cache_router
from weft.look.decode_stream import decode_router
from weft.look.routes import look_router
from weft.look.scratch_routes import ScratchRoutes, scratch_router
from weft.serve.api_errors import ApiError, error_body
from weft.serve.api_route import ApiRoute
from weft.serve.context import HttpCall, Service, call_of
from weft.serve.responses import JsonResponse
from weft.serve.served_model import ServedModel
from weft.serve.streaming import event_stream, sse, until_gone

T = TypeVar("T")

SESSION = "x-weft-session"
MAX_SESSION = 128


@dataclass(frozen=True)
class ServedCall:
    """A request that has passed the access checks; implements LookCall."""

    call: HttpCall

    @property
    def id(self) -> str:
        return self.call.id

    @property
    def key(self) -> str:
        return self.call.caller.name

    @property
    def salt(self) -> str:
        return self.call.caller.salt

    @property
    def owns_all(self) -> bool:
        return not self.call.service.keys and self.call.config.is_loopback

    @property
    def is_ending(self) -> bool:
        return self.call.service.is_draining

    @property
    def session(self) -> str:
        sent = self.call.request.headers.get(SESSION, "")[:MAX_SESSION]
        return f"{self.key}/{sent}"

    def model(self, name: str | None) -> ServedModel:
        self.call.record.model = self.call.service.models.resolve(name)
        return self.call.service.models.get(name)

    async def run(self, work: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout_at(self.call.deadline):
                return await until_gone(self.call, work)
        except TimeoutError:
            raise self.call.timed_out() from None

    async def stream(self, chunks: AsyncIterator[bytes]) -> Response:
        return await event_stream(self.call, chunks, error_chunk)


class ServedHost:
    """One server; implements LookHost. `route_class`: routes declare errors as those of serve
    do."""

    route_class: type[APIRoute] = ApiRoute

    def enter(self, request: Request) -> ServedCall:
        call = call_of(request)
        if not (call.config.is_loopback or call.config.look):
            raise ApiError(
                403,
                f"traces and the cache are not shown on {call.config.host}. Start the server with "
                "--look, or on a loopback address.",
            )
        return ServedCall(call)

    def error(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Exception:
        return ApiError(status, message, param, code, headers)

    def json_response(self, content: Any) -> Response:
        return JsonResponse(content)


def error_chunk(error: ApiError) -> bytes:
    """An error in the middle of a stream."""
    return sse(error_body("/look", error), "error")


def look_routers(service: Service) -> Sequence[APIRouter]:
    """The routes of `weft serve` below /look."""
    host = ServedHost()
    scratch = ScratchRoutes(host)
    return [
        look_router(host),
        scratch_router(host, scratch),
        decode_router(host, scratch),
        cache_router(host),
    ]
