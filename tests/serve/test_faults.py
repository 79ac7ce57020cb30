"""A fault behind validation is a 500 in the shape of its protocol, or the error event of a stream
that has begun, with the request id and one logged traceback. The next request works."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import orjson
import pytest

from tests.engine.tiny import tiny
from tests.serve.scripted import HERMES_TEMPLATE, NAME, follow_script, scripted_checkpoint
from tests.serve.server import RunningServer, make_service, running
from weft.serve.api_errors import protocol_of
from weft.serve.responses import ERROR_BODIES

MESSAGES = [{"role": "user", "content": "a"}]
CHAT = {"model": NAME, "messages": MESSAGES, "max_tokens": 8}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": NAME, "prompt": "a", "max_tokens": 8},
    "/v1/responses": {"model": NAME, "input": "a", "max_output_tokens": 8},
    "/v1/messages": CHAT,
    "/api/chat": {"model": NAME, "messages": MESSAGES},
    "/api/generate": {"model": NAME, "prompt": "a"},
    "/translate": {"q": "the cat", "source": "en", "target": "de"},
}
STREAMED = [path for path in BODIES if path != "/translate"]
TEMPLATED = [path for path in STREAMED if path != "/v1/completions"]
REQUEST_ID = "request-of-this-test"
HEADERS = {"x-request-id": REQUEST_ID}


class BrokenPartError(Exception):
    """The fault that is injected."""


class Fault:
    """A function that fails from its n-th call on until it is repaired."""

    def __init__(self, function: Callable[..., Any], first: int = 1, count: int = 10**9) -> None:
        self.function, self.first, self.left, self.num_calls = function, first, count, 0

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        self.num_calls += 1
        if self.num_calls >= self.first and self.left:
            self.left -= 1
            raise BrokenPartError("broken by a test")
        return self.function(*args, **keywords)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    models = {
        NAME: scripted_checkpoint(HERMES_TEMPLATE, ("<|im_start|>", "<|im_end|>"), 4096),
        "translator": replace(tiny("encoder-decoder"), languages=("en", "de")),
    }
    service = make_service(models)
    loaded = service.models.get(NAME).loaded
    follow_script(loaded.client.async_engine.engine, loaded.tokenizer, "a sentence")
    with running(service) as one:
        yield one


def model_of(server: RunningServer, path: str) -> Any:
    return server.service.models.get("translator" if path == "/translate" else NAME)


def inject(server: RunningServer, path: str, part: str, first: int, patch: Any) -> None:
    """Break a part of the server, from its n-th use on."""
    served = model_of(server, path)
    if part == "engine":
        runner = served.engine.engine.runner
        patch.setattr(runner, "run", Fault(runner.run, first))
    elif part == "template":
        template = served.builder.template
        patch.setattr(type(template), "render", Fault(type(template).render, first))
    elif part == "tokenizer":
        kind = type(served.tokenizer)
        for name in ("encode", "encode_batch"):
            patch.setattr(kind, name, Fault(getattr(kind, name), first))
    else:  # one value only: the error is written by the same function
        patch.setattr(orjson, "dumps", Fault(orjson.dumps, first, count=1))


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    infos = [record.exc_info for record in caplog.records if record.exc_info]
    return ["".join(traceback.format_exception(*info)) for info in infos]


def check_fault(path: str, error: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The error has its protocol's shape, and the log has one traceback of the fault."""
    ERROR_BODIES[protocol_of(path)].model_validate(error, strict=True, extra="forbid")
    inner = error["error"]
    message = inner if isinstance(inner, str) else inner["message"]
    assert message.endswith(f" The request id is {REQUEST_ID}.") and "BrokenPart" in message
    if not isinstance(inner, str):
        assert inner["type"] == ("api_error" if "request_id" in error else "server_error")
    found = tracebacks(caplog)
    assert len(found) == 1 and "BrokenPartError" in found[0], found
    assert "in __call__\n    raise BrokenPartError" in found[0]  # it shows the place of the fault
    assert all(record.levelno < logging.CRITICAL for record in caplog.records)


def check_next(server: RunningServer, path: str, body: dict[str, Any]) -> None:
    """The same request works now."""
    answer = server.post(path, body)
    assert answer.status_code == 200 and "error" not in last_event(answer.text), answer.text
    server.wait_idle()


def last_event(text: str) -> dict[str, Any]:
    """The last JSON object of an answer; events of a type `error` have that in it."""
    lines = [line.removeprefix("data: ") for line in text.splitlines() if "{" in line]
    return {key: one for key, one in json.loads(lines[-1]).items() if one is not None}


WHOLE = [
    *((path, part) for path in BODIES for part in ("engine", "tokenizer", "serializer")),
    *((path, "template") for path in TEMPLATED),
]


@pytest.mark.parametrize(("path", "part"), WHOLE)
def test_a_fault_is_a_500_of_its_protocol(server, path, part, monkeypatch, caplog):
    body = {**BODIES[path], "stream": False}
    with monkeypatch.context() as patch:
        inject(server, path, part, 1, patch)
        answer = server.post(path, body, headers=HEADERS)
    assert answer.status_code == 500 and answer.headers["x-request-id"] == REQUEST_ID
    check_fault(path, answer.json(), caplog)
    check_next(server, path, body)


EARLY = [
    *((path, part) for path in STREAMED for part in ("engine", "tokenizer")),
    *((path, "template") for path in TEMPLATED),
]


@pytest.mark.parametrize(("path", "part"), EARLY)
def test_a_fault_before_the_first_token_of_a_stream_is_a_status(
    server, path, part, monkeypatch, caplog
):
    body = {**BODIES[path], "stream": True}
    with monkeypatch.context() as patch:
        inject(server, path, part, 1, patch)
        answer = server.post(path, body, headers=HEADERS)
    assert answer.status_code == 500 and answer.headers["content-type"] == "application/json"
    check_fault(path, answer.json(), caplog)
    check_next(server, path, body)


LATE = [(path, part) for path in STREAMED for part in ("engine", "serializer")]


@pytest.mark.parametrize(("path", "part"), LATE)
def test_a_fault_within_a_stream_is_its_last_event(server, path, part, monkeypatch, caplog):
    body = {**BODIES[path], "stream": True}
    with monkeypatch.context() as patch:
        inject(server, path, part, 4, patch)
        answer = server.post(path, body, headers=HEADERS)
    assert answer.status_code == 200 and answer.headers["x-request-id"] == REQUEST_ID
    if path == "/v1/responses":
        *_, error, failed = [
            json.loads(line[6:]) for line in answer.text.splitlines() if "{" in line
        ]
        assert error["type"] == "error" and failed["type"] == "response.failed"
        assert failed["response"]["status"] == "failed"
        assert failed["response"]["error"]["code"] == "server_error"
        assert failed["response"]["error"]["message"] == error["message"]
        error = {"error": {"type": "server_error", **pick(error, "message", "param", "code")}}
    else:
        error = last_event(answer.text)
        if protocol_of(path) == "openai":
            error["error"] |= {"param": None, "code": None}
    check_fault(path, error, caplog)
    assert "[DONE]" not in answer.text and "message_stop" not in answer.text
    check_next(server, path, body)


def pick(values: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"model": NAME, "input": "a"}),
        ("/v1/rerank", {"model": NAME, "query": "a", "documents": ["b"]}),
        ("/api/embed", {"model": NAME, "input": "a"}),
        ("/v1/completions", {**BODIES["/v1/completions"], "prompt_logprobs": 1}),
    ],
)
def test_a_fault_of_the_engine_in_other_requests_is_a_500(server, path, body, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        inject(server, path, "engine", 1, patch)
        answer = server.post(path, body, headers=HEADERS)
    assert answer.status_code == 500
    message = answer.json()["error"]
    message = message if isinstance(message, str) else message["message"]
    assert message.endswith(f" The request id is {REQUEST_ID}.")
    assert tracebacks(caplog)
    check_next(server, path, body)
