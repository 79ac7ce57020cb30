"""Many small requests to one `weft serve`: its memory stays the same.

The cases of one child process share a server, each with NUM_REQUESTS requests over keep-alive
connections: texts, streams, tokens, wrong bodies, and clients that disconnect. The caches and logs
of the server are bounded and full after the first requests. The resident memory in the last tenth
of a case is at most 2 % more than in its second tenth, and than at the end of the second case.
"""

from __future__ import annotations

import json
import random
import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import cache
from http.client import HTTPConnection
from pathlib import Path
from statistics import mean
from typing import Any
from urllib.parse import urlsplit

import psutil

from tests.engine.tiny import tiny_folder
from tests.serve.process import ServeProcess

NUM_REQUESTS = 10_000
"""Of one case; the entry of the table has the same number of units per case."""
NUM_CLIENTS = 4
NUM_PARTS = 10
MAX_GROWTH = 1.02


@cache
def server() -> ServeProcess:
    """The server of this process."""
    folder = Path(tempfile.mkdtemp(prefix="weft-soak-"))
    tiny_folder(folder / "model", "decoder")
    one = ServeProcess(folder / "model", "--cache", "0.001", "--log-level", "warning")
    one.wait_ready()
    return one


@cache
def history() -> list[float]:
    """Mean memory of each case of this process, in its last tenth."""
    return []


def run_case(seed: int) -> None:
    parts = list(parts_of(seed, NUM_REQUESTS))
    history().append(parts[-1])
    print(f"case {seed}: " + " ".join(f"{part / 2**20:.1f}" for part in parts) + " MiB", flush=True)
    check_growth(parts)
    if len(history()) > 2:
        check_growth(history())


def check_growth(values: list[float]) -> None:
    """Values at equal distances; the first one is from before the caches are full."""
    assert values[-1] <= MAX_GROWTH * values[1], (
        f"{values[-1] / 2**20:.1f} MiB are resident, {values[1] / 2**20:.1f} before"
    )


def parts_of(seed: int, count: int) -> Iterator[float]:
    """Mean of the resident memory in each tenth of the requests."""
    process = psutil.Process(server().process.pid)
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        for part in range(NUM_PARTS):
            values = []
            for block in range(5):
                seeds = [hash((seed, part, block, client)) for client in range(NUM_CLIENTS)]
                list(pool.map(run_client, seeds, [count // NUM_PARTS // 5 // NUM_CLIENTS] * 4))
                values.append(process.memory_info().rss)
            yield mean(values)


def run_client(seed: int, count: int) -> None:
    """Requests over one connection, and some that are broken off over their own."""
    rng, address = random.Random(seed), urlsplit(server().url)
    with closing(HTTPConnection(str(address.hostname), address.port, timeout=60)) as connection:
        for _ in range(count):
            kind = rng.random()
            if kind < 0.02:
                disconnect(str(address.hostname), address.port or 0, rng)
            elif kind < 0.1:
                path = rng.choice(["/v1/completions", "/v1/nothing", "/api/generate"])
                assert 400 <= send(connection, path, {"model": "other"}) < 500
            elif kind < 0.2:
                assert send(connection, "/tokenize", {"model": "model", "prompt": "the cat"}) == 200
            else:
                assert send(connection, "/v1/completions", completion(rng)) == 200


def completion(rng: random.Random) -> dict[str, Any]:
    return {
        "model": "model",
        "prompt": rng.choices(range(5, 60), k=rng.randint(1, 20)),
        "max_tokens": rng.randint(1, 3),
        "stream": rng.random() < 0.3,
        "logprobs": 1 if rng.random() < 0.2 else None,
    }


def send(connection: HTTPConnection, path: str, body: dict[str, Any]) -> int:
    """The status of a response, which is read to its end."""
    connection.request("POST", path, json.dumps(body), {"content-type": "application/json"})
    with connection.getresponse() as response:
        response.read()
        return response.status


def disconnect(host: str, port: int, rng: random.Random) -> None:
    """A request whose answer nobody reads, or which is not complete."""
    content = json.dumps({**completion(rng), "max_tokens": 20}).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: {host}:{port}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(content)}\r\n\r\n"
    ).encode()
    with socket.create_connection((host, port), timeout=60) as connection:
        data = head + content
        connection.sendall(data[: rng.choice([len(head) // 2, len(head) + 3, len(data)])])
