"""Malformed HTTP requests over raw sockets: no answer of 500 or more, nothing in the log that is an
error, and the server still answers.

One server with tiny models serves all cases of a process. A case is what a client sends; the client
then reads until the server closes the connection. If the server may wait for more, the client
closes its side as soon as nothing more arrives.
"""

from __future__ import annotations

import json
import logging
import random
import re
import socket
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import cache
from typing import Any

from tests.clients.speaker import answer
from tests.engine.tiny import tiny
from tests.serve.scripted import HERMES_TEMPLATE, follow_script, scripted_checkpoint
from tests.serve.server import RunningServer, make_service, running
from tests.soak.http_edits import HttpCase, random_case
from tests.soak.http_requests import ENCODER, MAX_BODY, MODEL, TRANSLATOR
from weft.serve.context import Service
from weft.serve.limits import Limits

STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
QUIET_SECONDS = 0.05
"""After this long without data, a client whose request may be incomplete closes its side."""
ANSWER_SECONDS = 60.0
VALID = b'{"model": "scripted", "prompt": "a", "max_tokens": 2, "seed": 1}'


def describe(seed: int) -> dict[str, Any]:
    """The random case of a seed; bytes as the characters of Latin-1."""
    case = random_case(random.Random(seed))
    return {"parts": [one.decode("latin-1") for one in case.parts], "is_whole": case.is_whole}


def run_case(seed: int) -> None:
    check_case(case_server(), random_case(random.Random(seed)))
    check_valid(case_server())


def replay(case: dict[str, Any]) -> None:
    parts = tuple(one.encode("latin-1") for one in case["parts"])
    with MalformedServer() as server:
        check_case(server, HttpCase(parts, case["is_whole"]))
        check_valid(server)


class LoggedErrors(logging.Handler):
    """Collects records that report a fault: errors, and those with a traceback."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.texts: list[str] = []
        self.setFormatter(logging.Formatter("%(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            self.texts.append(self.format(record))

    def take(self) -> str:
        """What was collected since the last call."""
        texts, self.texts = self.texts, []
        return "\n".join(texts)


class MalformedServer:
    """A server and what it has logged. `with` ends it."""

    def __init__(self) -> None:
        self.log, self.stack = LoggedErrors(), ExitStack()
        logging.getLogger().addHandler(self.log)
        self.running: RunningServer = self.stack.enter_context(running(malformed_service()))
        host, port = self.running.url.removeprefix("http://").split(":")
        self.address = host, int(port)

    def __enter__(self) -> MalformedServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()
        logging.getLogger().removeHandler(self.log)


@cache
def case_server() -> MalformedServer:
    """The server of all cases of this process, which ends with it."""
    return MalformedServer()


def malformed_service() -> Service:
    """A decoder that chats, a translator and an encoder; answers are short."""
    special = ("<|im_start|>", "<|im_end|>")
    models = {
        MODEL: scripted_checkpoint(HERMES_TEMPLATE, special, max_len=16_384),
        TRANSLATOR: replace(tiny("encoder-decoder"), languages=("en", "de")),
        ENCODER: tiny("encoder"),
    }
    limits = Limits(max_output=4)
    service = make_service(models, limits=limits, max_body=MAX_BODY, timeout=ANSWER_SECONDS)
    loaded = service.models.get(MODEL).loaded
    follow_script(loaded.client.async_engine.engine, loaded.tokenizer, answer)
    return service


def check_case(server: MalformedServer, case: HttpCase) -> None:
    """Send a case; an AssertionError if the server did not behave."""
    data = exchange(server.address, case)
    statuses = [int(one) for one in STATUS.findall(data)]
    wrong = [status for status in statuses if status >= 500]
    logged = server.log.take()
    assert not wrong, f"status {wrong[0]}: {data[:1000]!r} {logged[-3000:]}"
    assert statuses or not case.is_whole, f"no answer to a complete request: {data[:200]!r}"
    assert not logged, f"logged: {logged[-3000:]}"


def exchange(address: tuple[str, int], case: HttpCase) -> bytes:
    """What the server sends until it closes the connection."""
    received = bytearray()
    with socket.create_connection(address, ANSWER_SECONDS) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(BrokenPipeError, ConnectionResetError):  # it has answered, and closed
            for part in case.parts:
                client.sendall(part)
        is_open = not case.is_whole
        client.settimeout(QUIET_SECONDS if is_open else ANSWER_SECONDS)
        while True:
            try:
                data = client.recv(65_536)
            except TimeoutError:
                assert is_open, f"no end after {ANSWER_SECONDS:g} s: {bytes(received[:500])!r}"
                is_open = False
                client.settimeout(ANSWER_SECONDS)
                with suppress(OSError):
                    client.shutdown(socket.SHUT_WR)
                continue
            except ConnectionResetError:
                break
            if not data:
                break
            received += data
    return bytes(received)


def check_valid(server: MalformedServer) -> None:
    """Send a valid request; an AssertionError if its answer is not that of every time."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    head += b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(VALID)
    data = exchange(server.address, HttpCase((head + VALID,), True))
    assert STATUS.match(data) and STATUS.findall(data) == [b"200"], data[:500]
    body = json.loads(data.partition(b"\r\n\r\n")[2])
    assert body["choices"][0]["text"] == "It", body
