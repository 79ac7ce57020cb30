"""Many clients at once, some of which disconnect: every answer is the one that a request gets
alone, and every page is returned."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests.serve.server import RunningServer, make_service, running

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
    with running(make_service()) as one:
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


def test_a_client_that_does_not_read_does_not_delay_others(server: RunningServer) -> None:
    body = {**make_cases(1, 1)[0].body, "max_tokens": 15}
    with server.client.stream("POST", "/v1/completions", json={**body, "stream": True}):
        for _ in range(5):
            assert server.post("/v1/completions", body).status_code == 200
    server.wait_idle()
