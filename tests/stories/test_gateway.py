"""Two replicas of `weft serve` behind smg (docs/scale.md): prompts that share a prefix go to one
replica, answers do not depend on the replica, and a replica that is killed loses no request."""

from __future__ import annotations

import signal
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.clients.install import requirements
from tests.clients.test_clients import require
from tests.engine.tiny import tiny
from tests.serve.process import START_SECONDS, ServeProcess
from tests.stories.gateway import (
    MODEL,
    Gateway,
    body_of,
    cache_counts,
    counter,
    hit_rate,
    num_served,
    replicas,
)
from weft.checkpoint.weft_folder import save_folder

ROOT = Path(__file__).parents[2]
FAMILIES = ("the cat sat on the mat " * 12, "a dog ate two apples " * 12)
ROUNDS = 12
USER = [{"role": "user", "content": "the cat"}]
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "the cat", "max_tokens": 4},
    "/v1/chat/completions": {"messages": USER, "max_tokens": 4},
    "/v1/messages": {"messages": USER, "max_tokens": 4},
    "/v1/messages/count_tokens": {"messages": USER},
    "/v1/responses": {"input": "the cat", "max_output_tokens": 4},
    "/v1/embeddings": {"input": "the cat"},
}
LONG, ENDLESS = 500, 6000
"""Tokens of answers that are not finished before a test is ready for it."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gateway") / MODEL
    save_folder(path, replace(tiny("decoder", max_len=8000), chat_template=TEMPLATE))
    return path


@pytest.fixture
def servers(folder: Path) -> Iterator[list[ServeProcess]]:
    require("gateway")
    with replicas(folder) as both:
        yield both


def wait_until_running(server: ServeProcess, count: int) -> None:
    end = time.monotonic() + START_SECONDS
    while counter(server, "num_requests_running") < count:
        assert time.monotonic() < end, server.lines[-5:]
        time.sleep(0.01)


def served_by(servers: list[ServeProcess], gateway: Gateway, prompt: str) -> tuple[int, int]:
    """The replica that answers a request, and the tokens that it found in its cache."""
    before = [num_served(server) for server in servers]
    value, after = gateway.complete(prompt), before
    while after == before:  # a replica counts a request when its response has ended
        after = [num_served(server) for server in servers]
    (place,) = [i for i, (old, new) in enumerate(zip(before, after, strict=True)) if new > old]
    return place, value["usage"]["prompt_tokens_details"]["cached_tokens"]


def separate(
    servers: list[ServeProcess], gateway: Gateway
) -> tuple[tuple[str, int], tuple[str, int]]:
    """Two families of prompts that have begun on different replicas. smg prefers the replica that
    is less busy for a prompt that none knows, but not always, so several families are begun."""
    body = body_of(FAMILIES[0], max_tokens=ENDLESS, stream=True)
    with gateway.client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()
        next(lines)  # it runs now
        home = [counter(server, "num_requests_running") > 0 for server in servers].index(True)
        for number in range(16):
            family = f"{number} {FAMILIES[1]}"
            place, _ = served_by(servers, gateway, family)
            if place != home:
                break
        lines.close()
    for server in servers:
        while counter(server, "num_requests_running"):
            time.sleep(0.01)
    return (FAMILIES[0], home), (family, place)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_prompts_with_a_common_prefix_go_to_the_replica_that_has_it(servers):
    with Gateway(servers, "cache_aware") as gateway:
        families = separate(servers, gateway)
        assert families[0][1] != families[1][1]
        before = [cache_counts(server) for server in servers]
        for number in range(ROUNDS):
            for family, home in families:
                place, num_cached = served_by(servers, gateway, f"{family} turn {number}")
                assert place == home and num_cached >= 48
        assert hit_rate(servers, before) > 0.7


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_answers_are_the_same_on_either_replica_and_through_the_gateway(servers):
    prompts = [f"{family} turn {number}" for family in FAMILIES for number in range(6)]
    bodies = [body_of(one, temperature=0.8, logprobs=2, max_tokens=24) for one in prompts]
    with Gateway(servers, "round_robin") as gateway:
        for body in bodies:
            clients = [gateway.client, *(server.client for server in servers)]
            answers = [one.post("/v1/completions", json=body).json() for one in clients]
            first, *others = [answer["choices"] for answer in answers]
            assert first[0]["text"] and all(other == first for other in others)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_replica_that_is_killed_loses_no_request(servers):
    killed, other = servers
    prompts = [f"{FAMILIES[number % 2]} turn {number}" for number in range(16)]
    bodies = [body_of(one, max_tokens=LONG) for one in prompts]
    expected = [other.client.post("/v1/completions", json=body).json() for body in bodies]
    with Gateway(servers, "round_robin") as gateway, ThreadPoolExecutor(len(bodies)) as pool:
        answers = [
            pool.submit(gateway.client.post, "/v1/completions", json=body) for body in bodies
        ]
        wait_until_running(killed, 1)
        killed.stop(signal.SIGKILL)
        for answer, wanted in zip(answers, expected, strict=True):
            assert answer.result().status_code == 200, answer.result().text
            assert answer.result().json()["choices"] == wanted["choices"]
        assert killed.exit_code() == -signal.SIGKILL
        for body, wanted in zip(bodies, expected, strict=True):  # and afterwards
            answer = gateway.client.post("/v1/completions", json=body)
            assert answer.status_code == 200 and answer.json()["choices"] == wanted["choices"]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_routes_of_the_gateway_are_answered(servers):
    """What smg adds to requests is accepted."""
    with Gateway(servers, "cache_aware") as gateway:
        for path, body in ROUTES.items():
            answer = gateway.client.post(path, json={"model": MODEL, **body})
            assert answer.status_code == 200, f"{path}: {answer.text}"
            if "max_tokens" in body:
                answer = gateway.client.post(path, json={"model": MODEL, "stream": True, **body})
                assert answer.headers["content-type"].startswith("text/event-stream"), path
                assert "error" not in answer.text


def test_the_extra_has_the_tested_version():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = extras["optional-dependencies"]["gateway"]
    assert wanted in requirements("gateway").read_text().splitlines()
