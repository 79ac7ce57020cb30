"""The ASGI application: one router per protocol, and a middleware for all requests.

    app = create_app(service)

The middleware assigns an id to each request (x-request-id), checks Host, Origin, API key and body
size, converts every exception to the error format of the protocol, and passes a record of each
finished request to the sinks of the service (log, metrics). An internal error is a 500 with the id
of the request, and a traceback in the log.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Sequence

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from weft import __version__
from weft.core.errors import WeftError
from weft.serve.access import check_access, is_open, is_preflight
from weft.serve.api_errors import (
    ApiError,
    api_error,
    error_body,
    error_status,
    protocol_of,
    server_fault,
)
from weft.serve.api_keys import ANYONE
from weft.serve.bodies import validation_message
from weft.serve.context import HttpCall, RequestRecord, Service
from weft.serve.openapi import ServedSchema
from weft.serve.protocols import PROTOCOLS
from weft.serve.responses import JsonResponse
from weft.serve.served_model import NotLoadedError
from weft.serve.server_metrics import Metrics
from weft.serve.streaming import ClientGoneError, until_gone

log = logging.getLogger(__name__)

MAX_ID = 128
SEND_SECONDS = 1.0
"""Minimum time for sending a message, such as the error event after the deadline."""
BODY_SECONDS = 1.0
"""Minimum time for receiving a body, however short the timeout of the request."""


def create_app(
    service: Service, routers: Sequence[APIRouter] = (), index: ASGIApp | None = None
) -> FastAPI:
    """The application of a service. `routers`: further routes; `index`: the web page, which answers
    `GET /` of browsers and its files below /assets."""
    app = FastAPI(
        title="Weft",
        version=__version__,
        docs_url=None,  # FastAPI's page loads assets from the internet
        redoc_url=None,
        openapi_url=None,  # operations.py: what it contains depends on the caller
        default_response_class=JsonResponse,
    )
    app.state.service, app.state.index = service, index
    app.state.metrics = Metrics(service)
    service.sinks.append(app.state.metrics.record)
    for router in (*PROTOCOLS.values(), *routers):
        app.include_router(router)
    if index is not None:
        app.mount("/assets", index)
    app.add_exception_handler(RequestValidationError, reraise)
    app.add_exception_handler(HTTPException, reraise)
    app.add_middleware(CallMiddleware, service=service)
    schema = ServedSchema(app, service)
    app.openapi = schema  # type: ignore[method-assign]
    return app


async def reraise(request: Request, error: Exception) -> Response:
    """Reraise, so that the middleware answers in the error format of the protocol."""
    raise error


class CallMiddleware:
    """Creates the HttpCall of each request and converts exceptions to responses."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        is_kept = self.service.models.is_on_demand
        body = LimitedBody(receive, self.service.config.max_body, is_kept)
        request = Request(scope, body.receive)
        record = RequestRecord(request_id_of(request.headers), scope["path"])
        sender = Sender(send, record)
        self.service.num_active += 1
        try:
            call = HttpCall(
                request, self.service, record.id, ANYONE, self.service.config.timeout, record
            )
            scope["weft.call"], sender.call, body.call = call, call, call
            self.enter(call)
            if is_preflight(call):
                await Response(status_code=204)(scope, request.receive, sender.send)
                return
            await self.run(call, body, sender)
        except (ClientGoneError, ClientDisconnect):
            record.disconnected()
        except Exception as error:
            await self.answer(scope["path"], error, record, sender, receive)
        finally:
            self.service.num_active -= 1
            if "weft.call" in scope:
                scope["weft.call"].release()
            record.ended_at = time.perf_counter()
            for sink in self.service.sinks:
                sink(record)

    async def run(self, call: HttpCall, body: LimitedBody, sender: Sender) -> None:
        """Call the route. If its model has to be loaded first, load it and call the route again,
        with the same body."""
        scope = call.request.scope
        original = dict(scope)
        while True:
            try:
                return await self.app(scope, body.receive, sender.send)
            except NotLoadedError as missing:
                await load_on_demand(call, missing.name)
                body.replay()
                scope.clear()
                scope.update(original)

    def enter(self, call: HttpCall) -> None:
        """Check origin, API key, server state and body size of a request, and set its caller and
        timeout."""
        request = call.request
        check_access(call)
        if not is_open(call):
            call.caller = self.service.keys.caller(request.headers)
            call.record.key = call.caller.name
        if self.service.is_draining and request.method == "POST":
            raise ApiError(503, "the server is shutting down. Send the request to another one.")
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self.service.config.max_body:
            raise too_large(self.service.config.max_body)
        timeout = request.headers.get("x-request-timeout")
        if timeout is not None:
            call.set_timeout(timeout)

    async def answer(
        self, path: str, error: Exception, record: RequestRecord, sender: Sender, receive: Receive
    ) -> None:
        """Send the response to an exception."""
        known = error_of(error)
        if known is None:
            log.error("request=%s route=%s state=failed", record.id, path, exc_info=error)
            known = server_fault(f"the server failed with {type(error).__name__}.", record.id)
        record.failed(known)
        if sender.has_started:  # too late for a status: the connection is closed
            return
        status = error_status(protocol_of(path), known.status)
        response = JsonResponse(error_body(path, known, record.id), status, known.headers)
        await response({"type": "http", "method": "GET"}, receive, sender.send)


async def load_on_demand(call: HttpCall, name: str) -> None:
    """Load a model in a thread; raises an ApiError 503 if that fails, 504 if it takes too long."""
    # shielded: others may wait for the same model
    loading = asyncio.shield(asyncio.wrap_future(call.service.models.load_later(name)))
    try:
        async with asyncio.timeout_at(call.deadline):
            await until_gone(call, loading)
    except WeftError as error:
        raise ApiError(503, f"model '{name}' cannot be loaded: {error}") from None
    except TimeoutError:
        raise ApiError(
            504, f"loading model '{name}' took longer than {call.timeout:g} s. Try again."
        ) from None


def error_of(error: Exception) -> ApiError | None:
    """The error response to an exception that the caller has caused; None for an internal error."""
    if isinstance(error, (RequestValidationError, ValidationError)):
        message, where = validation_message(error)
        return ApiError(400, message, param=where)
    if isinstance(error, HTTPException):
        if isinstance(error.__cause__, ApiError):  # of LimitedBody, while FastAPI read the body
            return error.__cause__
        return ApiError(error.status_code, http_message(error), headers=dict(error.headers or {}))
    return api_error(error)


def http_message(error: HTTPException) -> str:
    if error.status_code == 404:
        return "there is no such route. GET /docs lists the routes of this server."
    if error.status_code == 405:
        return "this route has no such method. GET /docs lists the routes of this server."
    return f"{error.detail}."


def too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} bytes. Send less, or raise --max-body.")


def request_id_of(headers: Headers) -> str:
    """The client's x-request-id if it is usable in a log, otherwise a new one."""
    sent = headers.get("x-request-id", "")
    is_usable = 0 < len(sent) <= MAX_ID and sent.isascii() and sent.isprintable()
    return sent if is_usable else f"req_{secrets.token_hex(12)}"


def incomplete_body(seconds: float) -> ApiError:
    """The error for a client that has stopped sending; the connection is closed."""
    message = f"the body was not complete after {seconds:g} s. Send the request again."
    return ApiError(408, message, headers={"connection": "close"})


class LimitedBody:
    """Receives a body up to a maximum size and until the deadline of the call. With `is_kept`, the
    messages are stored and can be replayed."""

    def __init__(self, receive: Receive, limit: int, is_kept: bool = False) -> None:
        self.inner, self.limit, self.size, self.is_kept = receive, limit, 0, is_kept
        self.call: HttpCall | None = None
        self.is_complete = False
        self.began_at = asyncio.get_running_loop().time()
        self.messages: list[Message] = []
        self.repeated: deque[Message] = deque()

    async def receive(self) -> Message:
        if self.repeated:
            return self.repeated.popleft()
        message = await self.next_message()
        if message["type"] == "http.request":
            self.is_complete = not message.get("more_body", False)
            self.size += len(message.get("body", b""))
            if self.size > self.limit:
                raise too_large(self.limit)
            if self.is_kept:
                self.messages.append(message)
        return message

    async def next_message(self) -> Message:
        """The next ASGI message: a part of the body, or afterwards a disconnect."""
        if self.is_complete or self.call is None:
            return await self.inner()
        try:
            async with asyncio.timeout_at(max(self.call.deadline, self.began_at + BODY_SECONDS)):
                return await self.inner()
        except TimeoutError:
            raise incomplete_body(self.call.timeout) from None

    def replay(self) -> None:
        """Start again with the first message."""
        self.repeated = deque(self.messages)


class Sender:
    """Sends the response with additional headers and records its status. Gives up on a client that
    does not read until the deadline of the call."""

    def __init__(self, send: Send, record: RequestRecord) -> None:
        self.inner, self.record = send, record
        self.call: HttpCall | None = None
        self.has_started = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            self.record.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self.record.id
            if protocol_of(self.record.route) == "anthropic":  # its clients read this one
                headers["request-id"] = self.record.id
            for name, value in self.call.response_headers.items() if self.call else ():
                headers[name] = value
        if self.call is None:
            await self.inner(message)
            return
        earliest = asyncio.get_running_loop().time() + SEND_SECONDS
        try:
            async with asyncio.timeout_at(max(self.call.deadline, earliest)):
                await self.inner(message)
        except TimeoutError:
            self.record.failed(self.call.timed_out())
            raise ClientGoneError from None
