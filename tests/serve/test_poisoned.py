"""One request of 16 makes every engine step fail that computes it: over HTTP it alone is a 500, and
the other 15 have the same bits as alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.engine.test_fault_isolation import BAD, POISON, POISONS
from tests.serve.server import RunningServer, make_service, running

STAGES = [name for name in POISONS if name != "grammar"]  # that one needs a grammar


def body(number: int) -> dict[str, Any]:
    prompt = [5, 9, 30, 7, *range(8, 8 + number % 5)]
    more: dict[str, Any] = {}
    if number == BAD:
        prompt, more = [5, 9, 30, 7, POISON], {"stop": ["@poison@"]}
    return {
        "model": "decoder",
        "prompt": prompt,
        "max_tokens": 3 + number % 4,
        "temperature": (0.0, 0.8)[number % 2],
        "seed": number,
        "logprobs": 1,
        "logit_bias": {str(POISON): -100},
        "ignore_eos": True,
        "stream": False,
        **more,
    }


def ask_all(server: RunningServer) -> list[httpx.Response]:
    """All 16 at once. The last token of a prompt is always computed, whatever is cached."""
    with ThreadPoolExecutor(16) as pool:
        posts = [pool.submit(server.post, "/v1/completions", body(i)) for i in range(16)]
        return [one.result() for one in posts]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(make_service()) as one:
        yield one


@pytest.fixture(scope="module")
def alone(server: RunningServer) -> list[Any]:
    posts = [server.post("/v1/completions", body(number)) for number in range(16)]
    return [post.json()["choices"] for post in posts]


@pytest.mark.parametrize("stage", STAGES)
def test_one_bad_request_of_16_fails_alone(
    stage: str, server: RunningServer, alone: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (served,) = server.service.models.models.values()
    engine = served.engine.engine
    with monkeypatch.context() as patch:
        POISONS[stage](engine, patch)
        answers = ask_all(server)
        server.wait_idle()
        if hasattr(engine, "hook_handle"):
            engine.hook_handle.remove()
    assert server.get("/health").status_code == 200
    message = answers[BAD].json()["error"]["message"]
    assert answers[BAD].status_code == 500
    assert "failed in an engine step with RuntimeError: poisoned" in message
    for number, answer in enumerate(answers):
        if number != BAD:
            assert answer.json()["choices"] == alone[number]
    assert [one.json().get("choices") for one in ask_all(server)] == alone, "and the next works"
    server.wait_idle()
