"""Malformed requests are answered with 4xx, one by one and 2,000 at random, which are made by
tests/soak/http_edits.py (`make soak` runs 50,000). The server then still answers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.soak.http_edits import HttpCase, random_case
from tests.soak.http_requests import MAX_BODY
from tests.soak.malformed_http import MalformedServer, check_case, check_valid, exchange
from weft.serve.api_errors import ApiError
from weft.serve.json_bodies import MAX_DEPTH, read_json

NUM_CASES, NUM_CONNECTIONS = 2000, 8
ECHO = {"model": "scripted", "input": "a", "max_output_tokens": 1, "store": False}
HEAD = "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[MalformedServer]:
    with MalformedServer() as one:
        yield one


def send(server: MalformedServer, path: str, body: str, *headers: str) -> tuple[int, str]:
    """Status and content of the answer to a body, which need not be JSON."""
    data = body.encode("utf-8", "surrogatepass")
    lines = [*headers, f"Content-Length: {len(data)}", "", ""]
    head = HEAD.format(path=path) + "\r\n".join(lines)
    answer = exchange(server.address, HttpCase((head.encode() + data,), True))
    assert server.log.take() == ""
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2].decode()


def test_2000_random_malformed_requests_do_no_harm(server):
    def run(seeds: range) -> None:
        for seed in seeds:
            try:
                check_case(server, random_case(random.Random(seed)))
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}") from None

    with ThreadPoolExecutor(NUM_CONNECTIONS) as pool:
        list(
            pool.map(run, [range(at, NUM_CASES, NUM_CONNECTIONS) for at in range(NUM_CONNECTIONS)])
        )
    check_valid(server)
    server.running.wait_idle()


def test_a_case_depends_on_its_seed_only():
    cases = [random_case(random.Random(seed)) for seed in range(300)]
    assert cases == [random_case(random.Random(seed)) for seed in range(300)]
    assert {one.is_whole for one in cases} == {True, False}


def test_a_status_of_500_is_noticed(server, monkeypatch):
    def broken(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(server.running.service.models, "resolve", broken)
    body = b'{"model": "scripted", "prompt": "a"}'
    head = HEAD.format(path="/v1/completions").encode() + b"Content-Type: application/json\r\n"
    head += b"Content-Length: %d\r\n\r\n" % len(body)
    with pytest.raises(AssertionError, match=r"status 500(.|\n)*RuntimeError: broken"):
        check_case(server, HttpCase((head + body,), True))
    assert server.log.take() == ""


@pytest.mark.parametrize("origin", ["http://[", "http://[a]b", "://", "null"])
def test_an_origin_that_is_no_url_is_foreign(server, origin):
    status, content = send(server, "/api/show", "{}", f"Origin: {origin}")
    assert status == 403 and "are not allowed. Use --cors" in json.loads(content)["error"]


@pytest.mark.parametrize("stream", [True, False])
def test_integers_beyond_64_bits_can_be_returned(server, stream):
    """/v1/responses returns its tools."""
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "a": 2**70}}
    body = json.dumps({**ECHO, "stream": stream, "tools": [tool]})
    status, content = send(server, "/v1/responses", body, "Content-Type: application/json")
    assert status == 200 and "1.1805916207174113e+21" in content
    assert '"response.failed"' not in content


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("NaN", "the body is not valid JSON: unexpected character"),
        ('"\\ud800"', "the body is not valid JSON: "),
        ("1e999", "the body is not valid JSON: number is infinity when parsed as double"),
        ("[" * 100 + "]" * 100, "more than 100 objects and lists inside of each other"),
        ("\udfff", "the body is not valid JSON: "),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/api/show", "/translate"])
def test_json_that_cannot_be_returned_is_an_error_in_each_protocol(server, path, text, problem):
    body = '{"model": "scripted", "prompt": ' + text + "}"
    status, content = send(server, path, body, "Content-Type: application/json")
    error = json.loads(content)["error"]
    assert status == 400 and problem in (error if isinstance(error, str) else error["message"])


@pytest.mark.parametrize(
    ("path", "change", "problem"),
    [
        ("/v1/responses", {"input": [{"type": {"a": 1}, "role": "user"}]}, "is of type {'a': 1}"),
        ("/v1/responses", {"input": [{"id": {"a": 1}, "role": "user"}]}, "input[0].id is "),
        ("/v1/responses", {"tools": [{"type": "custom", "custom": 5}]}, "function.name is None"),
        ("/v1/responses", {"tool_choice": {"type": "allowed_tools"}}, "tool_choice.tools is None"),
        ("/v1/responses", {"tool_choice": {"function": 5}}, "without the name of a function"),
        ("/api/chat", {"messages": [{"role": "a", "tool_calls": 5}]}, "tool_calls is 5"),
        ("/v1/responses", {"chat_template_kwargs": {"messages": []}}, "has 'messages', which the"),
        ("/v1/responses", {"chat_template_kwargs": {"self": 1}}, "has 'self', which the server"),
        ("/v1/responses", {"chat_template_kwargs": {"tools": 5}}, "has 'tools', which the server"),
        ("/v1/responses", {"chat_template_kwargs": {"range": 5, "eos_token": {}}}, None),
    ],
)
def test_values_of_a_wrong_type_inside_of_loose_fields_are_named(server, path, change, problem):
    body = {**ECHO, "messages": []} if path == "/api/chat" else ECHO
    content = json.dumps({**body, **change})
    status, text = send(server, path, content, "Content-Type: application/json")
    assert status == (200 if problem is None else 400)
    assert problem is None or problem in str(json.loads(text)["error"])


def test_a_call_without_its_function_inside_is_read(server):
    call = {"id": "c", "name": "f", "arguments": "{}"}
    messages = [{"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": "a"}]
    body = json.dumps({"model": "scripted", "messages": messages, "max_tokens": 1})
    status, text = send(server, "/v1/chat/completions", body, "Content-Type: application/json")
    assert status == 200, text


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_contradicts_itself_is_an_error_of_the_caller(server, stream):
    """Its grammar ends the text after one token, but min_tokens does not."""
    body = {"model": "scripted", "prompt": "a", "min_tokens": 3, "stream": stream}
    body["structured_outputs"] = {"choice": ["b"]}
    content = json.dumps(body)
    status, text = send(server, "/v1/completions", content, "Content-Type: application/json")
    assert status == (200 if stream else 400)  # the first token has been sent
    assert "exclude every token. Lower min_tokens" in text and "invalid_request_error" in text


def test_a_value_may_be_nested_up_to_the_limit():
    text = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert read_json(text + b" ") is not None
    with pytest.raises(ApiError, match="more than 100 objects and lists"):
        read_json(b"[" + text + b"]")
    assert read_json(b"[" + b"[]," * 500 + b"[]]") == [[]] * 501


@pytest.mark.parametrize("path", ["/translate", "/v1/completions", "/api/generate"])
def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_fault(server, path):
    head = HEAD.format(path=path) + "Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{"
    check_case(server, HttpCase((head.encode(),), False))
    check_valid(server)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/api/chat", "/translate"])
def test_a_body_that_is_too_large_is_413_with_and_without_a_length(server, path):
    large = " " * (MAX_BODY + 1)
    status, content = send(server, path, large, "Content-Type: application/json")
    assert status == 413 and f"larger than {MAX_BODY} bytes" in content
    head = HEAD.format(path=path) + "Content-Type: application/json\r\n"
    chunk = f"Transfer-Encoding: chunked\r\n\r\n{len(large):x}\r\n{large}\r\n0\r\n\r\n"
    answer = exchange(server.address, HttpCase(((head + chunk).encode(),), True))
    assert b" 413 " in answer.splitlines()[0]
