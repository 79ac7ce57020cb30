"""Messages and calls in the forms that OpenAI's clients send, older ones included."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.scripted import MISTRAL_TEMPLATE, NAME, scripted_service
from tests.serve.server import RunningServer, running
from weft.serve.api_errors import ApiError
from weft.serve.openai_messages import ChatMessage, chat_messages
from weft.serve.tool_formats import HermesFormat, MistralFormat

PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "How warm is it?"}
FUNCTION = {"name": "weather", "parameters": {"type": "object"}}
ARGUMENTS = '{"city": "Rome"}'
CALL = f'<tool_call>{{"name": "weather", "arguments": {ARGUMENTS}}}</tool_call>'
BODY: dict[str, Any] = {"model": NAME, "messages": [USER], "functions": [FUNCTION]}
HISTORY = [
    USER,
    {"role": "assistant", "content": None, "function_call": json.loads(CALL[11:-12])},
    {"role": "function", "name": "weather", "content": "21"},
]
HISTORY[1]["function_call"]["arguments"] = ARGUMENTS  # type: ignore[index]


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(scripted_service(CALL + CALL)) as one:
        yield one
        one.wait_idle()


def translated(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return chat_messages([ChatMessage(**one) for one in messages], HermesFormat())


def test_functions_are_answered_with_one_function_call(server):
    [choice] = server.post(PATH, BODY).json()["choices"]
    message = choice["message"]
    assert message["function_call"] == {"name": "weather", "arguments": ARGUMENTS}
    assert "tool_calls" not in message and message["content"] is None
    assert choice["finish_reason"] == "function_call"
    both = {**BODY, "tools": [{"type": "function", "function": {**FUNCTION, "name": "now"}}]}
    [choice] = server.post(PATH, both).json()["choices"]
    assert len(choice["message"]["tool_calls"]) == 2 and choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("choice", [None, "auto", {"name": "weather"}])
def test_streamed_deltas_of_functions_are_function_calls(server, choice):
    answer = server.post(PATH, {**BODY, "function_call": choice, "stream": True})
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if "{" in line]
    parts = [json.loads(line)["choices"][0] for line in lines]
    calls = [one["delta"]["function_call"] for one in parts if "function_call" in one["delta"]]
    assert calls[0] == {"name": "weather", "arguments": ""}
    assert "".join(one["arguments"] for one in calls) == ARGUMENTS
    assert not any("tool_calls" in one["delta"] for one in parts)
    assert parts[-1]["finish_reason"] == "function_call"


def test_a_history_with_function_calls_is_one_with_tool_calls(server):
    newer = [
        USER,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_" + "1".zfill(24),
                    "type": "function",
                    "function": {"name": "weather", "arguments": ARGUMENTS},
                }
            ],
        },
        {
            "role": "tool",
            "name": "weather",
            "tool_call_id": "call_" + "1".zfill(24),
            "content": "21",
        },
    ]
    assert translated(*HISTORY) == translated(*newer) == newer
    for messages in (HISTORY, newer):
        answer = server.post(PATH, {**BODY, "messages": messages})
        assert answer.status_code == 200, answer.text


def test_ids_of_older_calls_have_the_form_that_the_template_needs():
    messages = [ChatMessage(**one) for one in HISTORY]
    [_, call, result] = chat_messages(messages, MistralFormat())
    assert call["tool_calls"][0]["id"] == result["tool_call_id"] == "000000001"
    with running(scripted_service("x", MISTRAL_TEMPLATE)) as server:
        assert server.post(PATH, {**BODY, "messages": HISTORY}).status_code == 200


def test_a_refusal_is_text_of_the_assistant(server):
    refused = {"role": "assistant", "content": None, "refusal": "No."}
    assert translated(refused) == [{"role": "assistant", "content": "No."}]
    answer = server.post(PATH, {**BODY, "messages": [USER, refused, USER]})
    assert answer.status_code == 200, answer.text


def test_a_call_of_a_custom_tool_is_a_call_with_one_string(server):
    call = {"id": "c1", "type": "custom", "custom": {"name": "sh", "input": 'ls "\u00e9"'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    [made] = translated(message)[0]["tool_calls"]
    assert made["id"] == "c1" and made["type"] == "function"
    assert json.loads(made["function"]["arguments"]) == {"input": 'ls "\u00e9"'}
    result = {"role": "tool", "tool_call_id": "c1", "content": "x"}
    answer = server.post(PATH, {**BODY, "messages": [USER, message, result]})
    assert answer.status_code == 200, answer.text
    with pytest.raises(ApiError, match=r"messages\[0\].tool_calls has .* a custom call is"):
        translated({**message, "tool_calls": [{"type": "custom", "custom": {"name": "sh"}}]})


def test_the_tools_of_tokenize_may_have_all_forms_of_a_chat(server):
    tools = [
        {"type": "function", "name": "flat", "parameters": {}},
        {"type": "custom", "custom": {"name": "patch"}},
        {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read"}]},
        {"type": "web_search"},
    ]
    body = {"model": NAME, "messages": [USER], "tools": tools}
    answer = server.post("/tokenize", body)
    assert answer.status_code == 200, answer.text
    assert "'web_search' was dropped" in answer.headers["x-weft-warning"]
    usage = server.post(PATH, {**body, "max_tokens": 1}).json()["usage"]
    assert answer.json()["count"] == usage["prompt_tokens"]
