"""Clients of a load test: random requests over asynchronous connections, whole and streamed.

requests = make_requests(seed, 50, "smollm2")       prompts of 16-256, outputs of 1-64 tokens
answer = await ask(client, requests[0])             text and log-probabilities
alone(engine, requests[0])                          the same from an engine without a server
"""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from weft.engine.engine import Engine
from weft.engine.request import GenerationRequest
from weft.sampling.params import SamplingParams

ROUTE = "/v1/completions"


@dataclass(frozen=True)
class LoadRequest:
    """What is asked for; log-probabilities show whether bits are the same."""

    model: str
    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float
    seed: int

    def body(self, salt: str, is_streamed: bool) -> dict[str, Any]:
        """`salt`: requests with different ones share no cached prefix."""
        return {
            "model": self.model,
            "prompt": list(self.prompt),
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "ignore_eos": True,
            "logprobs": 0,
            "cache_salt": salt,
            "stream": is_streamed,
        }

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + self.max_tokens


def make_requests(seed: int, count: int, model: str) -> list[LoadRequest]:
    rng = random.Random(seed)
    return [
        LoadRequest(
            model,
            tuple(rng.choices(range(200, 40_000), k=rng.randint(16, 256))),
            rng.randint(1, 64),
            rng.choice([0.0, 0.8]),
            rng.randrange(1000),
        )
        for _ in range(count)
    ]


@dataclass
class LoadAnswer:
    """A response; `text` and `logprobs` are complete if the status is 200."""

    status: int
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    retry_seconds: float = 0.0
    """Of a 429."""
    error: str = ""

    def add(self, choice: dict[str, Any]) -> None:
        self.text += choice["text"]
        self.logprobs += (choice["logprobs"] or {"token_logprobs": []})["token_logprobs"]


@asynccontextmanager
async def connections(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """As many connections as there are requests at a time."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=256)
    async with httpx.AsyncClient(base_url=url, timeout=900, limits=limits) as client:
        yield client


async def ask(
    client: httpx.AsyncClient, request: LoadRequest, salt: str = "", is_streamed: bool = False
) -> LoadAnswer:
    """Send a request and read the response to its end."""
    body = request.body(salt, is_streamed)
    async with client.stream("POST", ROUTE, json=body) as response:
        if response.status_code != 200:
            text = (await response.aread()).decode()
            wait = int(response.headers.get("retry-after-ms", 0)) / 1000
            return LoadAnswer(response.status_code, retry_seconds=wait, error=text)
        answer = LoadAnswer(200)
        if not is_streamed:
            answer.add(json.loads(await response.aread())["choices"][0])
            return answer
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                answer.add(json.loads(line.removeprefix("data: "))["choices"][0])
        return answer


def alone(engine: Engine, request: LoadRequest) -> tuple[str, list[float]]:
    """Text and log-probabilities of a request that runs by itself."""
    sampling = SamplingParams(temperature=request.temperature, seed=request.seed, logprobs=0)
    engine.submit(GenerationRequest(request.prompt, request.max_tokens, sampling=sampling))
    text, logprobs = "", list[float]()
    while not engine.is_idle:
        for output in engine.step():
            assert output.error is None, output.error
            text += output.text
            logprobs += [entry.logprob for entry in output.logprobs]
    return text, logprobs
