"""`GET /` is the web page for browsers, and what Ollama's clients look for otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.server import RunningServer, make_service, running
from weft.look.assets import PageApp
from weft.serve.page_requests import is_for_page
from weft.serve.server import StartupApp

HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(make_service(keys={"alice": "key-a"}), index=PageApp()) as one:
        yield one


def test_browsers_get_the_page_and_other_programs_the_greeting(server):
    page = server.get("/", headers=HTML)
    assert page.text.startswith("<!doctype html>") and "accept" in page.headers["vary"]
    assert "default-src 'self'" in page.headers["content-security-policy"]
    for headers in ({}, {"accept": "*/*"}, {"accept": "application/json"}):
        assert server.get("/", headers=headers).text == "Ollama is running"
    head = server.client.head("/", headers=HTML)
    assert head.status_code == 200 and head.headers["content-type"].startswith("text/plain")


def test_the_page_and_its_files_need_no_key(server):
    script = server.get("/assets/app.js")
    assert script.status_code == 200 and script.headers["x-request-id"]
    again = server.get("/assets/app.js", headers={"if-none-match": script.headers["etag"]})
    assert again.status_code == 304
    assert server.get("/assets/nothing.js").status_code == 404
    assert server.get("/server_info").status_code == 401


def test_the_page_is_there_while_models_are_loaded():
    app = StartupApp("demo", PageApp())
    assert ask(app, "/", HTML)[0] == 200
    assert ask(app, "/assets/page.css", {})[0] == 200
    status, body = ask(app, "/server_info", {})
    assert status == 503 and b"loading demo" in body


def ask(app: StartupApp, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    """Status and body of a GET."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": path, "headers": raw}
    asyncio.run(app(scope, lambda: None, send))
    return sent[0]["status"], sent[1]["body"]


@pytest.mark.parametrize(
    ("method", "path", "accept", "expected"),
    [
        ("GET", "/", "text/html", True),
        ("HEAD", "/", "text/html", False),
        ("GET", "/", "*/*", False),
        ("GET", "/v1/models", "text/html", False),
        ("GET", "/assets/app.js", "*/*", True),
    ],
)
def test_which_requests_are_for_the_page(method, path, accept, expected):
    assert is_for_page(method, path, accept) is expected
