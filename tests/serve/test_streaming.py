"""Streams of each protocol: headers, pings while there is no token yet, and the text after them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.scripted import scripted_service
from tests.serve.server import RunningServer, make_service, running
from weft.serve.config import ServeConfig

TEXT = "Hi \U0001f31e"
USER = [{"role": "user", "content": "a"}]
BODY = {"model": "scripted", "messages": USER, "max_tokens": 20, "stream": True}
EVENT_STREAM = "text/event-stream; charset=utf-8"
COMMENT, BLANK = ": ping\n\n", " "
ANTHROPIC_PING = 'event: ping\ndata: {"type":"ping"}\n\n'
ROUTES = [
    ("/v1/chat/completions", BODY, EVENT_STREAM, COMMENT),
    ("/v1/completions", {**BODY, "messages": None, "prompt": "a"}, EVENT_STREAM, COMMENT),
    ("/v1/responses", {"model": "scripted", "input": "a", "stream": True}, EVENT_STREAM, COMMENT),
    ("/v1/messages", BODY, EVENT_STREAM, ANTHROPIC_PING),
    ("/api/chat", {"model": "scripted", "messages": USER}, "application/x-ndjson", BLANK),
    ("/api/generate", {"model": "scripted", "prompt": "a"}, "application/x-ndjson", BLANK),
]


def slow_script(prompt: str) -> str:
    time.sleep(0.3)
    return TEXT


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(scripted_service(slow_script, ping_seconds=0.05)) as one:
        yield one


def text_of(part: Any) -> str:
    """The text in one part of a stream of any protocol."""
    if part.get("choices"):
        [choice] = part["choices"]
        return choice["text"] if "text" in choice else choice["delta"].get("content") or ""
    if "message" in part or "response" in part:
        inner = part.get("message", part.get("response"))
        return inner if isinstance(inner, str) else str(inner.get("content") or "")
    delta = part.get("delta", "")
    return delta if isinstance(delta, str) else delta.get("text", "")


@pytest.mark.parametrize(("path", "body", "media_type", "ping"), ROUTES)
def test_a_stream_without_tokens_has_pings(server, path, body, media_type, ping):
    response = server.post(path, {key: one for key, one in body.items() if one is not None})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == media_type
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    text = response.text
    assert text.startswith(2 * ping)
    lines = text.removeprefix(ping).splitlines()
    data = [line.removeprefix("data: ") for line in lines if "{" in line]
    assert "".join(text_of(json.loads(one)) for one in data) == TEXT
    server.wait_idle()


def test_a_stream_whose_prompt_is_scored_has_pings(server, monkeypatch):
    engine = server.service.models.get("scripted").engine.engine
    prepare = engine.prepare_score

    def slow_prepare(*values: Any, **named: Any) -> Any:
        time.sleep(0.4)
        return prepare(*values, **named)

    monkeypatch.setattr(engine, "prepare_score", slow_prepare)
    body = {"model": "scripted", "prompt": "a", "echo": True, "logprobs": 0, "stream": True}
    response = server.post("/v1/completions", body)
    assert response.status_code == 200 and response.text.startswith(5 * COMMENT), response.text
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if "{" in line]
    assert "".join(text_of(json.loads(one)) for one in lines) == f"a{TEXT}"
    server.wait_idle()


def test_the_time_between_pings_is_15_seconds():
    assert ServeConfig().ping_seconds == 15


def test_a_stream_needs_as_many_tasks_for_40_tokens_as_for_10():
    """A task and two timers for each token took a third of the event loop's time."""
    service, tasks = make_service(), list[asyncio.Task[Any]]()

    def count_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> Any:
        tasks.append(asyncio.Task(coroutine, loop=loop, **options))
        return tasks[-1]

    def count(num_tokens: int) -> int:
        before, limits = len(tasks), {"max_tokens": num_tokens, "ignore_eos": True, "seed": 1}
        body = {"model": "decoder", "prompt": "a", "stream": True, **limits}
        text = server.post("/v1/completions", body).text
        assert text.count("data: {") > num_tokens / 2  # a character may have several tokens
        return len(tasks) - before

    with running(service) as server:
        count(2)
        [loop] = service.models.get("decoder").engine.loops
        loop.set_task_factory(count_task)
        assert 0 < count(10) == count(40)
