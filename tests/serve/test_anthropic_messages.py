"""/v1/messages and /v1/messages/count_tokens: the engine's own tokens in Anthropic's shapes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from pydantic_core import from_json

from tests.engine.tiny import tiny
from tests.serve.scripted import HERMES_TEMPLATE, THINK_TEMPLATE, scripted_service
from tests.serve.server import RunningServer, make_service, running
from weft.serve.limits import Limits

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
BODY: dict[str, Any] = {
    "model": "chat",
    "messages": [{"role": "user", "content": "the cat"}],
    "max_tokens": 9,
    "temperature": 0,
}
ROME = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
OSLO = '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>'
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"name": "weather", "description": "How warm it is.", "input_schema": SCHEMA}
ASK = {
    "model": "scripted",
    "messages": [{"role": "user", "content": "How warm is it?"}],
    "max_tokens": 500,
    "tools": [WEATHER],
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    chat = replace(tiny("decoder", max_len=2000), chat_template=TEMPLATE)
    models = {"chat": chat, "plain": tiny("decoder"), "translator": tiny()}
    with running(make_service(models, aliases={"claude-x": "chat"})) as one:
        yield one


@contextmanager
def scripted(script: Any, template: str = HERMES_TEMPLATE, **config: Any) -> Iterator[Any]:
    """A function that posts changes of ASK to a server whose model says the script."""
    with running(scripted_service(script, template, **config)) as one:

        def ask(path: str = "", headers: dict[str, str] | None = None, **changes: Any) -> Any:
            body = {**ASK, **changes}
            if path:  # a count has no such field
                del body["max_tokens"]
            answer = one.post(f"/v1/messages{path}", body, headers=headers)
            assert answer.status_code == 200, answer.text
            return answer

        yield ask
        one.wait_idle()


def events(answer: Any) -> list[dict[str, Any]]:
    """The data of the events, each of which is named by its type."""
    values = []
    for part in filter(None, answer.text.split("\n\n")):
        name, data = part.split("\n")
        values.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {values[-1]['type']}"
    return values


def assembled(answer: Any) -> dict[str, Any]:
    """The message that a client assembles from a stream, of which it checks the order."""
    first, *rest, delta, last = [one for one in events(answer) if one["type"] != "ping"]
    assert first["type"] == "message_start" and last == {"type": "message_stop"}
    assert first["message"]["content"] == [] and first["message"]["stop_reason"] is None
    blocks: list[dict[str, Any]] = []
    arguments, is_open = "", False
    for event in rest:
        if event["type"] == "content_block_start":
            assert not is_open and event["index"] == len(blocks)
            blocks.append(event["content_block"])
            arguments, is_open = "", True
            continue
        assert is_open and event["index"] == len(blocks) - 1
        if event["type"] == "content_block_stop":
            is_open = False
            if blocks[-1]["type"] == "tool_use":
                blocks[-1]["input"] = json.loads(arguments)
            continue
        change = event["delta"]
        if change["type"] == "input_json_delta":
            arguments += change["partial_json"]
        else:
            key = change["type"].removesuffix("_delta")
            blocks[-1][key] += change[key]
    assert not is_open and delta["type"] == "message_delta"
    return {**first["message"], "content": blocks, **delta["delta"], "usage": delta["usage"]}


def same(whole: dict[str, Any], streamed: dict[str, Any]) -> bool:
    """Whether two messages are equal but for ids and the cache."""

    def plain(message: dict[str, Any]) -> dict[str, Any]:
        content = [{**block, "id": ""} for block in message["content"]]
        usage = message["usage"]
        prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
        kept = {"output_tokens": usage["output_tokens"], "prompt": prompt}
        return {**message, "id": "", "content": content, "usage": kept}

    return plain(whole) == plain(streamed)


def test_the_message_is_the_engines_own(server):
    answer = server.post("/v1/messages?beta=true", {**BODY, "model": "claude-x"})
    loaded = server.service.models.get("chat").loaded
    value = answer.json()
    usage = value.pop("usage")
    assert value.pop("id").startswith("msg_")
    assert value == {
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": [{"type": "text", "text": "".join(loaded.chat(BODY["messages"], 9))}],
        "stop_reason": "max_tokens",
        "stop_sequence": None,
    }
    assert usage["input_tokens"] == len(loaded.chat_ids(BODY["messages"]))
    assert usage["output_tokens"] == 9 and usage["cache_creation_input_tokens"] == 0
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    server.wait_idle()


def test_a_stream_assembles_to_the_whole_message(server):
    answer = server.post("/v1/messages", {**BODY, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["request-id"].startswith("req_")
    assert same(server.post("/v1/messages", BODY).json(), assembled(answer))
    first = events(answer)[0]["message"]["usage"]
    assert first["output_tokens"] == 0 and first["input_tokens"] > 0


def test_system_prompts_and_blocks_are_joined(server):
    loaded = server.service.models.get("chat").loaded
    messages = [
        {"role": "system", "content": "one\ntwo"},
        {"role": "user", "content": "the cat\na dog\nsat"},
    ]
    cached = {"cache_control": {"type": "ephemeral"}}
    body = {
        **BODY,
        "system": [{"type": "text", "text": text, **cached} for text in ("one", "two")],
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": t, **cached} for t in ("the cat", "a dog")],
            },
            {"role": "user", "content": "sat"},
        ],
    }
    value = server.post("/v1/messages", body).json()
    assert value["content"][0]["text"] == "".join(loaded.chat(messages, 9))


def test_the_assistants_last_message_is_continued(server):
    served = server.service.models.get("chat")
    begun = [*BODY["messages"], {"role": "assistant", "content": "a dog"}]
    value = server.post("/v1/messages/count_tokens", {"model": "chat", "messages": begun}).json()
    ids = served.builder.chat_ids(begun, continue_final_message=True)
    assert value == {"input_tokens": len(ids)}


def test_reasoning_text_and_calls_are_blocks_in_their_order():
    script = f"<think>Hm, Rome.</think>Let me see.{ROME}\n{OSLO}"
    with scripted(script, THINK_TEMPLATE) as ask:
        whole = ask().json()
        ids = [block.get("id") for block in whole["content"]]
        assert whole["content"] == [
            {"type": "thinking", "thinking": "Hm, Rome.", "signature": ""},
            {"type": "text", "text": "Let me see."},
            {"type": "tool_use", "id": ids[2], "name": "weather", "input": {"city": "Rome"}},
            {"type": "tool_use", "id": ids[3], "name": "weather", "input": {"city": "Oslo"}},
        ]
        assert ids[2] != ids[3] and whole["stop_reason"] == "tool_use"
        assert whole["usage"]["output_tokens_details"]["thinking_tokens"] > 0
        answer = ask(stream=True)
        assert same(whole, assembled(answer))
        kinds = [
            one["delta"]["type"] for one in events(answer) if "delta" in one and "index" in one
        ]
        last_thought = len(kinds) - kinds[::-1].index("thinking_delta")
        assert kinds[last_thought] == "signature_delta"


@pytest.mark.parametrize(
    "choice, calls",
    [
        ({"type": "auto"}, ["Rome", "Oslo"]),
        ({"type": "any"}, ["Rome", "Oslo"]),
        ({"type": "auto", "disable_parallel_tool_use": True}, ["Rome"]),
        ({"type": "tool", "name": "weather", "disable_parallel_tool_use": True}, ["Rome"]),
        ({"type": "none"}, []),
    ],
)
def test_tool_choice_is_honored(choice, calls):
    with scripted(ROME + OSLO) as ask:
        for is_streamed in (False, True):
            answer = ask(tool_choice=choice, stream=is_streamed)
            value = assembled(answer) if is_streamed else answer.json()
            used = [one["input"]["city"] for one in value["content"] if one["type"] == "tool_use"]
            assert used == calls
            assert value["stop_reason"] == ("tool_use" if calls else "end_turn")


def test_a_call_that_max_tokens_cuts_has_the_complete_arguments():
    call = {"name": "weather", "arguments": {"days": 3, "city": "Reykjavik"}}
    text = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    properties = {"days": {"type": "integer"}, "city": {"type": "string"}}
    tool = {**WEATHER, "input_schema": {"type": "object", "properties": properties}}
    inputs = {"Reykja": {"days": 3}, '"days": 3,': {"days": 3}, '"da': {}}
    with scripted(text) as ask:
        for end, arguments in inputs.items():
            limit = text.index(end) + len(end)
            asked = {"tool_choice": {"type": "any"}, "max_tokens": limit, "tools": [tool]}
            value = ask(**asked).json()
            assert value["stop_reason"] == "max_tokens"
            (block,) = value["content"]
            assert block["name"] == "weather" and block["input"] == arguments
            parts = [one["delta"] for one in events(ask(**asked, stream=True)) if "delta" in one]
            streamed = "".join(one.get("partial_json", "") for one in parts)
            assert from_json(streamed or "{}", allow_partial=True) == arguments


def test_no_tokens_fill_the_cache_only():
    with scripted("ok") as ask:
        value = ask(max_tokens=0).json()
        assert value["content"] == [] and value["stop_reason"] == "max_tokens"
        assert value["usage"]["output_tokens"] == 0
        assert value["usage"]["cache_read_input_tokens"] == 0
        assert ask().json()["usage"]["cache_read_input_tokens"] > 0
        streamed = ask(max_tokens=0, stream=True)
        kinds = [one["type"] for one in events(streamed)]
        assert kinds == ["message_start", "message_delta", "message_stop"]
        assert same({**value, "id": ""}, {**assembled(streamed), "id": ""})


def test_hosted_tools_are_dropped_with_a_warning():
    hosted = [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]
    with scripted(ROME) as ask:
        answer = ask(tools=[*hosted, {**WEATHER, "type": "custom", "defer_loading": True}])
        assert "web_search_20250305" in answer.headers["x-weft-warning"]
        assert answer.json()["stop_reason"] == "tool_use"
        assert ask(tools=hosted).json()["content"] == [{"type": "text", "text": ROME}]


def test_a_warning_is_a_valid_header_whatever_the_client_has_sent():
    hosted = [{"type": "web\r\nx-forged: 1\x0e\xf6\u6211", "name": "search"}]
    with scripted(ROME) as ask:
        answer = ask(tools=hosted)
        assert answer.status_code == 200 and "x-forged" not in answer.headers
        assert "web??x-forged: 1???" in answer.headers["x-weft-warning"]


def test_a_stop_sequence_is_named():
    with scripted("one two three") as ask:
        value = ask(stop_sequences=[" three", "two"]).json()
        assert value["content"] == [{"type": "text", "text": "one "}]
        assert (value["stop_reason"], value["stop_sequence"]) == ("stop_sequence", "two")
        assert same(value, assembled(ask(stop_sequences=[" three", "two"], stream=True)))


def test_a_json_schema_constrains_the_answer():
    with scripted('{"city": "Rome"}') as ask:
        wanted = {"format": {"type": "json_schema", "schema": SCHEMA}}
        text = ask(output_config=wanted, tools=None).json()["content"][0]["text"]
        assert json.loads(text) == {"city": "Rome"}


def prompts_of(asking: Callable[[Any], None], template: str = HERMES_TEMPLATE) -> list[str]:
    """The prompts that reach the engine."""
    prompts: list[str] = []

    def script(prompt: str) -> str:
        prompts.append(prompt)
        return "ok"

    with scripted(script, template) as ask:
        asking(ask)
    return prompts


def test_a_conversation_with_tools_reaches_the_template():
    def block(kind: str, **values: Any) -> dict[str, Any]:
        return {"type": kind, **values}

    messages = [
        {"role": "user", "content": "How warm is it?"},
        {
            "role": "assistant",
            "content": [
                block("thinking", thinking="Hm.", signature="x"),
                block("redacted_thinking", data="secret"),
                block("text", text="Let me see."),
                block("tool_use", id="a", name="weather", input={"city": "Rome"}),
                block("tool_use", id="b", name="weather", input={"city": "Oslo"}),
            ],
        },
        {
            "role": "user",
            "content": [
                block("tool_result", tool_use_id="a", content=[block("text", text="21")]),
                block("tool_result", tool_use_id="b", content="no such city", is_error=True),
                block("text", text="And now?"),
            ],
        },
    ]
    template = (
        "\n{{ reasoning_effort }}{% for t in tools %}[{{ t.function.name }}]{% endfor %}"
        "{% for m in messages %}{{ '\n' + m.role }}|{{ m.reasoning_content }}|{{ m.content }}|"
        "{% for c in m.tool_calls or [] %}{{ c.id }}={{ c.function.arguments.city }},{% endfor %}"
        "{{ m.tool_call_id }}{{ m.name }}{% endfor %}{# <tool_call> #}"
    )
    effort = {"effort": "low"}
    (prompt,) = prompts_of(lambda ask: ask(messages=messages, output_config=effort), template)
    assert prompt.splitlines()[1:] == [
        "low[weather]",
        "user||How warm is it?|",
        "assistant|Hm.|Let me see.|a=Rome,b=Oslo,",
        "tool||21|aweather",
        "tool||Error: no such city|bweather",
        "user||And now?|",
    ]


@pytest.mark.parametrize("as_blocks", [False, True])
def test_billing_lines_do_not_defeat_the_prefix_cache(as_blocks):
    def system(number: int) -> Any:
        line, text = f"x-anthropic-billing-header: cc_version=2; cch={number};", "Be short. " * 9
        blocks = [{"type": "text", "text": line}, {"type": "text", "text": text}]
        return blocks if as_blocks else f"{line}\n{text}"

    with scripted("ok") as ask:
        counts = {ask("/count_tokens", system=system(n)).text for n in (1, 22, 333)}
        assert len(counts) == 1
        total = json.loads(counts.pop())["input_tokens"]
        first, second = (ask(system=system(n)).json()["usage"] for n in (1, 22))
        assert first["input_tokens"] == total
        assert second["cache_read_input_tokens"] > total - 9
        assert second["input_tokens"] + second["cache_read_input_tokens"] == total
    with scripted("ok", keep_billing_header=True) as ask:
        kept = {ask("/count_tokens", system=system(n)).json()["input_tokens"] for n in (1, 22)}
        assert len(kept) == 2 and min(kept) > total


@pytest.mark.parametrize(
    "change, status, kind, message",
    [
        ({"model": "chta"}, 404, "not_found_error", "Did you mean 'chat'?"),
        ({"model": "plain"}, 400, "invalid_request_error", "has no chat template"),
        ({"model": "translator"}, 400, "invalid_request_error", "is of kind encoder-decoder"),
        ({"max_tokens": None}, 400, "invalid_request_error", "max_tokens"),
        ({"max_token": 3}, 400, "invalid_request_error", "Did you mean 'max_tokens'?"),
        ({"messages": []}, 400, "invalid_request_error", "messages"),
        ({"temperature": -1}, 400, "invalid_request_error", "temperature"),
        ({"mcp_servers": [{"url": "x"}]}, 400, "invalid_request_error", "mcp_servers is not supp"),
        ({"container": "x"}, 400, "invalid_request_error", "the server executes no code"),
        ({"thread": {"type": "create"}}, 400, "invalid_request_error", "messages are not stored"),
        ({"tool_choice": {"type": "tool"}}, 400, "invalid_request_error", "without a name"),
        ({"tool_choice": {"type": "any"}}, 400, "invalid_request_error", "there are no tools"),
        ({"tool_choice": {"type": "auto", "nam": 1}}, 400, "invalid_request_error", "e.nam' is"),
        ({"output_config": {"fromat": {}}}, 400, "invalid_request_error", "'output_config.fromat'"),
        ({"tools": [{"name": "a b"}]}, 400, "invalid_request_error", "'a b'"),
        ({"system": [{"type": "image"}]}, 400, "invalid_request_error", "system[0] is of type 'im"),
    ],
)
def test_a_wrong_request_is_one_sentence(server, change, status, kind, message):
    answer = server.post("/v1/messages", {**BODY, **change})
    value = answer.json()
    assert answer.status_code == status and message in value["error"]["message"], value
    assert value["type"] == "error" and value["error"]["type"] == kind
    assert value["request_id"] == answer.headers["request-id"]


@pytest.mark.parametrize(
    "role, block, message",
    [
        ("user", {"type": "image", "source": {}}, "messages[0].content[0] is of type 'image'"),
        ("user", {"type": "document", "source": {}}, "is of type 'document'"),
        ("user", {"type": "tool_use", "id": "a", "name": "f"}, "a message of role user has none"),
        ("assistant", {"type": "tool_result"}, "a message of role assistant has none"),
        ("user", {"type": "tool_result"}, "tool_use_id is missing: a tool_result block has it"),
        ("assistant", {"type": "tool_use", "id": "a", "name": "f"}, "messages ends with tool_use"),
        ("user", {"type": "text"}, "text is missing"),
    ],
)
def test_a_wrong_block_is_named(server, role, block, message):
    body = {**BODY, "messages": [{"role": role, "content": [block]}]}
    answer = server.post("/v1/messages", body)
    assert answer.status_code == 400 and message in answer.json()["error"]["message"], answer.text


def test_a_client_that_uses_threads_continues_without_them(server):
    answer = server.post("/v1/messages", {**BODY, "thread": {"type": "create"}})
    assert answer.json()["error"]["details"] == {"error_code": "thread_unsupported_request"}


def test_fields_without_effect_are_accepted(server):
    extra = {
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "context_management": {"edits": []},
        "mcp_servers": [],
        "container": None,
        "cache_control": {"type": "ephemeral"},
        "speed": "fast",
    }
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "a,b", "x-api-key": "any"}
    answer = server.post("/v1/messages", {**BODY, **extra}, headers=headers)
    assert same(answer.json(), server.post("/v1/messages", BODY).json())


def test_pings_and_errors_are_events():
    def script(prompt: str) -> str:
        time.sleep(0.4)
        return "ok"

    with scripted(script, ping_seconds=0.05) as ask:
        kinds = [one["type"] for one in events(ask(stream=True))]
        assert kinds[:2] == ["ping", "ping"] and kinds[-1] == "message_stop"
        *_, last = events(ask(stream=True, headers={"x-request-timeout": "0.2"}))
        assert last["type"] == "error" and last["error"]["type"] == "timeout_error"


def test_overload_is_a_rate_limit_error():
    service = scripted_service("ok", limits=Limits(max_queued=0))
    with running(service) as one:
        answer = one.post("/v1/messages", {**BODY, "model": "scripted"})
        assert answer.status_code == 429
        assert answer.json()["type"] == "error"
        assert answer.json()["error"]["type"] == "rate_limit_error"
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert 1000 <= int(answer.headers["retry-after-ms"]) <= 60000


def test_keys_and_draining_have_anthropics_statuses():
    service = make_service(keys={"me": "secret"})
    with running(service) as one:
        answer = one.post("/v1/messages", BODY)
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "authentication_error"
        assert answer.headers["request-id"] == answer.json()["request_id"]
        service.is_draining = True
        answer = one.post("/v1/messages", BODY, headers={"x-api-key": "secret"})
        assert answer.status_code == 529
        assert answer.json()["error"]["type"] == "overloaded_error"
