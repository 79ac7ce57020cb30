"""Clients that read or write one byte at a time, over real sockets: others do not notice, and the
slow ones get their answers."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.engine.tiny import tiny
from tests.serve.server import SMALL, RunningServer, is_at_rest, make_service, running

NUM_SLOW = 24
"""More than the server has threads."""
BODY: dict[str, Any] = {
    "model": "decoder",
    "prompt": [5, 6, 7, 8],
    "max_tokens": 8,
    "ignore_eos": True,
    "seed": 1,
    "logprobs": 5,
}
LONG = {**BODY, "max_tokens": 300, "stream": True}
BUFFER = 4096


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    service = make_service({"decoder": tiny("decoder", max_len=400)}, engine=SMALL)
    with running(service, send_buffer=BUFFER) as one:
        yield one


def connect(server: RunningServer) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    connection.settimeout(60)
    connection.connect((host, int(port)))
    return connection


def message_of(body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


def read_all(connection: socket.socket) -> bytes:
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def choices(server: RunningServer, body: dict[str, Any] = BODY) -> Any:
    answer = server.post("/v1/completions", body)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


def test_a_client_that_reads_a_byte_every_100_ms_does_not_slow_others(
    server: RunningServer,
) -> None:
    alone = choices(server)
    text = choices(server, {**LONG, "stream": False})[0]["text"]
    (served,) = server.service.models.models.values()
    with connect(server) as slow:
        slow.sendall(message_of(LONG))
        data, is_over = bytearray(), threading.Event()

        def read_slowly() -> None:
            while not is_over.wait(0.1):
                data.extend(slow.recv(1))

        reader = threading.Thread(target=read_slowly)
        reader.start()
        try:
            results = [choices(server) for _ in range(20)]
            end = time.monotonic() + 60
            while not is_at_rest(served.engine):  # it does not wait for the slow reader either
                assert time.monotonic() < end, "the engine waits"
                time.sleep(0.005)
            assert server.service.num_active == 1, "the response was sent at once"
            results += [choices(server) for _ in range(5)]
        finally:
            is_over.set()
            reader.join(60)
        assert results == [alone] * 25 and len(data) < 10_000
        received = bytes(data) + read_all(slow)
    assert streamed_text(received) == text
    server.wait_idle()


def streamed_text(response: bytes) -> str:
    """The text of a response of server-sent events, whose chunks may be divided anywhere."""
    _, _, body = response.partition(b"\r\n\r\n")
    content = bytearray()
    while body:
        size, _, body = body.partition(b"\r\n")
        content += body[: int(size, 16)]
        body = body[int(size, 16) + 2 :]
    assert content.endswith(b"data: [DONE]\n\n")
    lines = [line for line in content.decode().split("\n\n") if line.startswith("data: {")]
    return "".join(json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in lines)


def test_clients_that_do_not_read_at_all_leave_the_others_their_bits(
    server: RunningServer,
) -> None:
    alone = choices(server)
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(server)) for _ in range(NUM_SLOW)]
        for connection in slow:
            connection.sendall(message_of({**LONG, "max_tokens": 60}))
        assert [choices(server) for _ in range(5)] == [alone] * 5
    server.wait_idle()


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_clients_that_send_a_byte_at_a_time_do_not_slow_others(
    server: RunningServer, is_streamed: bool
) -> None:
    """Headers and body; a request of another client after every 16th byte."""
    alone, message = choices(server), message_of({**BODY, "stream": is_streamed})
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(server)) for _ in range(NUM_SLOW)]
        for connection in slow:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for index in range(len(message)):
            for connection in slow:
                connection.sendall(message[index : index + 1])
            if index % 16 == 0:
                assert choices(server) == alone
        responses = [read_all(connection) for connection in slow]
    for response in responses:
        assert response.startswith(b"HTTP/1.1 200 OK\r\n")
        if not is_streamed:
            _, _, body = response.partition(b"\r\n\r\n")
            assert json.loads(body)["choices"] == alone
        else:
            assert streamed_text(response) == alone[0]["text"]
    server.wait_idle()


def test_a_client_that_never_completes_its_body_holds_nothing(server: RunningServer) -> None:
    message = message_of(BODY)
    with ExitStack() as stack:
        for _ in range(NUM_SLOW):
            stack.enter_context(connect(server)).sendall(message[:-1])
        alone = choices(server)
        server.wait_idle()
        assert not server.service.limits.reservations
        assert choices(server) == alone
    end = time.monotonic() + 20
    while server.service.num_active:
        assert time.monotonic() < end, "requests are left"
        time.sleep(0.005)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/api/generate", "/translate"])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunked"])
def test_a_body_that_is_not_complete_in_time_is_408(
    server: RunningServer, path: str, is_chunked: bool
) -> None:
    size = "transfer-encoding: chunked" if is_chunked else "content-length: 9"
    body = "2\r\n{ \r\n" if is_chunked else "{ "
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    with connect(server) as client:
        client.sendall(f"{head}x-request-timeout: 0.1\r\n{size}\r\n\r\n{body}".encode())
        response = read_all(client)
    assert response.startswith(b"HTTP/1.1 408 ")
    assert b"the body was not complete after 0.1 s." in response
