"""/v1/responses: the engine's own tokens as items and events, and conversations that are kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.engine.tiny import tiny
from tests.serve.scripted import HERMES_TEMPLATE, PLAIN_TEMPLATE, THINK_TEMPLATE, scripted_service
from tests.serve.server import RunningServer, make_service, running
from weft.engine.request import RequestOutput
from weft.serve.generation import ChoiceEvent, Generation
from weft.serve.response_items import input_items, messages_of

PATH = "/v1/responses"
BODY: dict[str, Any] = {"model": "chat", "input": "the cat", "max_output_tokens": 9, "seed": 4}
MESSAGE = {"role": "user", "content": "the cat"}
TOOLS = [
    {"type": "function", "name": "weather", "parameters": {"type": "object"}},
    {"type": "function", "name": "now"},
    {"type": "custom", "name": "patch", "description": "Apply a patch."},
    {"type": "web_search"},
]
TWO_CALLS = (
    'Let me see.<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
    '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    chat = replace(tiny("decoder", max_len=2000), chat_template=PLAIN_TEMPLATE)
    models = {"chat": chat, "plain": tiny("decoder")}
    with running(make_service(models, keys={"ann": "a", "bob": "b"})) as one:
        one.client.headers["authorization"] = "Bearer a"
        yield one


@pytest.fixture(scope="module")
def scripted() -> Iterator[Callable[..., RunningServer]]:
    """Servers by script and template, which are started once."""
    servers: dict[Any, Any] = {}

    def get(script: str, template: str = HERMES_TEMPLATE) -> RunningServer:
        if (script, template) not in servers:
            context = running(scripted_service(script, template))
            servers[script, template] = context, context.__enter__()
        return servers[script, template][1]

    yield get
    for context, _ in servers.values():
        context.__exit__(None, None, None)


def respond(server: RunningServer, **changes: Any) -> Any:
    answer = server.post(PATH, {**BODY, **changes})
    assert answer.status_code == 200, answer.text
    return answer.json()


def ask(server: RunningServer, **changes: Any) -> Any:
    """A request to the scripted model."""
    body = {"model": "scripted", "input": "How warm is it?", "tools": TOOLS, **changes}
    answer = server.post(PATH, body)
    assert answer.status_code == 200, answer.text
    return answer


def events(answer: Any) -> list[Any]:
    """The events of a stream; each has its type twice and a number."""
    parsed = []
    for number, part in enumerate(filter(None, answer.text.split("\n\n"))):
        head, data = part.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert head == f"event: {event['type']}" and event["sequence_number"] == number
        parsed.append(event)
    return parsed


def kinds(stream: list[Any]) -> list[str]:
    """Types of events without `response.`, repeated ones once."""
    names = [event["type"].removeprefix("response.") for event in stream]
    return [name for at, name in enumerate(names) if at == 0 or names[at - 1] != name]


def without_ids(items: list[Any]) -> list[Any]:
    """Items without random values."""
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]


def text_of(response: Any) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


def test_the_answer_is_the_engines_own(server):
    value = respond(server, metadata={"a": "b"}, instructions="Be short.", user="u")
    loaded = server.service.models.get("chat").loaded
    messages = [{"role": "system", "content": "Be short."}, MESSAGE]
    expected = "".join(loaded.chat(messages, 9, temperature=1.0, seed=4))
    (item,) = value["output"]
    assert item["content"] == [
        {"type": "output_text", "text": expected, "annotations": [], "logprobs": []}
    ]
    assert item["role"] == "assistant" and item["status"] == "incomplete"
    assert value["object"] == "response" and value["status"] == "incomplete"
    assert value["incomplete_details"] == {"reason": "max_output_tokens"}
    assert value["metadata"] == {"a": "b"} and value["instructions"] == "Be short."
    num_input = len(loaded.chat_ids(messages))
    assert value["usage"] == {
        "input_tokens": num_input,
        "input_tokens_details": {
            "cached_tokens": value["usage"]["input_tokens_details"]["cached_tokens"],
            "cache_write_tokens": 0,
        },
        "output_tokens": 9,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": num_input + 9,
    }
    server.wait_idle()


def test_a_stream_joins_to_the_whole_response(server):
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole = respond(server, **asked)
    stream = events(server.post(PATH, {**BODY, **asked, "stream": True}))
    assert kinds(stream) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "incomplete",
    ]
    assert stream[0]["response"]["status"] == "in_progress" and not stream[0]["response"]["output"]
    assert stream[2]["item"]["content"] == [] and stream[3]["part"]["text"] == ""
    deltas = [one for one in stream if one["type"] == "response.output_text.delta"]
    assert "".join(one["delta"] for one in deltas) == text_of(whole)
    logprobs = [entry for one in deltas for entry in one["logprobs"]]
    last = stream[-1]["response"]
    assert without_ids(last["output"]) == without_ids(whole["output"])
    assert logprobs == whole["output"][0]["content"][0]["logprobs"] and len(logprobs) == 9
    assert all(len(entry["top_logprobs"]) == 2 for entry in logprobs)
    assert last["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
    assert server.get(f"{PATH}/{last['id']}").json() == last


def test_two_turns_equal_one_conversation(server):
    first = respond(server, instructions="Be short.")
    second = respond(server, input="a dog", previous_response_id=first["id"])
    answer = {"role": "assistant", "content": text_of(first)}
    whole = respond(server, input=[MESSAGE, answer, {"role": "user", "content": "a dog"}])
    assert text_of(second) == text_of(whole)
    assert second["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    assert second["previous_response_id"] == first["id"] and second["instructions"] is None
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    again = respond(server, input=[MESSAGE, reference, {"role": "user", "content": "a dog"}])
    assert text_of(again) == text_of(whole)


def test_stored_responses_belong_to_a_key(server):
    value = respond(server)
    url = f"{PATH}/{value['id']}"
    bob = {"authorization": "Bearer b"}
    assert server.get(url).json() == value
    for answer in (
        server.get(url, headers=bob),
        server.get(f"{url}/input_items", headers=bob),
        server.client.delete(url, headers=bob),
        server.post(PATH, {**BODY, "previous_response_id": value["id"]}, headers=bob),
    ):
        assert answer.status_code == 404 and "is not stored" in answer.json()["error"]["message"]
    deleted = {"id": value["id"], "object": "response", "deleted": True}
    assert server.client.delete(url).json() == deleted
    assert server.get(url).status_code == 404
    value = respond(server, store=False)
    assert server.get(f"{PATH}/{value['id']}").status_code == 404 and value["store"] is False


def test_input_items_are_listed_by_pages(server):
    items = [{"role": "user", "content": str(number)} for number in range(5)]
    url = f"{PATH}/{respond(server, input=items)['id']}/input_items"
    newest = server.get(url, params={"limit": 2}).json()
    texts = [item["content"][0]["text"] for item in newest["data"]]
    assert texts == ["4", "3"] and newest["has_more"] and newest["object"] == "list"
    after = {"limit": 9, "order": "asc", "after": newest["last_id"]}
    rest = server.get(url, params=after).json()
    assert [item["content"][0]["text"] for item in rest["data"]] == ["4"] and not rest["has_more"]
    assert rest["first_id"] == rest["last_id"] == newest["first_id"]
    assert server.get(url, params={"after": "x"}).status_code == 400
    assert server.get(url, params={"limit": 0}).status_code == 400


def test_input_tokens_are_counted(server):
    body = {"model": "chat", "input": "the cat", "instructions": "Be short."}
    value = server.post(f"{PATH}/input_tokens", body).json()
    usage = respond(server, instructions="Be short.")["usage"]
    assert value == {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}


def test_two_calls_after_a_text(scripted):
    server = scripted(TWO_CALLS)
    answer = ask(server)
    assert "'web_search' was dropped" in answer.headers["x-weft-warning"]
    value = answer.json()
    message, first, second = value["output"]
    assert value["status"] == "completed" and message["content"][0]["text"] == "Let me see."
    assert without_ids([first, second]) == [
        {
            "status": "completed",
            "type": "function_call",
            "name": "weather",
            "arguments": '{"city": "Zürich"}',
        },
        {"status": "completed", "type": "function_call", "name": "now", "arguments": "{}"},
    ]
    assert first["call_id"] != second["call_id"]
    stream = events(ask(server, stream=True))
    assert without_ids(stream[-1]["response"]["output"]) == without_ids(value["output"])
    call = ["output_item.added", *(f"function_call_arguments.{end}" for end in ("delta", "done"))]
    assert kinds(stream)[7:] == ["output_item.done", *[*call, "output_item.done"] * 2, "completed"]
    for index, item in enumerate(value["output"][1:], 1):
        own = [one for one in stream if one.get("output_index") == index]
        assert "".join(one.get("delta", "") for one in own) == item["arguments"]
        assert own[0]["item"]["arguments"] == "" and own[0]["item"]["status"] == "in_progress"
        assert own[-1]["item"]["arguments"] == own[-2]["arguments"] == item["arguments"]
    server.wait_idle()


def test_results_of_calls_continue_a_response(scripted):
    server = scripted(TWO_CALLS)
    value = ask(server).json()
    calls = [item for item in value["output"] if item["type"] == "function_call"]
    results = [
        {"type": "function_call_output", "call_id": one["call_id"], "output": "21"} for one in calls
    ]
    second = ask(server, input=results, previous_response_id=value["id"]).json()
    chat_calls = [
        {"id": one["call_id"], "function": {"name": one["name"], "arguments": one["arguments"]}}
        for one in calls
    ]
    messages = [
        {"role": "user", "content": "How warm is it?"},
        {"role": "assistant", "content": "Let me see.", "tool_calls": chat_calls},
        *({"role": "tool", "tool_call_id": one["call_id"], "content": "21"} for one in calls),
    ]
    body = {"model": "scripted", "messages": messages, "tools": TOOLS}
    usage = server.post("/v1/chat/completions", body).json()["usage"]
    assert second["usage"]["input_tokens"] == usage["prompt_tokens"]
    items = server.get(f"{PATH}/{second['id']}/input_items", params={"order": "asc"}).json()
    assert [item["type"] for item in items["data"]] == [
        "message",
        "message",
        *["function_call"] * 2,
        *["function_call_output"] * 2,
    ]
    answer = server.post(PATH, {"model": "scripted", "input": results})
    assert answer.status_code == 400
    assert "but not the call itself" in answer.json()["error"]["message"]


def test_a_malformed_call_is_text(scripted):
    text = 'So: <tool_call>{"name": "weather", "arguments": {"city" "x"}}</tool_call>'
    server = scripted(text)
    assert text_of(ask(server).json()) == text
    stream = events(ask(server, stream=True))
    assert "".join(one.get("delta", "") for one in stream) == text
    assert text_of(stream[-1]["response"]) == text


def test_a_custom_tool_has_one_text(scripted):
    server = scripted('<tool_call>{"name": "patch", "arguments": {"input": "a\\nb"}}</tool_call>')
    value = ask(server).json()
    (item,) = value["output"]
    assert item["type"] == "custom_tool_call" and item["input"] == "a\nb"
    stream = events(ask(server, stream=True))
    assert kinds(stream)[3:5] == ["custom_tool_call_input.delta", "custom_tool_call_input.done"]
    result = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "done"}
    ask(server, input=[result], previous_response_id=value["id"])


def test_tools_of_a_namespace_have_it_in_their_calls(scripted):
    tools = [
        {"type": "function", "name": "read"},
        {
            "type": "namespace",
            "name": "files",
            "description": "Files",
            "tools": [{"type": "function", "name": "read"}, {"type": "custom", "name": "patch"}],
        },
    ]
    calls = ("files.read", {}), ("files.patch", {"input": "x"}), ("read", {})
    written = [json.dumps({"name": name, "arguments": given}) for name, given in calls]
    server = scripted("".join(f"<tool_call>{one}</tool_call>" for one in written))
    value = ask(server, tools=tools).json()
    names = [(one["type"], one.get("namespace"), one["name"]) for one in value["output"]]
    assert names == [
        ("function_call", "files", "read"),
        ("custom_tool_call", "files", "patch"),
        ("function_call", None, "read"),
    ]
    stream = events(ask(server, tools=tools, stream=True))
    streamed = stream[-1]["response"]["output"]
    assert [(one["type"], one.get("namespace"), one["name"]) for one in streamed] == names
    results = [
        {"type": f"{one['type']}_output", "call_id": one["call_id"], "output": "done"}
        for one in value["output"]
    ]
    kept = messages_of(input_items([*value["output"], *results], dict))
    assert [one["function"]["name"] for one in kept[0]["tool_calls"]] == [name for name, _ in calls]
    assert [one["name"] for one in kept[1:]] == [name for name, _ in calls]
    ask(server, input=results, previous_response_id=value["id"], tools=tools)


def test_choices_of_tools_limit_the_calls(scripted):
    server = scripted(TWO_CALLS)
    assert len(ask(server, parallel_tool_calls=False).json()["output"]) == 2
    assert text_of(ask(server, tool_choice="none").json()) == TWO_CALLS
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "now"}]}
    value = ask(server, tool_choice=allowed).json()
    assert [one["name"] for one in value["output"] if "name" in one] == ["now"]
    named = {"type": "function", "name": "now"}
    value = ask(server, tool_choice=named, max_output_tokens=200).json()
    assert value["output"][0]["name"] == "now" and value["tool_choice"] == named


def test_reasoning_is_an_item_of_its_own(scripted):
    script = "<think>\nHm, 世界.\n</think>\n\nYes 🙂."
    server = scripted(script, THINK_TEMPLATE)
    include = {"include": ["message.output_text.logprobs"]}
    value = ask(server, **include).json()
    reasoning, message = value["output"]
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm, 世界."}]
    assert message["content"][0]["text"] == "Yes 🙂." and reasoning["summary"] == []
    logprobs = message["content"][0]["logprobs"]
    assert bytes(sum((one["bytes"] for one in logprobs), [])).decode() == "Yes 🙂."
    assert value["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    stream = events(ask(server, stream=True, **include))
    assert kinds(stream)[2:8] == [
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
    ]
    assert without_ids(stream[-1]["response"]["output"]) == without_ids(value["output"])
    second = ask(server, previous_response_id=value["id"]).json()
    items = [{"role": "user", "content": "How warm is it?"}, reasoning, message]
    whole = ask(server, input=[*items, items[0]]).json()
    assert second["usage"]["input_tokens"] == whole["usage"]["input_tokens"]


def test_a_part_is_announced_without_the_logprobs_of_its_deltas(scripted):
    include = {"include": ["message.output_text.logprobs"]}
    stream = events(ask(scripted("Yes."), stream=True, **include))
    [added] = [one for one in stream if one["type"] == "response.content_part.added"]
    assert added["part"] == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    deltas = [one for one in stream if one["type"] == "response.output_text.delta"]
    assert sum(len(one["logprobs"]) for one in deltas) == 4


def test_system_messages_at_the_beginning_are_one(scripted):
    server = scripted("x", "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}")
    items = [{"role": "developer", "content": "b"}, {"role": "system", "content": "c"}, MESSAGE]
    value = ask(server, input=items, instructions="a", tools=[]).json()
    assert value["usage"]["input_tokens"] == 1 + len("system:a\n\nb\n\nc;user:the cat;")
    value = ask(server, input=[*items, items[0]], tools=[]).json()
    prompt = "developer:b\n\nc;user:the cat;developer:b;".replace("developer", "system")
    assert value["usage"]["input_tokens"] == 1 + len(prompt)


def test_the_text_may_be_json(scripted):
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    text = {"format": {"type": "json_schema", "name": "person", "schema": schema}}
    value = ask(scripted('{"age": 36}'), text=text, tools=[]).json()
    assert json.loads(text_of(value)) == {"age": 36} and value["text"] == text
    value = ask(scripted("[1]"), text={"format": {"type": "json_object"}}, tools=[]).json()
    assert text_of(value).lstrip().startswith("{")


def test_a_response_without_text_has_an_empty_message(scripted):
    value = ask(scripted("")).json()
    assert text_of(value) == "" and len(value["output"]) == 1 and value["status"] == "completed"


def test_effort_and_verbosity_are_variables_of_the_template(scripted):
    server = scripted("x", "{{ reasoning_effort }}/{{ verbosity }}/{{ messages[0].content }}")
    settings = {"reasoning": {"effort": "low"}, "text": {"verbosity": "high"}, "tools": []}
    value = ask(server, input="a", **settings).json()
    assert value["usage"]["input_tokens"] == 1 + len("low/high/a")
    assert value["reasoning"]["effort"] == "low" and value["text"]["verbosity"] == "high"


@pytest.mark.parametrize(
    "change, status, message",
    [
        ({"model": "chatt"}, 404, "model 'chatt' is not served here. Did you mean 'chat'"),
        ({"model": "plain"}, 400, "has no chat template"),
        (
            {"max_tokens": 5},
            400,
            "'max_tokens' is not a field of this request. Did you mean 'max_output",
        ),
        ({"background": True}, 400, "background is not supported"),
        ({"conversation": "conv_1"}, 400, "Use previous_response_id"),
        ({"prompt": {"id": "pmpt_1"}}, 400, "prompt is not supported"),
        ({"web_search_options": {"user_location": None}}, 400, "there is no web search"),
        ({"n": 2}, 400, "n is not supported"),
        ({"input": []}, 400, "input is empty"),
        ({"input": [{"type": "computer_call"}]}, 400, "input[0] is of type 'computer_call'"),
        ({"input": [{"role": "tool", "content": ""}]}, 400, "input[0].role is 'tool'"),
        ({"input": [{"role": "user"}]}, 400, "input[0].content is missing"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 400, "'input_image'"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, 404, "refers to item 'msg_1'"),
        ({"input": [{"type": "function_call"}]}, 400, "input[0].call_id is None"),
        ({"input": [{"type": "reasoning", "content": "x"}]}, 400, "a list of parts with text"),
        ({"previous_response_id": "resp_1"}, 404, "response 'resp_1' is not stored"),
        ({"text": {"format": {"type": "json_schema"}}}, 400, "add text.format.schema"),
        ({"tool_choice": "required"}, 400, "there are no tools"),
        ({"tools": [{"type": "namespace", "name": "x"}]}, 400, "tools[0] is a namespace"),
        ({"metadata": {str(n): "" for n in range(17)}}, 400, "metadata"),
        ({"input": "the cat " * 2000}, 400, "the model's context length is 2000"),
    ],
)
def test_a_wrong_request_is_one_sentence(server, change, status, message):
    for stream in (False, True):
        answer = server.post(PATH, {**BODY, **change, "stream": stream})
        error = answer.json()["error"]
        assert answer.status_code == status and message in error["message"], error
        assert set(error) == {"message", "type", "param", "code"}


def test_a_prompt_that_does_not_fit_names_the_field_with_it(server):
    error = server.post(PATH, {**BODY, "input": "the cat " * 2000}).json()["error"]
    assert error["param"] == "input" and error["code"] == "context_length_exceeded"


def test_a_failure_after_the_first_event_is_an_event(scripted, monkeypatch):
    server = scripted("Yes, it is.")
    events_of = Generation.events_of

    def fail_late(self: Generation, output: RequestOutput) -> list[ChoiceEvent]:
        if self.usage.completion_tokens == 5:
            output = replace(output, error="the weights are gone.")
        return events_of(self, output)

    monkeypatch.setattr(Generation, "events_of", fail_late)
    *first, error, failed = events(ask(server, stream=True))
    assert "".join(one.get("delta", "") for one in first) == "Yes, "
    assert error["type"] == "error"
    assert error["message"].startswith("the weights are gone. The request id is req_")
    assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["code"] == "server_error"
    assert server.get(f"{PATH}/{failed['response']['id']}").status_code == 404
    server.wait_idle()
