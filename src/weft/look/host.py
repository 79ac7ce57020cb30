"""The interface of the server that the routes of this package use.

look and serve do not import each other: cli/look_host.py implements `LookHost` and passes it to the
routers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from typing import Any, Protocol, TypeVar

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from weft.engine.async_engine import AsyncEngine
from weft.engine.loaded_model import LoadedModel

T = TypeVar("T")


class LookModel(Protocol):
    """A loaded model of the server."""

    @property
    def name(self) -> str: ...

    @property
    def loaded(self) -> LoadedModel: ...

    @property
    def engine(self) -> AsyncEngine: ...


class LookCall(Protocol):
    """A request that has passed the access checks of the routes below /look."""

    @property
    def id(self) -> str:
        """Id of the request, for the log."""

    @property
    def key(self) -> str:
        """Name of the API key; empty without keys."""

    @property
    def salt(self) -> str:
        """Namespace of the key in the prefix cache."""

    @property
    def owns_all(self) -> bool:
        """Whether the caller may see all text: no API keys, and a loopback address."""

    @property
    def is_ending(self) -> bool:
        """Whether the server is shutting down, so that endless streams must end."""

    @property
    def session(self) -> str:
        """The header x-weft-session, within the key; otherwise the key."""

    def model(self, name: str | None) -> LookModel:
        """The loaded model of a name; raises the server's error for an unknown name."""

    async def run(self, work: Awaitable[T]) -> T:
        """Await `work`; cancels it if the client disconnects or the deadline of the request
        passes."""

    async def stream(self, chunks: AsyncIterator[bytes]) -> Response:
        """A response of server-sent events; closing it closes the iterator."""


class LookHost(Protocol):
    """The server that the routes are part of."""

    @property
    def route_class(self) -> type[APIRoute]: ...

    def enter(self, request: Request) -> LookCall:
        """Check the access of a request; an error 403 names --look."""

    def error(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Exception:
        """Create an error that the server converts to the error format of the route."""

    def json_response(self, content: Any) -> Response:
        """JSON; may be called in any thread."""
