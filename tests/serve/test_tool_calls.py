"""Tool calls of three families through every chat protocol. The model has a token for each byte, so
calls are split everywhere; streamed parts join to the answer that is not streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.scripted import (
    HERMES_TEMPLATE,
    LLAMA3_TEMPLATE,
    MISTRAL_TEMPLATE,
    NAME,
    THINK_TEMPLATE,
    scripted_service,
)
from tests.serve.server import RunningServer, running

ARGUMENTS = '{"a": "\u00e9}\U0001f31e\\""}'
F, G = f'{{"name": "f", "arguments": {ARGUMENTS}}}', '{"name": "g", "arguments": {}}'
HERMES_F, HERMES_G = (f"<tool_call>{one}</tool_call>" for one in (F, G))
LLAMA_F, LLAMA_G = (one.replace("arguments", "parameters") for one in (F, G))
BAD = '{"name": "f", "arguments": {1}}'

Answer = tuple[str, list[tuple[str, str]]]
"""Text and calls."""

TWO: Answer = ("", [("f", ARGUMENTS), ("g", "{}")])
EMPTY: Answer = ("", [("g", "{}")])
AFTER_TEXT: Answer = ("Hi", [("f", ARGUMENTS), ("g", "{}")])

CASES: dict[str, tuple[str, dict[str, tuple[str, Answer]]]] = {
    "hermes": (
        HERMES_TEMPLATE,
        {
            "two": (HERMES_F + HERMES_G, TWO),
            "empty": (HERMES_G, EMPTY),
            "after text": (f"Hi{HERMES_F}{HERMES_G}", AFTER_TEXT),
            "malformed": (f"<tool_call>{BAD}</tool_call>", (f"<tool_call>{BAD}</tool_call>", [])),
        },
    ),
    "llama3": (
        LLAMA3_TEMPLATE,
        {
            "two": (f"{LLAMA_F}; {LLAMA_G}", TWO),
            "empty": (LLAMA_G, EMPTY),
            "after text": (f"Hi<|python_tag|>{LLAMA_F}; {LLAMA_G}", AFTER_TEXT),
            "malformed": (BAD, (BAD, [])),
        },
    ),
    "mistral": (
        MISTRAL_TEMPLATE,
        {
            "two": (f"[TOOL_CALLS][{F}, {G}]", TWO),
            "empty": ("[TOOL_CALLS]g[ARGS]{}", EMPTY),
            "after text": (f"Hi[TOOL_CALLS][{F}, {G}]", AFTER_TEXT),
            "malformed": (f"[TOOL_CALLS][{BAD}]", (f"[TOOL_CALLS][{BAD}]", [])),
        },
    ),
}
USER = {"role": "user", "content": "x"}
FUNCTIONS = [{"name": name, "parameters": {"type": "object"}} for name in "fg"]
TOOLS = [{"type": "function", "function": one} for one in FUNCTIONS]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER], "tools": TOOLS},
    "/v1/responses": {"input": "x", "tools": [{"type": "function", **one} for one in FUNCTIONS]},
    "/v1/messages": {
        "messages": [USER],
        "max_tokens": 400,
        "tools": [{"name": one["name"], "input_schema": one["parameters"]} for one in FUNCTIONS],
    },
    "/api/chat": {"messages": [USER], "tools": TOOLS},
}


class Speaker:
    """What the model of a server says next."""

    def __init__(self) -> None:
        self.text = ""

    def __call__(self, prompt: str) -> str:
        return self.text


@pytest.fixture(scope="module", params=CASES)
def family(request: pytest.FixtureRequest) -> Iterator[tuple[str, RunningServer, Speaker]]:
    speaker = Speaker()
    with running(scripted_service(speaker, CASES[request.param][0])) as server:
        yield request.param, server, speaker


def ask(server: RunningServer, path: str, is_streamed: bool, **more: Any) -> Answer:
    response = server.post(path, {"model": NAME, **BODIES[path], "stream": is_streamed, **more})
    assert response.status_code == 200, response.text
    if not is_streamed:
        return WHOLE[path](response.json())
    lines = [line.removeprefix("data: ") for line in response.text.split("\n")]
    return STREAMED[path]([json.loads(line) for line in lines if line.startswith("{")])


def chat_whole(value: Any) -> Answer:
    message = value["choices"][0]["message"]
    calls = [one["function"] for one in message.get("tool_calls", ())]
    assert value["choices"][0]["finish_reason"] == ("tool_calls" if calls else "stop")
    return message["content"] or "", [(one["name"], one["arguments"]) for one in calls]


def chat_streamed(parts: list[Any]) -> Answer:
    text, calls = "", dict[int, list[str]]()
    for part in parts:
        delta = part["choices"][0]["delta"]
        text += delta.get("content") or ""
        for call in delta.get("tool_calls", ()):
            function = call["function"]
            if "name" in function:
                assert call["id"] and call["index"] == len(calls)
                calls[call["index"]] = [function["name"], ""]
            calls[call["index"]][1] += function["arguments"]
    assert parts[-1]["choices"][0]["finish_reason"] == ("tool_calls" if calls else "stop")
    return text, [(name, arguments) for name, arguments in calls.values()]


def response_whole(value: Any) -> Answer:
    items = value["output"]
    texts = [part["text"] for one in items if one["type"] == "message" for part in one["content"]]
    calls = [one for one in items if one["type"] == "function_call"]
    return "".join(texts), [(one["name"], one["arguments"]) for one in calls]


def response_streamed(parts: list[Any]) -> Answer:
    text, calls = "", dict[str, list[str]]()
    for part in parts:
        if part["type"] == "response.output_text.delta":
            text += part["delta"]
        elif part["type"] == "response.output_item.added" and "call_id" in part["item"]:
            calls[part["item"]["id"]] = [part["item"]["name"], ""]
        elif part["type"] == "response.function_call_arguments.delta":
            calls[part["item_id"]][1] += part["delta"]
    return text, [(name, arguments) for name, arguments in calls.values()]


def message_whole(value: Any) -> Answer:
    texts = [one["text"] for one in value["content"] if one["type"] == "text"]
    calls = [one for one in value["content"] if one["type"] == "tool_use"]
    assert value["stop_reason"] == ("tool_use" if calls else "end_turn")
    return "".join(texts), [(one["name"], same_json(one["input"])) for one in calls]


def message_streamed(parts: list[Any]) -> Answer:
    text, calls = "", dict[int, list[str]]()
    for part in parts:
        if part["type"] == "content_block_start" and part["content_block"]["type"] == "tool_use":
            calls[part["index"]] = [part["content_block"]["name"], ""]
        elif part["type"] == "content_block_delta":
            text += part["delta"].get("text", "")
            if part["index"] in calls:
                calls[part["index"]][1] += part["delta"]["partial_json"]
    return text, [(name, same_json(json.loads(shown or "{}"))) for name, shown in calls.values()]


def ollama_whole(value: Any) -> Answer:
    message = value["message"]
    calls = [one["function"] for one in message.get("tool_calls", ())]
    return message["content"], [(one["name"], same_json(one["arguments"])) for one in calls]


def ollama_streamed(parts: list[Any]) -> Answer:
    answers = [ollama_whole(part) for part in parts]
    return "".join(text for text, _ in answers), [call for _, calls in answers for call in calls]


def same_json(value: Any) -> str:
    """Arguments that arrive as an object, in the spelling of ARGUMENTS."""
    return json.dumps(value, ensure_ascii=False)


WHOLE = {
    "/v1/chat/completions": chat_whole,
    "/v1/responses": response_whole,
    "/v1/messages": message_whole,
    "/api/chat": ollama_whole,
}
STREAMED = {
    "/v1/chat/completions": chat_streamed,
    "/v1/responses": response_streamed,
    "/v1/messages": message_streamed,
    "/api/chat": ollama_streamed,
}


@pytest.mark.parametrize("case", ["two", "empty", "after text", "malformed"])
def test_streamed_calls_join_to_the_calls_of_the_whole_answer(family, case):
    name, server, speaker = family
    speaker.text, expected = CASES[name][1][case]
    assert ask(server, "/v1/chat/completions", False) == expected
    assert ask(server, "/v1/chat/completions", True) == expected


@pytest.mark.parametrize("path", BODIES)
def test_every_protocol_has_the_same_calls(family, path):
    name, server, speaker = family
    for case in ("after text", "malformed"):
        speaker.text, expected = CASES[name][1][case]
        assert ask(server, path, False) == expected
        assert ask(server, path, True) == expected


SCHEMA = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
SCHEMA["additionalProperties"] = False  # type: ignore[assignment]
FORMATS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    },
    "/v1/responses": {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
    "/v1/messages": {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    "/api/chat": {"format": SCHEMA},
}


@pytest.mark.parametrize("path", BODIES)
def test_with_tools_and_a_format_the_answer_is_a_call_or_has_the_format(family, path):
    name, server, speaker = family
    call = f"[TOOL_CALLS][{G}]" if name == "mistral" else CASES[name][1]["empty"][0]
    for speaker.text, expected in [(call, EMPTY), ('{"a": 1}', ('{"a": 1}', []))]:
        for is_streamed in (False, True):
            assert ask(server, path, is_streamed, **FORMATS[path]) == expected


@pytest.mark.parametrize("is_strict", [False, True])
def test_with_tools_and_a_format_no_other_text_is_possible(family, is_strict):
    _, server, speaker = family
    tools = [{"type": "function", "function": {**one, "strict": is_strict}} for one in FUNCTIONS]
    path = "/v1/chat/completions"
    for speaker.text in ("Hello!", '{"a": 1}', '{"a": 2}'):
        more = {**FORMATS[path], "tools": tools, "seed": 1, "max_tokens": 60}
        response = server.post(path, {"model": NAME, **BODIES[path], **more})
        assert response.status_code == 200, response.text
        [choice] = response.json()["choices"]
        if not choice["message"].get("tool_calls") and choice["finish_reason"] == "stop":
            assert json.loads(choice["message"]["content"]) == {"a": 1}
        assert not (choice["message"]["content"] or "").startswith("Hello")


def test_a_format_and_tools_hold_after_reasoning():
    speaker = Speaker()
    with running(scripted_service(speaker, THINK_TEMPLATE)) as server:
        for text, expected in [(HERMES_G, EMPTY), ('{"a": 1}', ('{"a": 1}', []))]:
            speaker.text = f"<think>hm</think>{text}"
            path = "/v1/chat/completions"
            assert ask(server, path, False, **FORMATS[path]) == expected


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_call_that_a_stop_string_cuts_is_not_reported_as_complete(is_streamed):
    """The arguments of required calls are streamed as they arrive, so a part of them is there."""
    speaker = Speaker()
    with running(scripted_service(speaker)) as server:
        speaker.text = HERMES_G + HERMES_F
        more = {"stop": ["\u00e9"], "tool_choice": "required", "stream": is_streamed}
        path = "/v1/chat/completions"
        answer = server.post(path, {"model": NAME, **BODIES[path], **more})
        assert '"finish_reason":"stop"' in answer.text and "tool_calls" in answer.text
        assert '"finish_reason":"tool_calls"' not in answer.text
        path = "/v1/responses"
        answer = server.post(path, {"model": NAME, **BODIES[path], **more})
        value = answer.json() if not is_streamed else json.loads(answer.text.split("data: ")[-1])
        items = value["response"]["output"] if is_streamed else value["output"]
        assert [one["status"] for one in items] == ["completed", "incomplete"]
        more["stop"] = ["</tool_call>"]  # after the arguments
        speaker.text = HERMES_F
        path = "/v1/chat/completions"
        answer = server.post(path, {"model": NAME, **BODIES[path], **more})
        assert '"finish_reason":"tool_calls"' in answer.text


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "g"}}])
def test_a_format_beside_a_required_call_is_refused(choice):
    path = "/v1/chat/completions"
    with running(scripted_service(HERMES_G)) as server:
        for more in (FORMATS[path], {"structured_outputs": {"choice": ["a"]}}):
            body = {"model": NAME, **BODIES[path], **more, "tool_choice": choice}
            error = server.post(path, body).json()["error"]
            assert (
                "tool_choice demands a call, but the request also has a format" in error["message"]
            )
        both = {**FORMATS[path], "structured_outputs": {"choice": ["a"]}}
        error = server.post(path, {"model": NAME, **BODIES[path], **both}).json()["error"]
        assert "structured_outputs is set beside a response format" in error["message"]


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_complete_grammar_ends_a_text_without_end_tokens(is_streamed):
    path = "/v1/chat/completions"
    with running(scripted_service("yes")) as server:
        for more in ({"structured_outputs": {"choice": ["yes", "no"]}}, {"min_tokens": 9}):
            body = {**BODIES[path], "structured_outputs": {"choice": ["yes"]}, **more}
            body |= {"ignore_eos": True, "stream": is_streamed, "logprobs": True, "model": NAME}
            answer = server.post(path, body | {"stream_options": {"include_usage": True}})
            assert answer.status_code == 200, answer.text
            assert '"finish_reason":"stop"' in answer.text and "error" not in answer.text
            assert '"completion_tokens":3' in answer.text
        call = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
        body = {**BODIES[path], **call, "ignore_eos": True, "model": NAME, "seed": 3}
        answer = server.post(path, {**body, "stream": is_streamed, "max_tokens": 400})
        assert "error" not in answer.text, answer.text
        server.wait_idle()
