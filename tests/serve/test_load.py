"""Many clients at once, some of which disconnect: every answer is the one that a request gets
alone, and every page is returned."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.engine.tiny import tiny_folder
from tests.serve.process import ServeProcess
from tests.serve.server import RunningServer, make_service, running
from weft.serve.limits import Limits

NUM_CLIENTS = 64
REQUESTS_PER_CLIENT = 2
DISCONNECTING = 0.1


@dataclass(frozen=True)
class LoadCase:
    """One request; a disconnecting client reads that many lines of the stream."""

    body: dict[str, Any]
    lines_read: int | None = None


def make_cases(seed: int, count: int) -> list[LoadCase]:
    rng = random.Random(seed)
    cases = []
    for _ in range(count):
        body = {
            "model": "decoder",
            "prompt": rng.choices(range(5, 60), k=rng.randrange(2, 24)),
            "max_tokens": rng.randrange(1, 16),
            "temperature": rng.choice([0, 0.8]),
            "seed": rng.randrange(1000),
            "ignore_eos": True,
            "logprobs": 1,
        }
        is_gone = rng.random() < DISCONNECTING
        cases.append(LoadCase(body, rng.randrange(4) if is_gone else None))
    return cases


async def ask(client: httpx.AsyncClient, case: LoadCase) -> Any:
    """The choices of a response; None if this client disconnects."""
    if case.lines_read is None:
        answer = await client.post("/v1/completions", json=case.body)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"]
    body = {**case.body, "stream": True}
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        lines = answer.aiter_lines()
        for _ in range(case.lines_read):
            await anext(lines, None)
    return None


async def ask_all(url: str, cases: Sequence[LoadCase], num_clients: int) -> list[Any]:
    """Each client sends its requests one after the other, on its own connections."""
    results: list[Any] = [None] * len(cases)

    async def run_client(first: int) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=120) as client:
            for index in range(first, len(cases), num_clients):
                results[index] = await ask(client, cases[index])

    await asyncio.gather(*(run_client(first) for first in range(num_clients)))
    return results


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(make_service(limits=Limits(max_queue_seconds=1e9))) as one:
        yield one


def test_64_clients_get_what_each_gets_alone(server: RunningServer) -> None:
    cases = make_cases(0, NUM_CLIENTS * REQUESTS_PER_CLIENT)
    results = asyncio.run(ask_all(server.url, cases, NUM_CLIENTS))
    server.wait_idle()
    num_compared = 0
    for case, result in zip(cases, results, strict=True):
        if case.lines_read is None:
            alone = server.post("/v1/completions", case.body)
            assert alone.json()["choices"] == result
            num_compared += 1
    assert num_compared > len(cases) / 2
    assert num_compared < len(cases), "no client disconnected"
    server.wait_idle()


NUM_LONG = 16
UNLIMITED = httpx.Limits(max_connections=None)
LONG_BODY = {**make_cases(1, 1)[0].body, "model": "long", "max_tokens": 150, "temperature": 0}


async def ask_until_stopped(server: ServeProcess, bodies: Sequence[Any]) -> tuple[list[Any], int]:
    """Send all bodies; SIGTERM once the server has accepted some of them. Returns the answers, an
    exception for a connection that was refused, and how many had been accepted."""
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=UNLIMITED) as client:
        posts = [asyncio.create_task(client.post("/v1/completions", json=body)) for body in bodies]
        num_accepted = 0
        while num_accepted < len(bodies) // 2:
            (load,) = (await client.get("/v1/loads")).json()["loads"]
            num_accepted = load["num_total_reqs"]
        server.stop()
        return await asyncio.gather(*posts, return_exceptions=True), num_accepted


@pytest.mark.slow
def test_sigterm_under_load_completes_what_was_accepted(tmp_path: Path) -> None:
    """Whole and streamed. What arrives after the signal is refused with 503, or not answered."""
    folder = tiny_folder(tmp_path / "long", "decoder", max_len=400)
    bodies = [{**LONG_BODY, "seed": i, "stream": i % 2 == 1} for i in range(NUM_LONG)]
    with ServeProcess(folder, "--cache", "0.05") as server:
        server.wait_ready()
        expected = server.client.post("/v1/completions", json=bodies[0]).json()["choices"]
        answers, num_accepted = asyncio.run(ask_until_stopped(server, bodies))
        assert server.exit_code() == 0, server.lines
    completed = 0
    for body, answer in zip(bodies, answers, strict=True):
        if isinstance(answer, httpx.Response) and answer.status_code == 200:
            completed += 1
            is_whole = answer.text.endswith("data: [DONE]\n\n") or not body["stream"]
            assert is_whole and (body["stream"] or answer.json()["choices"] == expected)
        elif isinstance(answer, httpx.Response):
            assert answer.status_code == 503, answer.text
        else:
            assert isinstance(answer, httpx.ConnectError), answer
    assert completed >= num_accepted >= NUM_LONG // 2
