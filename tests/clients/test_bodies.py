"""Requests of programs that people point at local servers: each is answered, without --lenient.

bodies/ has one file per program. `source` says where its requests come from: recorded from a
version, or written from documentation. Texts are shortened; fields and structure are not changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.speaker import speaking_service
from tests.serve.server import RunningServer, running

BODIES = Path(__file__).parent / "bodies"
PROGRAMS = {path.stem: json.loads(path.read_text()) for path in sorted(BODIES.glob("*.json"))}
REQUESTS = [
    pytest.param(request, id=f"{name}-{request['name'].replace(' ', '-')}")
    for name, program in PROGRAMS.items()
    for request in program["requests"]
]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(speaking_service()) as one:
        yield one


@pytest.mark.parametrize("request_", REQUESTS)
def test_a_request_is_answered(server, request_):
    path = request_["path"]
    method, headers = request_.get("method", "POST"), request_.get("headers", {})
    answer = server.client.request(method, path, json=request_.get("body"), headers=headers)
    assert answer.status_code == 200, answer.text
    if (request_.get("body") or {}).get("stream"):
        assert is_complete(path, answer.text), answer.text[-300:]
    server.wait_idle()


def is_complete(path: str, text: str) -> bool:
    """Whether a stream has its protocol's last part."""
    if path.startswith("/api/"):
        return bool(last_line(text)["done"])
    if path.startswith("/v1/messages"):
        return "event: message_stop" in text
    if path.startswith("/v1/responses"):
        return "event: response.completed" in text
    return text.endswith("data: [DONE]\n\n") and '"error"' not in text


def last_line(text: str) -> Any:
    return json.loads(text.splitlines()[-1])


def test_all_programs_are_there():
    assert set(PROGRAMS) == {
        "aider",
        "claude_code",
        "codex_cli",
        "continue",
        "langchain",
        "litellm",
        "llm",
        "open_webui",
    }
    assert all(program["source"] and program["client"] for program in PROGRAMS.values())
