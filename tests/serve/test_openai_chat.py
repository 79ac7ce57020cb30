"""/v1/chat/completions: the engine's own tokens in OpenAI's shapes, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.engine.tiny import tiny
from tests.serve.server import RunningServer, make_service, running

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
BODY: dict[str, Any] = {
    "model": "gpt-4o",
    "messages": [{"role": "user", "content": "the cat"}],
    "max_tokens": 9,
    "seed": 4,
}
LONG = "don't " * 20_000


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    chat = replace(tiny("decoder", max_len=2000), chat_template=TEMPLATE)
    models = {"chat": chat, "plain": tiny("decoder"), "translator": tiny()}
    with running(make_service(models, aliases={"gpt-4o": "chat"})) as one:
        yield one


def chat(server: RunningServer, **changes: Any) -> Any:
    answer = server.post("/v1/chat/completions", {**BODY, **changes})
    assert answer.status_code == 200, answer.text
    return answer


def chunks(answer: Any) -> list[Any]:
    parts = [part[6:] for part in answer.text.split("\n\n") if part]
    assert parts[-1] == "[DONE]"
    return [json.loads(part) for part in parts[:-1]]


def test_the_answer_is_the_engines_own(server):
    value = chat(server).json()
    loaded = server.service.models.get("chat").loaded
    expected = "".join(loaded.chat(BODY["messages"], 9, temperature=1.0, seed=4))
    (choice,) = value["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": expected, "refusal": None},
        "logprobs": None,
        "finish_reason": "length",
    }
    assert value["object"] == "chat.completion" and value["model"] == "gpt-4o"
    usage = value["usage"]
    assert usage["prompt_tokens"] == len(loaded.chat_ids(BODY["messages"]))
    assert usage["total_tokens"] == usage["prompt_tokens"] + 9


def test_a_stream_joins_to_the_whole_answer(server):
    asked = {"n": 2, "logprobs": True, "top_logprobs": 2}
    whole = chat(server, **asked).json()
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    *parts, last = chunks(chat(server, **asked, **stream))
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 18
    assert all(
        part["usage"] is None and part["object"] == "chat.completion.chunk" for part in parts
    )
    for choice in whole["choices"]:
        own = [one["choices"][0] for one in parts if one["choices"][0]["index"] == choice["index"]]
        assert own[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
        text = "".join(one["delta"].get("content", "") for one in own)
        assert text == choice["message"]["content"]
        entries = [e for one in own if one["logprobs"] for e in one["logprobs"]["content"]]
        assert entries == choice["logprobs"]["content"] and len(entries) == 9
        assert all(bytes(entry["bytes"]) is not None for entry in entries)
        assert own[-1]["finish_reason"] == "length" and own[-1]["delta"] == {}
    server.wait_idle()


def test_content_may_be_parts_and_roles_have_older_names(server):
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "cat"}]
    one = chat(server, messages=[{"role": "user", "content": parts}]).json()
    assert one["choices"] == chat(server).json()["choices"]
    image = [{"type": "image_url", "image_url": {"url": "data:"}}]
    answer = server.post(
        "/v1/chat/completions", {**BODY, "messages": [{"role": "user", "content": image}]}
    )
    assert "messages[0].content[0] is of type 'image_url'" in answer.json()["error"]["message"]


def test_a_schema_makes_valid_json(server):
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    value = chat(server, response_format=wanted, max_tokens=200).json()
    assert json.loads(value["choices"][0]["message"]["content"])["a"] in (1, 2)
    assert value["choices"][0]["finish_reason"] == "stop"


def test_a_required_call_cannot_be_malformed(server):
    function = {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    }
    tools = {"tools": [{"type": "function", "function": function}], "tool_choice": "required"}
    more = {**tools, "parallel_tool_calls": False, "max_tokens": 300}
    answer = chat(server, **more)
    assert "no tools" in answer.headers["x-weft-warning"]
    (choice,) = answer.json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "tool_calls" and choice["message"]["content"] is None
    assert call["function"]["name"] == "weather" and call["id"].startswith("call_")
    assert json.loads(call["function"]["arguments"])["city"] in ("Rome", "Oslo")
    parts = [one["choices"][0] for one in chunks(chat(server, **more, stream=True))]
    deltas = [d for one in parts for d in one["delta"].get("tool_calls", ())]
    assert deltas[0]["function"]["name"] == "weather" and deltas[0]["index"] == 0
    joined = "".join(delta["function"]["arguments"] for delta in deltas)
    assert joined == call["function"]["arguments"]
    assert parts[-1]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    "change, message",
    [
        ({"model": "plain"}, "model 'plain' has no chat template"),
        ({"model": "translator"}, "is of kind encoder-decoder: this route needs"),
        ({"messages": []}, "messages"),
        (
            {"messages": [{"role": "robot", "content": "x"}]},
            "messages[0].role: input should be 'system'",
        ),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content is null"),
        ({"top_logprobs": 2}, "top_logprobs is 2, but logprobs is not true"),
        ({"tool_choice": "required"}, "there are no tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "names 'f'"),
        ({"audio": {"voice": "x"}}, "audio is not supported: answers are text"),
        ({"response_format": {"type": "json_schema"}}, "without a schema"),
        ({"max_token": 3}, "Did you mean 'max_tokens'"),
        ({"n": 1000}, "n: "),
    ],
)
def test_a_wrong_request_is_one_sentence(server, change, message):
    answer = server.post("/v1/chat/completions", {**BODY, **change})
    assert answer.status_code == 400 and message in answer.json()["error"]["message"], answer.text
    server.wait_idle()


@pytest.mark.parametrize(
    ("change", "param", "message"),
    [
        ({"n": 1000}, "n", "n: input should be less than or equal to 128 (it is 1000)."),
        ({"messages": []}, "messages", "messages: list should have at least 1 item"),
        (
            {"messages": [{"role": "robot", "content": "x"}]},
            "messages[0].role",
            "messages[0].role: input should be 'system'",
        ),
        (
            {"messages": [{"role": "user", "content": 7}]},
            "messages[0].content",
            "messages[0].content: input should be a valid string or a valid list (it is 7).",
        ),
        (
            {"response_format": {"type": "xml"}},
            "response_format.type",
            '(it is "xml").',
        ),
        ({"stop": ["a", 7]}, "stop[1]", "stop[1]: input should be a valid string (it is 7)."),
        ({"logit_bias": {"1": "x"}}, "logit_bias.1", "logit_bias.1: input should be a valid"),
    ],
)
def test_the_field_of_an_error_is_named_as_it_was_sent(server, change, param, message):
    """Not as FastAPI does: body.messages.0.role."""
    error = server.post("/v1/chat/completions", {**BODY, **change}).json()["error"]
    assert error["param"] == param and message in error["message"], error


@pytest.mark.parametrize(
    "change",
    [
        {"model": LONG},
        {LONG: 1},
        {"tool_choice": LONG},
        {"tool_choice": {"type": "function", "function": {"name": LONG}}},
        {"messages": [{"role": LONG, "content": "x"}]},
        {"messages": [{"role": "user", "content": [{"type": LONG}]}]},
        {"response_format": {"type": LONG}},
        {"structured_outputs": {"regex": "(" + LONG}},
    ],
)
def test_a_long_wrong_value_is_not_sent_back(server, change):
    """An error of 2 MB for a request of 2 MB, which the log had as well."""
    error = server.post("/v1/chat/completions", {**BODY, **change}).json()["error"]
    assert len(error["message"]) < 1100 and len(error["param"] or "") <= 200
    assert error["message"].endswith((".", ").")), error


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("response_format", {"response_format": {"type": "json_object"}}),
        ("tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        ("logprobs", {"logprobs": True}),
    ],
)
def test_a_beam_search_with_a_format_or_tools_is_refused(server, name, more):
    response = server.post("/v1/chat/completions", {**BODY, "use_beam_search": True, **more})
    assert response.status_code == 400, response.text
    assert f"{name} cannot be used with use_beam_search" in response.json()["error"]["message"]
