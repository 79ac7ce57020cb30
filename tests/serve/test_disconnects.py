"""Clients that disconnect, over raw sockets: pages are free at most one step after the server has
noticed it, and the other requests keep their bits."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.serve.server import RunningServer, is_at_rest, make_service, running
from weft.engine.config import EngineConfig

PROMPT = list(range(5, 25))
BODY = {"model": "decoder", "prompt": PROMPT, "temperature": 0, "ignore_eos": True, "seed": 1}


def close_with_fin(connection: socket.socket) -> None:
    connection.close()


def close_with_rst(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def half_close(connection: socket.socket) -> None:
    connection.shutdown(socket.SHUT_WR)


WAYS: list[Callable[[socket.socket], None]] = [close_with_fin, close_with_rst, half_close]


class StepGate:
    """Lets a server's engine run a number of steps, then holds it before the next one."""

    def __init__(self, server: RunningServer) -> None:
        (served,) = server.service.models.models.values()
        self.engine = served.engine
        self.allowed = threading.Semaphore(0)
        self.num_steps = 0
        self.is_open, self.is_held = False, False
        self.step = self.engine.engine.step
        self.engine.engine.step = self.run_step  # type: ignore[method-assign]

    def run_step(self):
        if not self.is_open:
            self.is_held = True
            self.allowed.acquire()
            self.is_held = False
        self.num_steps += 1
        return self.step()

    def run(self, num_steps: int) -> None:
        """Run steps, and wait until the engine is held before the next one. Then it has executed
        every command that it was sent before."""
        goal = self.num_steps + num_steps
        for _ in range(num_steps):
            self.allowed.release()
        wait_until(lambda: self.num_steps >= goal and self.is_held)

    def open(self) -> None:
        self.is_open = True
        self.allowed.release()

    def remove(self) -> None:
        self.open()
        self.engine.engine.step = self.step  # type: ignore[method-assign]


def wait_until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not become true"
        time.sleep(0.002)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    engine = EngineConfig(page_size=4, cache_gib=0.01, token_budget=8, num_steps=1)
    with running(make_service(engine=engine)) as one:
        yield one


@pytest.fixture
def gate(server: RunningServer) -> Iterator[StepGate]:
    server.wait_idle()
    one = StepGate(server)
    yield one
    one.remove()
    server.wait_idle()


def send(server: RunningServer, body: dict[str, object]) -> socket.socket:
    """A connection on which a request was sent and nothing is read yet."""
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=20)
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {host}:{port}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    connection.sendall(head.encode() + content)
    return connection


def is_removed(gate: StepGate) -> bool:
    """Whether the server has told the engine that nobody waits any more."""
    return bool(gate.engine.commands) or is_at_rest(gate.engine)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("phase", "num_steps"), [("queued", 0), ("prefill", 1), ("decode", 8)])
def test_pages_are_free_one_step_after_a_disconnect(
    server, gate, way, is_streamed, phase, num_steps
):
    body = {**BODY, "max_tokens": 18, "stream": is_streamed}
    with send(server, body) as connection:
        gate.run(num_steps)
        assert not is_at_rest(gate.engine), f"the request is not active in phase {phase}"
        assert not is_removed(gate), "the request was removed before the client disconnected"
        way(connection)
        wait_until(lambda: is_removed(gate))
        before = gate.num_steps
        gate.open()
        server.wait_idle()
    assert gate.num_steps <= before + 1


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
def test_the_other_requests_keep_their_bits(server, is_streamed):
    bodies = [
        {**BODY, "prompt": [*PROMPT, 30 + index], "max_tokens": 16, "logprobs": 2}
        for index in range(4)
    ]
    alone = [server.post("/v1/completions", body).json()["choices"] for body in bodies]
    server.wait_idle()
    results: list[httpx.Response | None] = [None] * len(bodies)

    def ask(index: int) -> None:
        results[index] = httpx.post(f"{server.url}/v1/completions", json=bodies[index], timeout=60)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(bodies))]
    for index, thread in enumerate(threads):
        thread.start()
        gone = {**BODY, "prompt": [30 + index, *PROMPT], "max_tokens": 18, "stream": is_streamed}
        connections = [send(server, gone) for _ in WAYS]
        for number, (way, connection) in enumerate(zip(WAYS, connections, strict=True)):
            time.sleep(0.01 * number)
            way(connection)
            connection.close()
    for thread in threads:
        thread.join(60)
    assert [one and one.json()["choices"] for one in results] == alone
    server.wait_idle()
