"""What one API key can learn about another: nothing from the prefix cache, and nothing is logged of
what anyone has sent."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.engine.tiny import tiny
from tests.serve.server import RunningServer, make_service, running
from weft.serve.request_log import log_request

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
SECRET = "zanzibar"
LONG = f"don't tell {SECRET} " * 99
PROMPT = f"the cat sat on the mat {SECRET} " * 6
USER = [{"role": "user", "content": PROMPT}]
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 2},
    "/v1/chat/completions": {"messages": USER, "max_tokens": 2},
    "/v1/responses": {"input": PROMPT, "max_output_tokens": 2},
    "/v1/messages": {"messages": USER, "max_tokens": 2},
    "/api/chat": {"messages": USER, "options": {"num_predict": 2}, "stream": False},
}


@pytest.fixture
def server() -> Iterator[RunningServer]:
    chat = replace(tiny("decoder", max_len=400), chat_template=TEMPLATE)
    service = make_service({"chat": chat}, keys={"one": "k1", "two": "k2"}, max_prompt=300)
    service.sinks.append(log_request)
    with running(service) as one:
        yield one


def counter(server: RunningServer, name: str) -> float:
    text = server.get("/metrics").text
    return sum(map(float, re.findall(rf"^vllm:{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE)))


def ask(server: RunningServer, path: str, key: str) -> float:
    """Prompt tokens that were computed for a request."""
    name = "request_prefill_kv_computed_tokens"
    count, before = counter(server, f"{name}_count"), counter(server, f"{name}_sum")
    answer = server.post(path, {"model": "chat", **ROUTES[path]}, headers={"x-api-key": key})
    assert answer.status_code == 200, answer.text
    while counter(server, f"{name}_count") == count:  # it is counted after the response
        pass
    return counter(server, f"{name}_sum") - before


@pytest.mark.parametrize("path", ROUTES)
def test_another_key_computes_all_tokens_and_the_same_key_few(server, path):
    first = ask(server, path, "k1")
    assert ask(server, path, "k1") <= 4 < first
    assert ask(server, path, "k2") == first
    assert ask(server, path, "k2") <= 4


def test_wrong_keys_are_refused_on_every_route(server):
    for path, body in ROUTES.items():
        for headers in ({}, {"x-api-key": "k3"}, {"authorization": "Bearer k"}):
            answer = server.post(path, {"model": "chat", **body}, headers=headers)
            assert answer.status_code == 401 and "API key" in answer.text


def test_no_text_of_a_request_is_logged(server, caplog):
    """Neither of those that are answered, nor of those that are refused."""
    headers = {"x-api-key": "k1"}
    wrong: list[dict[str, Any]] = [
        {},
        {"stream": True},
        {"prompt": PROMPT * 9, "messages": [{"role": "user", "content": PROMPT * 9}]},
        {"messages": SECRET, "prompt": {SECRET: 1}, "input": 5},
        {"messages": [{"role": SECRET, "content": SECRET}], "prompt": [SECRET, 1]},
        {"messages": [{"role": "user", "content": [{"type": SECRET}]}], "stop": 5},
        {"temperature": SECRET, "options": {"temperature": SECRET}},
        {"tools": [{"type": "function", "function": {"name": SECRET, "parameters": 5}}]},
        {"tool_choice": SECRET},
        {"stop": [SECRET] * 99, "stop_sequences": [SECRET] * 99},
        {"tools": [{"type": "function", "function": {"name": LONG}}]},
        {"messages": [{"role": LONG, "content": LONG}], "prompt": [LONG, 1]},
        {"input": [{"type": LONG}], "messages": [{"role": "user", "content": [{"type": LONG}]}]},
        {"tool_choice": LONG, "format": LONG, "temperature": LONG},
        {SECRET: 1, "metadata": {SECRET: 1}, "options": {SECRET: 1}},
        {"structured_outputs": {"regex": f"({SECRET}"}, "format": {"type": SECRET}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": SECRET}}}},
        {"text": {"format": {"type": "json_schema", "schema": {"type": SECRET}}}},
        {"previous_response_id": SECRET, "logit_bias": {SECRET: 1}, "model": SECRET},
    ]
    with caplog.at_level(logging.DEBUG, "weft"):
        for path, body in ROUTES.items():
            for change in wrong:
                server.post(path, {"model": "chat", **body, **change}, headers=headers)
            server.post(
                "/translate", {"q": "x", "source": SECRET, "target": SECRET}, headers=headers
            )
            server.post("/v1/attention", {"id": SECRET, "position": 1}, headers=headers)
            server.client.post(path, content=f'{{"{SECRET}": ', headers=headers)
        server.wait_idle()
    assert caplog.text.count("route=") >= len(ROUTES) * len(wrong)
    assert [one for one in caplog.messages if SECRET in one] == []
