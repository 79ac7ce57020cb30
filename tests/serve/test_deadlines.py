"""Deadlines of requests that have begun to answer: streams of every protocol, and clients that do
not read."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from tests.engine.tiny import tiny
from tests.serve.field_checks import TEMPLATE
from tests.serve.server import SMALL, RunningServer, make_service, running
from tests.serve.test_disconnects import wait_until
from weft.engine.config import EngineConfig
from weft.serve.limits import Limits

USER = [{"role": "user", "content": "the cat"}]
CHAT: dict[str, Any] = {"model": "decoder", "messages": USER, "stream": True}
LONG = {"max_tokens": 300, "ignore_eos": True}
OLLAMA = {"model": "decoder", "options": {"num_predict": 300}}
ROUTES = [
    ("/v1/chat/completions", {**CHAT, **LONG}),
    ("/v1/completions", {"model": "decoder", "prompt": "the cat", "stream": True, **LONG}),
    (
        "/v1/responses",
        {
            "model": "decoder",
            "input": "the cat",
            "stream": True,
            "max_output_tokens": 300,
            "ignore_eos": True,
        },
    ),
    ("/v1/messages", {**CHAT, "max_tokens": 300}),
    ("/api/chat", {**OLLAMA, "messages": USER}),
    ("/api/generate", {**OLLAMA, "prompt": "the cat"}),
]
TIMEOUT = 0.9
SENTENCE = f"the request took longer than {TIMEOUT} s and was cancelled."


class HeldServer:
    """A server whose engine stops after some steps, until it is let go."""

    def __init__(self, server: RunningServer) -> None:
        self.server, self.steps_left = server, 0
        self.go = threading.Event()
        engine = server.service.models.get("decoder").engine.engine
        step = engine.step

        def held_step() -> Any:
            self.steps_left -= 1
            if self.steps_left == -1:
                self.go.wait(6)
            return step()

        engine.step = held_step  # type: ignore[method-assign]


@pytest.fixture(scope="module")
def held() -> Iterator[HeldServer]:
    checkpoint = replace(tiny("decoder", max_len=400), chat_template=TEMPLATE)
    engine = EngineConfig(page_size=4, cache_gib=0.01, num_steps=1)
    with running(make_service({"decoder": checkpoint}, engine=engine)) as server:
        server.post("/v1/chat/completions", {**CHAT, "max_tokens": 4})  # the first is slow
        yield HeldServer(server)


@pytest.mark.parametrize(("path", "body"), ROUTES, ids=[path for path, _ in ROUTES])
def test_a_stream_ends_with_an_error_event_at_its_deadline(held, path, body):
    held.steps_left = 6
    held.go.clear()
    begin = time.monotonic()
    headers = {"x-request-timeout": str(TIMEOUT)}
    response = held.server.post(path, body, headers=headers)
    seconds = time.monotonic() - begin
    held.go.set()
    assert response.status_code == 200, response.text
    assert TIMEOUT <= seconds < 5
    lines = [line for line in response.text.splitlines() if "{" in line]
    assert len(lines) > 1, "no token was sent"
    last = json.loads(lines[-1].removeprefix("data: "))
    assert SENTENCE in json.dumps(last) and "[DONE]" not in response.text
    assert is_error_event(path, last)
    held.server.wait_idle()


def is_error_event(path: str, event: Any) -> bool:
    """Whether an event is the error of the route's protocol."""
    if path.startswith("/api/"):
        return bool(event == {"error": SENTENCE})
    if path == "/v1/responses":
        return event["type"] in ("error", "response.failed")
    return path != "/v1/messages" or event["type"] == "error"


BUFFER = 4096
UNREAD: dict[str, Any] = {
    "model": "decoder",
    "prompt": [5, 6, 7, 8],
    "max_tokens": 300,
    "ignore_eos": True,
    "logprobs": 5,
}


@pytest.fixture(scope="module")
def small_buffers() -> Iterator[RunningServer]:
    """A server whose connections take little that is not read, and that lets 2 requests wait."""
    service = make_service(
        {"decoder": tiny("decoder", max_len=400)}, limits=Limits(max_queued=2), engine=SMALL
    )
    with running(service, send_buffer=BUFFER) as server:
        yield server


def connect(server: RunningServer, seconds: float, **more: Any) -> socket.socket:
    """A client that sends a request and does not read."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    connection.connect((host, int(port)))
    content = json.dumps({**UNREAD, **more}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\nx-request-timeout: {seconds}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    connection.sendall(head.encode() + content)
    return connection


def test_what_the_engine_has_finished_does_not_wait_in_the_queue(small_buffers):
    server = small_buffers
    with ExitStack() as stack:
        for count in (1, 2, 3):
            stack.enter_context(connect(server, 600, stream=True))
            wait_until(lambda count=count: server.service.num_active == count)
            server.wait_idle()
        assert server.service.num_active == 3
        response = server.post("/v1/completions", {"model": "decoder", "prompt": "a"})
        assert response.status_code == 200, response.text
    wait_until(lambda: not server.service.num_active)


def test_the_deadline_ends_the_response_to_a_client_that_does_not_read(small_buffers):
    server, records = small_buffers, []
    server.service.sinks.append(records.append)
    with connect(server, 2.0, stream=True):
        wait_until(lambda: server.service.num_active)
        wait_until(lambda: not server.service.num_active, 6.0)
        assert records[0].finish_reason == "disconnect"
        assert "longer than 2 s" in records[0].error.message
    server.wait_idle()
