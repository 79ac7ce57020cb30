"""What the routes of this package need of the server that they are part of.

Neither package imports the other: the command line gives the router a `LookHost` made of the
server's parts (cli/look_host.py).
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
    """A model that the server has loaded."""

    @property
    def name(self) -> str: ...

    @property
    def loaded(self) -> LoadedModel: ...

    @property
    def engine(self) -> AsyncEngine: ...


class LookCall(Protocol):
    """One request that is allowed to look."""

    @property
    def id(self) -> str:
        """Of the request, for the log."""

    @property
    def key(self) -> str:
        """Name of the API key; empty without keys."""

    @property
    def salt(self) -> str:
        """Namespace of the key in the prefix cache."""

    @property
    def owns_all(self) -> bool:
        """Whether there is only one caller, on this machine: no API keys, a loopback address."""

    @property
    def is_ending(self) -> bool:
        """Whether the server is shutting down, so that streams without an end must end."""

    @property
    def session(self) -> str:
        """The header x-weft-session, within the key; otherwise the key."""

    def model(self, name: str | None) -> LookModel:
        """The loaded model of a name; raises the server's error if there is none."""

    async def run(self, work: Awaitable[T]) -> T:
        """The result of `work`, which is cancelled if the client disconnects or the time of the
        request is over."""

    async def stream(self, chunks: AsyncIterator[bytes]) -> Response:
        """A response of server-sent events; closing it closes the iterator."""


class LookHost(Protocol):
    """The server."""

    @property
    def route_class(self) -> type[APIRoute]: ...

    def enter(self, request: Request) -> LookCall:
        """The call of a request; an error 403 that names --look where it is not allowed."""

    def error(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Exception:
        """An error in the server's shape."""

    def json_response(self, content: Any) -> Response:
        """JSON; may be called in any thread."""
