"""Every response and every part of a stream has the fields that its protocol requires.

Each request below names the object of required_fields.py that its answer is. A test fails if an
object of its protocol's list was in no answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.engine.tiny import tiny
from tests.serve.field_checks import THINKING_TEMPLATE
from tests.serve.required_fields import (
    ANTHROPIC,
    LIBRETRANSLATE,
    OLLAMA,
    OPENAI,
    FieldChecker,
)
from tests.serve.scripted import HERMES_TEMPLATE, follow_script, scripted_checkpoint
from tests.serve.server import RunningServer, make_service, running
from weft.serve.api_errors import protocol_of

USER = [{"role": "user", "content": "the cat sat on the mat"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False}
CUSTOM = {"type": "custom", "name": "f"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
FUNCTIONS = [{"name": "f", "parameters": SCHEMA}]
RESPONSE_TOOLS = [{"type": "function", "name": "f", "parameters": SCHEMA}]
ANTHROPIC_TOOLS = [{"name": "f", "input_schema": SCHEMA}]
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
BEAMS = {"use_beam_search": True, "best_of": 3, "n": 2}
TEMPLATES = {"speaker": HERMES_TEMPLATE, "thinker": THINKING_TEMPLATE}
CALL = '<tool_call>{"name": "f", "arguments": {"a": "b"}}</tool_call>'
CUSTOM_CALL = '<tool_call>{"name": "f", "arguments": {"input": "b"}}</tool_call>'

CHAT = {"model": "speaker", "messages": USER, "max_tokens": 200}
TEXT = {"model": "text", "prompt": "the cat sat", "max_tokens": 5}
RESPOND = {"model": "speaker", "input": "the cat"}
THINK = {"model": "thinker"}
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
TRANSLATE = {"q": "the cat sat", "source": "en", "target": "de"}
AUTO = {"source": "auto", "alternatives": 1}
TWO = {"q": ["the cat", "a dog"]}

CASES: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", CHAT, "Chat"),
    ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2, "n": 2}, "Chat"),
    ("/v1/chat/completions", CHAT | {"max_tokens": 2}, "Chat"),
    ("/v1/chat/completions", CHAT | {"tools": TOOLS}, "Chat"),
    ("/v1/chat/completions", CHAT | {"functions": FUNCTIONS}, "Chat"),
    ("/v1/chat/completions", CHAT | {"functions": FUNCTIONS, "stream": True}, "ChatChunk"),
    ("/v1/chat/completions", CHAT | THINK, "Chat"),
    ("/v1/chat/completions", CHAT | {"stream": True}, "ChatChunk"),
    ("/v1/chat/completions", CHAT | WITH_USAGE | {"n": 2}, "ChatChunk"),
    ("/v1/chat/completions", CHAT | WITH_USAGE | {"tools": TOOLS}, "ChatChunk"),
    ("/v1/chat/completions", CHAT | WITH_USAGE | {"logprobs": True}, "ChatChunk"),
    ("/v1/chat/completions", CHAT | THINK | {"stream": True}, "ChatChunk"),
    ("/v1/completions", TEXT, "Completion"),
    ("/v1/completions", TEXT | {"logprobs": 2, "echo": True}, "Completion"),
    ("/v1/completions", TEXT | {"logprobs": 0}, "Completion"),
    ("/v1/completions", TEXT | {"prompt": ["a cat", "the dog"], "n": 2}, "Completion"),
    ("/v1/completions", TEXT | BEAMS, "Completion"),
    ("/v1/completions", TEXT | {"stream": True, "echo": True}, "CompletionChunk"),
    ("/v1/completions", TEXT | WITH_USAGE | {"logprobs": 2, "n": 2}, "CompletionChunk"),
    ("/v1/completions", TEXT | WITH_USAGE | BEAMS, "CompletionChunk"),
    ("/v1/embeddings", {"model": "text", "input": ["a", "b"]}, "Embeddings"),
    ("/v1/embeddings", {"model": "text", "input": [5, 6]}, "Embeddings"),
    ("/v1/embeddings", {"model": "text", "input": "a", "encoding_format": "base64"}, "Embeddings"),
    ("/v1/responses", RESPOND, "Response"),
    ("/v1/responses", RESPOND | LOGPROBS, "Response"),
    ("/v1/responses", RESPOND | {"max_output_tokens": 2}, "Response"),
    ("/v1/responses", RESPOND | {"tools": RESPONSE_TOOLS}, "Response"),
    ("/v1/responses", RESPOND | {"tools": [CUSTOM]}, "Response"),
    ("/v1/responses", RESPOND | THINK, "Response"),
    ("/v1/responses", RESPOND | LOGPROBS | {"stream": True}, "ResponseEvent"),
    ("/v1/responses", RESPOND | {"max_output_tokens": 2, "stream": True}, "ResponseEvent"),
    ("/v1/responses", RESPOND | {"tools": RESPONSE_TOOLS, "stream": True}, "ResponseEvent"),
    ("/v1/responses", RESPOND | {"tools": [CUSTOM], "stream": True}, "ResponseEvent"),
    ("/v1/responses", RESPOND | THINK | {"stream": True}, "ResponseEvent"),
    ("/v1/responses/input_tokens", RESPOND, "InputTokens"),
    ("/v1/messages", CHAT, "Message"),
    ("/v1/messages", CHAT | {"max_tokens": 2}, "Message"),
    ("/v1/messages", CHAT | {"stop_sequences": ["i"]}, "Message"),
    ("/v1/messages", CHAT | {"tools": ANTHROPIC_TOOLS}, "Message"),
    ("/v1/messages", CHAT | THINK, "Message"),
    ("/v1/messages", CHAT | {"stream": True}, "MessageEvent"),
    ("/v1/messages", CHAT | {"tools": ANTHROPIC_TOOLS, "stream": True}, "MessageEvent"),
    ("/v1/messages", CHAT | THINK | {"stream": True}, "MessageEvent"),
    ("/v1/messages/count_tokens", {"model": "speaker", "messages": USER}, "TokenCount"),
    ("/api/chat", {"model": "speaker", "messages": USER, "stream": False}, "ChatEnd"),
    ("/api/chat", {"model": "speaker", "messages": USER, "stream": False} | THINK, "ChatEnd"),
    ("/api/chat", {"model": "speaker", "messages": USER, "logprobs": True}, "ChatLine"),
    ("/api/chat", {"model": "speaker", "messages": USER, "tools": TOOLS}, "ChatLine"),
    ("/api/chat", {"model": "thinker", "messages": USER}, "ChatLine"),
    ("/api/chat", {"model": "speaker"}, "ModelLoaded"),
    ("/api/generate", {"model": "speaker", "prompt": "a", "stream": False}, "GenerateEnd"),
    ("/api/generate", {"model": "en-de", "prompt": "a cat", "stream": False}, "GenerateEnd"),
    ("/api/generate", {"model": "thinker", "prompt": "a", "top_logprobs": 1}, "GenerateLine"),
    ("/api/generate", {"model": "speaker", "keep_alive": 0}, "ModelLoaded"),
    ("/api/embed", {"model": "text", "input": ["a", "b"]}, "Embed"),
    ("/api/embeddings", {"model": "text", "prompt": "a"}, "OldEmbedding"),
    ("/api/show", {"model": "speaker"}, "Show"),
    ("/api/show", {"model": "en-de"}, "Show"),
    ("/translate", TRANSLATE, "Translation"),
    ("/translate", TRANSLATE | AUTO, "Detected"),
    ("/translate", TRANSLATE | TWO | {"alternatives": 1}, "Translations"),
    ("/translate", TRANSLATE | TWO | {"source": "auto"}, "DetectedList"),
]
GETS: list[tuple[str, Any]] = [
    ("/v1/models", "ModelList"),
    ("/v1/models/speaker", "Model"),
    ("/api/tags", "Tags"),
    ("/api/ps", "Processes"),
    ("/api/version", "Version"),
    ("/languages", ["Languages", ...]),
]
ERRORS = [
    ("/v1/chat/completions", {"messages": USER, "model": "other"}, "OpenAIError"),
    ("/v1/chat/completions", {"messages": USER, "model": "speaker", "nn": 1}, "OpenAIError"),
    ("/v1/completions", {"model": "text", "prompt": 1}, "OpenAIError"),
    ("/v1/embeddings", {"model": "text", "input": []}, "OpenAIError"),
    ("/v1/responses", {"model": "speaker", "input": []}, "OpenAIError"),
    ("/v1/nothing", {}, "OpenAIError"),
    ("/v1/messages", {"messages": USER, "model": "other", "max_tokens": 1}, "AnthropicError"),
    ("/v1/messages", {"messages": USER, "model": "speaker"}, "AnthropicError"),
    ("/api/chat", {"model": "other"}, "OllamaError"),
    ("/api/generate", {"model": "speaker", "prompt": 1}, "OllamaError"),
    ("/translate", {**TRANSLATE, "target": "xx"}, "LibreTranslateError"),
    ("/translate", {"q": "a"}, "LibreTranslateError"),
]


FAILURES = {"OpenAIError", "AnthropicError", "OllamaError", "LibreTranslateError"}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    models = {
        name: scripted_checkpoint(template, ("<|im_start|>", "<|im_end|>"), 400)
        for name, template in TEMPLATES.items()
    }
    models |= {"text": tiny("decoder"), "en-de": replace(tiny(), languages=("en", "de"))}
    service = make_service(models)
    for name in TEMPLATES:
        loaded = service.models.get(name).loaded
        follow_script(loaded.client.async_engine.engine, loaded.tokenizer, answer)
    with running(service) as one:
        yield one


def answer(prompt: str) -> str:
    """A call if there are tools; reasoning from the model that thinks; a sentence with characters
    of several bytes."""
    if "<tools>" in prompt:
        return CUSTOM_CALL if '"input"' in prompt else CALL
    return "<think>hm</think>Hi" if "()" in prompt else "Hi \U0001f31e"


def parts_of(path: str, text: str) -> list[Any]:
    """The objects of a stream."""
    if path.startswith("/api/"):
        return [json.loads(line) for line in text.splitlines()]
    data = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert path.startswith(("/v1/responses", "/v1/messages")) or data.pop() == "[DONE]"
    return [json.loads(one) for one in data]


def check_stream(checker: FieldChecker, path: str, body: dict[str, Any], name: str, text: str):
    parts = parts_of(path, text)
    assert len(parts) > 1
    if path.startswith("/api/"):
        for part in parts[:-1]:
            checker.check(part, name, path)
        checker.check(parts[-1], name.replace("Line", "End"), path)
    elif name.endswith("Event"):
        for number, part in enumerate(parts):
            checker.check(part, part["type"], part["type"])
            assert part.get("sequence_number", number) == number
    else:
        check_chunks(checker, name, parts, "stream_options" in body)


def check_chunks(checker: FieldChecker, name: str, parts: list[Any], with_usage: bool) -> None:
    """Usage is null in all chunks but the last, which has no choices; without stream_options there
    is none."""
    for part in parts:
        checker.check(part, name, name)
    if with_usage:
        *parts, last = parts
        assert last["choices"] == []
        checker.check(last["usage"], "Usage")
        assert [part["usage"] for part in parts] == [None] * len(parts)
    else:
        assert not any("usage" in part for part in parts)
    ends = [one["finish_reason"] for part in parts for one in part["choices"]]
    assert ends.count(None) < len(ends) and all(part["choices"] for part in parts)


def check_answers(server: RunningServer, protocol: str) -> FieldChecker:
    """The checker after all answers of a protocol."""
    checker = FieldChecker()
    for path, body, name in CASES + ERRORS:
        if protocol_of(path) != protocol:
            continue
        response = server.post(path, body)
        assert response.is_success == (name not in FAILURES), response.text
        if name.endswith(("Event", "Chunk", "Line")):
            check_stream(checker, path, body, name, response.text)
        else:
            checker.check(response.json(), name, path)
    for path, shape in GETS:
        if protocol_of(path) == protocol:
            checker.check(server.get(path).json(), shape, path)
    return checker


def test_openais_objects_have_all_required_fields(server, monkeypatch):
    checker = check_answers(server, "openai")
    path = f"/v1/responses/{server.post('/v1/responses', RESPOND).json()['id']}"
    checker.check(server.get(path).json(), "Response", path)
    checker.check(server.get(f"{path}/input_items").json(), "ItemList", path)
    checker.check(server.client.delete(path).json(), "DeletedResponse", path)
    check_failure(server, checker, monkeypatch)
    assert OPENAI.keys() - checker.seen == set()


def check_failure(
    server: RunningServer, checker: FieldChecker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last events of a response that fails after it has begun."""
    engine = server.service.models.get("speaker").loaded.client.async_engine.engine
    run, steps = engine.runner.run, iter(range(1000))

    def fail_later(*arguments: Any) -> Any:
        if next(steps) > 2:
            raise RuntimeError("the step fails")
        return run(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(engine.runner, "run", fail_later)
        text = server.post("/v1/responses", RESPOND | {"stream": True}).text
    *_, error, failed = parts_of("/v1/responses", text)
    assert (error["type"], failed["type"]) == ("error", "response.failed")
    for part in (error, failed):
        checker.check(part, part["type"], part["type"])
    checker.check(failed["response"]["error"], "ResponseError")


def test_anthropics_objects_have_all_required_fields(server):
    assert ANTHROPIC.keys() - check_answers(server, "anthropic").seen == set()


def test_ollamas_objects_have_all_required_fields(server):
    assert OLLAMA.keys() - check_answers(server, "ollama").seen == set()


def test_libretranslates_objects_have_all_required_fields(server):
    assert LIBRETRANSLATE.keys() - check_answers(server, "libretranslate").seen == set()


@pytest.mark.parametrize(
    ("value", "shape", "message"),
    [
        ({"object": "list"}, "ModelList", "has no data"),
        ({"translatedText": 1}, "Translation", ".translatedText is 1"),
        ({"type": "image"}, "Block", "type is 'image'"),
        ([], [str, ...], "is \\[\\]"),
        (True, int, "is True"),
        (1, {True}, "is 1"),
        ("b", ({"a"}, None), "is 'b'"),
    ],
)
def test_the_checker_notices(value, shape, message):
    with pytest.raises(AssertionError, match=message):
        FieldChecker().check(value, shape)
