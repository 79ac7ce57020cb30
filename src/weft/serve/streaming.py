"""Streamed responses: server-sent events and lines of JSON, with pings, errors and disconnects.

    return await event_stream(call, chunks(), ping=b": ping\\n\\n", error=openai_error_chunk)

Headers are sent with the first chunk or after PING_SECONDS, so that errors before that are status
codes; later ones are the protocol's error event, followed by the end of the stream. While a request
is queued or its prompt is computed, a comment or ping is sent every PING_SECONDS. A client that
disconnects, half-closed connections included, closes the iterator of chunks at once, and with it
the engine's requests. Starlette's own StreamingResponse notices only when it sends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from weft.serve.api_errors import ApiError, api_error, server_fault
from weft.serve.context import HttpCall

log = logging.getLogger(__name__)

T = TypeVar("T")

PING_SECONDS = 15.0
SSE_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
DONE = b"data: [DONE]\n\n"
COMMENT = b": ping\n\n"

ErrorChunk = Callable[[ApiError], bytes]


class ClientGoneError(Exception):
    """The client has closed the connection, so no response can be sent."""


def sse(data: Any, event: str | None = None) -> bytes:
    """One server-sent event with a JSON value."""
    head = b"data: " if event is None else b"event: " + event.encode() + b"\ndata: "
    return head + orjson.dumps(data) + b"\n\n"


def json_line(data: Any) -> bytes:
    return orjson.dumps(data) + b"\n"


async def until_gone(call: HttpCall, work: Awaitable[T]) -> T:
    """Await `work`; cancels it and raises ClientGoneError if the client disconnects."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(wait_for_disconnect(call.request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        for one in (task, gone):
            await cancel(one)


async def cancel(task: asyncio.Future[Any]) -> None:
    """Cancel a task. A failed task is not awaited again, which would replace the traceback of its
    exception before it is logged."""
    if not task.done():
        task.cancel()
        with suppress(BaseException):
            await task
    elif not task.cancelled():
        task.exception()  # asyncio logs one that nobody has asked for


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def event_stream(
    call: HttpCall,
    chunks: AsyncIterator[bytes],
    error: ErrorChunk,
    ping: bytes = COMMENT,
    media_type: str = "text/event-stream",
) -> Response:
    """A response that streams the chunks. Waits up to PING_SECONDS for the first chunk, so that its
    error becomes a status code."""
    first: asyncio.Task[bytes] = asyncio.ensure_future(anext(chunks))
    try:
        await until_gone(call, asyncio.wait({first}, timeout=call.ping_seconds))
        if first.done():
            first.result()
    except BaseException:
        await close(first, chunks)
        raise
    return ChunkResponse(call, first, chunks, error, ping, media_type)


async def close(task: asyncio.Task[bytes], chunks: AsyncIterator[bytes]) -> None:
    """Close an iterator that may be waiting for its next chunk."""
    await cancel(task)
    if hasattr(chunks, "aclose"):
        with suppress(Exception):
            await chunks.aclose()


class ChunkResponse(Response):
    """Sends chunks as they arrive, and pings in between. One task sends all chunks, because a task
    and a timer per chunk would take longer than all other work for it."""

    def __init__(
        self,
        call: HttpCall,
        first: asyncio.Task[bytes],
        chunks: AsyncIterator[bytes],
        error: ErrorChunk,
        ping: bytes,
        media_type: str,
    ) -> None:
        super().__init__(None, 200, {**SSE_HEADERS, **call.response_headers}, media_type)
        del self.headers["content-length"]
        self.call, self.first, self.chunks = call, first, chunks
        self.error, self.ping = error, ping
        self.has_begun = self.has_failed = False
        self.is_sending = False
        """Whether a send is in progress; then no ping is sent."""
        self.sent_at = 0.0
        """Time of the last chunk or ping, by the clock of the event loop."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = asyncio.ensure_future(self.send_all(send))
        gone = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await asyncio.wait({sender, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not sender.done():
                self.call.record.disconnected()
            else:
                sender.result()
        finally:
            for task in (sender, gone):
                await cancel(task)
            await close(self.first, self.chunks)

    async def send_all(self, send: Send) -> None:
        head: Message = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        await send(head)
        pings = asyncio.ensure_future(self.send_pings(send))
        try:
            while (chunk := await self.next_chunk()) is not None:
                await self.send_part(send, chunk)
        finally:
            await cancel(pings)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def next_chunk(self) -> bytes | None:
        """The next chunk; None: there are no more. An error event is the last chunk."""
        if self.has_failed:
            return None
        try:
            if self.has_begun:
                return await anext(self.chunks)
            self.has_begun = True
            return await self.first
        except StopAsyncIteration:
            return None
        except Exception as problem:
            self.has_failed = True
            return self.error(self.logged(problem))

    async def send_part(self, send: Send, part: bytes) -> None:
        self.is_sending = True
        await send({"type": "http.response.body", "body": part, "more_body": True})
        self.is_sending, self.sent_at = False, asyncio.get_running_loop().time()

    async def send_pings(self, send: Send) -> None:
        """Send a ping whenever nothing was sent for `ping_seconds`, until this task is
        cancelled."""
        loop, seconds = asyncio.get_running_loop(), self.call.ping_seconds
        self.sent_at = loop.time()
        while True:
            await asyncio.sleep(self.sent_at + seconds - loop.time())
            if self.is_sending:
                self.sent_at = loop.time()
            elif loop.time() >= self.sent_at + seconds:
                await self.send_part(send, self.ping)

    def logged(self, problem: Exception) -> ApiError:
        """Convert an exception to the error to report; an internal error is logged with its
        traceback."""
        known = api_error(problem)
        if known is None:
            log.error("request=%s state=failed", self.call.id, exc_info=problem)
            known = server_fault(f"the server failed with {type(problem).__name__}.", self.call.id)
        self.call.record.failed(known)
        return known
