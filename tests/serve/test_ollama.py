"""Ollama's routes: the engine's own texts and vectors in Ollama's shapes, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
import torch

from tests.engine.tiny import tiny
from tests.serve.server import RunningServer, make_service, running
from weft.serve.api_errors import ApiError
from weft.serve.generation import ChoiceEvent, Generation
from weft.serve.ollama_fields import OllamaTextBody
from weft.serve.ollama_messages import CompleteCalls, openai_messages
from weft.serve.ollama_models import short_count
from weft.serve.output_parser import ToolCallDelta, ToolCallStart
from weft.serve.tool_formats import MistralFormat

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<|python_tag|>\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
THINKING = TEMPLATE + "{% if enable_thinking %}<think>{% else %}<think></think>{% endif %}"
MESSAGES = [{"role": "user", "content": "the cat"}]
OPTIONS = {"num_predict": 9, "seed": 4}
CHAT: dict[str, Any] = {"model": "chat", "messages": MESSAGES, "options": OPTIONS}
GENERATE: dict[str, Any] = {"model": "plain", "prompt": "the cat", "options": OPTIONS}
ARGUMENTS = {
    "type": "object",
    "properties": {"city": {"const": "Rome"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": ARGUMENTS}}
COUNTS = {"prompt_eval_count", "eval_count"}
DURATIONS = {"total_duration", "load_duration", "prompt_eval_duration", "eval_duration"}

DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
"""Ollama's own."""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    decoder = tiny("decoder", max_len=2000)
    models = {
        "chat": replace(decoder, chat_template=TEMPLATE),
        "thinker": replace(tiny("decoder", max_len=2000), chat_template=THINKING),
        "plain": tiny("decoder"),
        "translator": tiny(),
        "encoder": tiny("encoder"),
    }
    with running(make_service(models, aliases={"smollm2": "chat"})) as one:
        yield one


def whole(server: RunningServer, path: str, body: Any, **changes: Any) -> Any:
    answer = server.post(path, {**body, **changes, "stream": False})
    assert answer.status_code == 200, answer.text
    return answer.json()


def lines(server: RunningServer, path: str, body: Any, **changes: Any) -> list[Any]:
    """The objects of a streamed response; streaming is the default."""
    answer = server.post(path, {**body, **changes})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


def loaded(server: RunningServer, name: str) -> Any:
    return server.service.models.get(name).loaded


def check_last(value: Any, reason: str) -> None:
    """The last object has counts and plausible times."""
    assert value["done"] is True and value["done_reason"] == reason
    assert all(isinstance(value[name], int) for name in COUNTS | DURATIONS)
    parts = DURATIONS - {"total_duration"}
    assert value["total_duration"] + len(parts) >= sum(value[name] for name in parts)
    assert datetime.fromisoformat(value["created_at"]).tzinfo is not None


def test_a_chat_is_the_engines_own_text(server):
    value = whole(server, "/api/chat", CHAT)
    model = loaded(server, "chat")
    expected = "".join(model.chat(MESSAGES, 9, seed=4, **DEFAULTS))
    assert value["message"] == {"role": "assistant", "content": expected}
    assert value["model"] == "chat" and value["eval_count"] == 9
    assert value["prompt_eval_count"] == len(model.chat_ids(MESSAGES))
    assert set(value) == {"model", "created_at", "message", "done", "done_reason"} | (
        COUNTS | DURATIONS
    )
    check_last(value, "length")
    server.wait_idle()


@pytest.mark.parametrize("path, body", [("/api/chat", CHAT), ("/api/generate", GENERATE)])
def test_a_stream_joins_to_the_whole_text(server, path, body):
    asked = {"logprobs": True, "top_logprobs": 2}
    *parts, last = lines(server, path, body, **asked)
    value = whole(server, path, body, **asked)
    for part in parts:
        more = {"message"} if path == "/api/chat" else {"response"}
        assert set(part) == {"model", "created_at", "done", "logprobs"} | more
        assert part["done"] is False
    if path == "/api/chat":
        text = "".join(part["message"]["content"] for part in parts)
        assert text == value["message"]["content"]
        assert last["message"] == {"role": "assistant", "content": ""}
    else:
        text = "".join(part["response"] for part in parts)
        expected = loaded(server, "plain").generate("the cat", 9, seed=4, **DEFAULTS)
        assert text == value["response"] == expected
        assert last["response"] == ""
    assert [one for part in parts for one in part["logprobs"]] == value["logprobs"]
    assert len(value["logprobs"]) == 9
    for one in value["logprobs"]:
        assert set(one) == {"token", "logprob", "bytes", "top_logprobs"}
        assert len(one["top_logprobs"]) == 2
    check_last(last, "length")
    assert last["eval_count"] == value["eval_count"] == 9
    server.wait_idle()


def test_a_prompt_goes_into_the_chat_template(server):
    body = {**GENERATE, "model": "chat"}
    model = loaded(server, "chat")
    assert whole(server, "/api/generate", body)["response"] == "".join(
        model.chat(MESSAGES, 9, seed=4, **DEFAULTS)
    )
    system = {"role": "system", "content": "Be brief."}
    assert whole(server, "/api/generate", body, system="Be brief.")["response"] == "".join(
        model.chat([system, *MESSAGES], 9, seed=4, **DEFAULTS)
    )
    raw = whole(server, "/api/generate", body, raw=True)
    assert raw["response"] == model.generate("the cat", 9, seed=4, **DEFAULTS)
    answer = server.post("/api/generate", {**GENERATE, "stream": False, "system": "Be brief."})
    assert answer.headers["x-weft-warning"].startswith("system has no effect")


def test_special_tokens_of_a_raw_prompt_are_parsed(server):
    tokenizer = loaded(server, "chat").tokenizer
    begin = tokenizer.frame[0]
    prompt = tokenizer.token_bytes(begin)[0].decode() + "the cat"
    ids = tokenizer.encode(prompt, False, 100, parse_special=True)
    assert ids[0] == begin[0] and len(ids) < len(tokenizer.encode(prompt, False, 100))
    body = {**GENERATE, "model": "chat", "prompt": prompt, "raw": True}
    assert whole(server, "/api/generate", body)["prompt_eval_count"] == len(ids)


def test_a_translation_model_translates_the_prompt(server):
    body = {"model": "translator", "prompt": "the cat sat"}
    model = loaded(server, "translator")
    expected = model.translate(["the cat sat"], temperature=0.0)[0]
    *parts, last = lines(server, "/api/generate", body)
    assert "".join(part["response"] for part in parts) == expected
    value = whole(server, "/api/generate", body)
    assert value["response"] == expected
    assert value["prompt_eval_count"] == len(model.tokenizer.encode("the cat sat"))
    cut = whole(server, "/api/generate", body, options={"num_predict": 2})
    assert cut["eval_count"] <= 2
    check_last(last, value["done_reason"])
    server.wait_idle()


def test_the_last_message_of_the_assistant_is_continued(server):
    messages = [*MESSAGES, {"role": "assistant", "content": "a dog"}]
    value = whole(server, "/api/chat", CHAT, messages=messages)
    model = loaded(server, "chat")
    ids = model.request_builder.chat_ids(messages, continue_final_message=True)
    assert value["prompt_eval_count"] == len(ids)


def test_names_may_have_the_tag_latest(server):
    for name in ("chat:latest", "smollm2", "smollm2:latest"):
        value = whole(server, "/api/chat", CHAT, model=name)
        assert value["model"] == name
        assert value["message"] == whole(server, "/api/chat", CHAT)["message"]


@pytest.mark.parametrize(
    "path, body, keep_alive, reason",
    [
        ("/api/generate", {"model": "plain"}, None, "load"),
        ("/api/generate", {"model": "encoder", "prompt": ""}, "5m", "load"),
        ("/api/generate", {"model": "plain"}, 0, "unload"),
        ("/api/chat", {"model": "chat", "messages": []}, -1, "load"),
        ("/api/chat", {"model": "chat"}, "0s", "unload"),
    ],
)
def test_a_request_without_prompt_loads_the_model(server, path, body, keep_alive, reason):
    answer = server.post(path, {**body, "keep_alive": keep_alive})
    value = answer.json()
    assert answer.status_code == 200 and value["done"] is True
    assert value["done_reason"] == reason and value["model"] == body["model"]
    assert ("x-weft-warning" in answer.headers) == (reason == "unload")
    content = value["message"]["content"] if path == "/api/chat" else value["response"]
    assert content == ""


@pytest.mark.parametrize(
    "value, is_unload", [(0, True), ("0", True), ("0m", True), ("10m", False), (None, False)]
)
def test_keep_alive_of_zero_unloads(value, is_unload):
    assert OllamaTextBody(model="m", keep_alive=value).is_unload is is_unload


def test_the_text_follows_the_format(server):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}
    schema["additionalProperties"] = False
    options = {"seed": 4, "temperature": 0.5}
    for path, body in (("/api/chat", CHAT), ("/api/generate", {**GENERATE, "model": "chat"})):
        value = whole(server, path, body, format=schema, options=options)
        text = value["response"] if path == "/api/generate" else value["message"]["content"]
        assert json.loads(text)["n"] in (1, 2)
        assert value["done_reason"] == "stop"
    text = whole(server, "/api/chat", CHAT, format="json")["message"]["content"]
    assert text.lstrip().startswith("{")


def test_a_tool_call_is_sent_when_it_is_complete(server):
    # a format beside tools: the text is one call after the other, or has the format
    options = {"seed": 4, "num_predict": 250}
    body = {**CHAT, "tools": [TOOL], "format": {"const": "none"}, "options": options}
    value = whole(server, "/api/chat", body)
    made = value["message"]["tool_calls"]
    functions = [one["function"] for one in made]
    assert functions == [
        {"index": index, "name": "weather", "arguments": {"city": "Rome"}}
        for index in range(len(made))
    ]
    assert made and len({one["id"] for one in made}) == len(made)
    *parts, last = lines(server, "/api/chat", body)
    calls = [one["message"]["tool_calls"] for one in parts if "tool_calls" in one["message"]]
    assert [one["function"] for [one] in calls] == functions
    assert "".join(one["message"]["content"] for one in parts) == value["message"]["content"]
    check_last(last, value["done_reason"])


def test_calls_of_earlier_messages_get_ids(server):
    call = {"function": {"name": "weather", "arguments": {"city": "Rome"}}}
    other = {"function": {"name": "time", "arguments": {}}}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": "", "tool_calls": [call, other]},
        {"role": "tool", "content": "12:00", "tool_name": "time"},
        {"role": "tool", "content": "21"},
    ]
    *_, calling, first, second = openai_messages(messages, MistralFormat())
    ids = [one["id"] for one in calling["tool_calls"]]
    assert ids == ["000000001", "000000002"]
    assert first == {
        "role": "tool", "content": "12:00", "name": "time", "tool_call_id": ids[1]
    }  # fmt: skip
    assert second["tool_call_id"] == ids[0] and second["name"] == "weather"
    assert whole(server, "/api/chat", CHAT, messages=messages, tools=[TOOL])["done"]


def test_a_call_that_is_cut_off_is_left_out():
    calls = CompleteCalls()
    begin = [ToolCallStart(0, "a", "f"), ToolCallDelta(0, '{"x":')]
    assert calls.add(ChoiceEvent(0, begin)) == []
    then = [ToolCallDelta(0, " 1}"), ToolCallStart(1, "b", "g"), ToolCallDelta(1, "{")]
    [done] = calls.add(ChoiceEvent(0, then))
    assert done == {"id": "a", "function": {"index": 0, "name": "f", "arguments": {"x": 1}}}
    assert calls.take(is_end=True) == []


def test_thinking_is_apart_from_the_text(server):
    body = {**CHAT, "model": "thinker"}
    value = whole(server, "/api/chat", body, think=True)
    assert value["message"]["content"] == "" and value["message"]["thinking"]
    *parts, last = lines(server, "/api/chat", body, think="high")
    thinking = "".join(part["message"]["thinking"] for part in parts)
    assert thinking == value["message"]["thinking"]
    value = whole(server, "/api/chat", body, think=False)
    assert "thinking" not in value["message"] and value["message"]["content"]
    text = {**GENERATE, "model": "thinker"}
    assert whole(server, "/api/generate", text, think=True)["thinking"] == thinking


def test_fields_without_effect_are_named(server):
    body = {**GENERATE, "context": [1, 2], "template": "x", "shift": True, "stream": False}
    answer = server.post("/api/generate", {**body, "unknown": 1, "images": [], "suffix": ""})
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-weft-warning"].endswith("no effect here: shift, template, context")
    assert answer.json()["response"] == whole(server, "/api/generate", GENERATE)["response"]


def test_options_have_ollamas_names(server):
    greedy = {"num_predict": 6, "temperature": 0, "top_k": -1, "seed": -1, "num_ctx": 9, "x": 1}
    expected = loaded(server, "plain").generate("the cat", 6, temperature=0.0)
    assert whole(server, "/api/generate", GENERATE, options=greedy)["response"] == expected
    stop = {**greedy, "stop": expected[2:4]}
    value = whole(server, "/api/generate", GENERATE, options=stop)
    assert value["response"] == expected[: expected.index(expected[2:4])]
    assert value["done_reason"] == "stop"
    penalty = {**greedy, "repeat_penalty": 1.5}
    expected = loaded(server, "plain").generate(
        "the cat", 6, temperature=0.0, repetition_penalty=1.5
    )
    assert whole(server, "/api/generate", GENERATE, options=penalty)["response"] == expected
    value = whole(server, "/api/generate", GENERATE, options={"num_predict": -1, "seed": 4})
    assert value["prompt_eval_count"] + value["eval_count"] <= 40


@pytest.mark.parametrize(
    "path, change, status, message",
    [
        ("generate", {"model": "plane"}, 404, "model 'plane' is not served here. Did you mean"),
        ("generate", {"suffix": "x"}, 400, "suffix is not supported"),
        ("generate", {"images": ["aGk="]}, 400, "images is not supported"),
        ("generate", {"format": "xml"}, 400, "format is 'xml': it must be \"json\""),
        ("generate", {"prompt": "the cat " * 60}, 400, "the model's context length is 40"),
        ("generate", {"options": {"temperature": "hot"}}, 400, "temperature"),
        ("generate", {"options": {"temperature": -1}}, 400, "temperature is -1"),
        ("generate", {"top_logprobs": 21}, 400, "top_logprobs"),
        ("generate", {"model": "encoder"}, 400, "is of kind encoder"),
        ("generate", {"model": "translator", "prompt": "a " * 90}, 400, "context length is 40"),
        ("generate", {"think": True}, 400, "think is True, but the chat template"),
        ("chat", {"model": "plain"}, 400, "model 'plain' has no chat template"),
        ("chat", {"model": "translator"}, 400, "is of kind encoder-decoder"),
        ("chat", {"think": "high"}, 400, "think is 'high', but the chat template"),
        ("chat", {"messages": [{"role": "me", "content": "x"}]}, 400, "messages[0] has role 'me'"),
        (
            "chat",
            {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]},
            400,
            "messages[0].images is not supported",
        ),
        (
            "chat",
            {"messages": [{"role": "assistant", "tool_calls": [{"name": "f"}]}]},
            400,
            "messages[0].tool_calls has",
        ),
        ("chat", {"tools": [{"type": "function"}]}, 400, "tools[0] is"),
        ("embed", {"dimensions": 33}, 400, "dimensions is 33"),
        ("embed", {"input": "cat " * 90, "truncate": False}, 400, "the model reads 1 to 40"),
        ("show", {"model": None}, 400, "model is missing"),
        ("show", {"model": "x"}, 404, "model 'x' is not served here"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_wrong_request_is_one_sentence(server, path, change, status, message, stream):
    body = {"chat": CHAT, "generate": GENERATE, "embed": {"model": "encoder"}}.get(path, {})
    answer = server.post(f"/api/{path}", {**body, **change, "stream": stream})
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"} and message in answer.json()["error"]


def test_an_error_within_a_stream_is_a_line(server, monkeypatch):
    events_of, outputs = Generation.events_of, []

    def fail_later(self: Generation, output: Any) -> Any:
        outputs.append(output)
        if len(outputs) == 4:
            raise ApiError(500, "the engine stopped.")
        return events_of(self, output)

    monkeypatch.setattr(Generation, "events_of", fail_later)
    *parts, last = lines(server, "/api/chat", CHAT)
    assert parts and all(part["done"] is False for part in parts)
    assert last == {"error": "the engine stopped."}
    server.wait_idle()


def test_bodies_are_json_with_any_content_type(server):
    """As `curl -d` sends it."""
    content = json.dumps({**GENERATE, "stream": False})
    form = {"content-type": "application/x-www-form-urlencoded"}
    for headers in (form, {}):
        answer = server.client.post("/api/generate", content=content, headers=headers)
        assert answer.status_code == 200, answer.text
    answer = server.client.post("/api/generate", content="{", headers=form)
    assert answer.status_code == 400 and set(answer.json()) == {"error"}


def test_vectors_are_those_of_the_model(server):
    texts = ["the cat", "a dog ate two apples"]
    for name in ("encoder", "plain", "translator"):
        expected_BD = loaded(server, name).embed(texts)
        value = server.post("/api/embed", {"model": name, "input": texts}).json()
        assert set(value) == {
            "model", "embeddings", "total_duration", "load_duration", "prompt_eval_count"
        }  # fmt: skip
        assert torch.equal(torch.tensor(value["embeddings"]), expected_BD)
        one = server.post("/api/embed", {"model": name, "input": texts[0]}).json()
        assert one["embeddings"] == value["embeddings"][:1]
        older = server.post("/api/embeddings", {"model": name, "prompt": texts[0]}).json()
        assert older == {"embedding": value["embeddings"][0]}
    short = server.post("/api/embed", {"model": "plain", "input": texts, "dimensions": 8}).json()
    lengths = torch.tensor(short["embeddings"]).norm(dim=1)
    assert torch.tensor(short["embeddings"]).shape == (2, 8)
    torch.testing.assert_close(lengths, torch.ones(2))
    server.wait_idle()


def test_long_texts_are_truncated_and_counted(server):
    texts = ["cat " * 90, "the cat"]
    answer = server.post("/api/embed", {"model": "encoder", "input": texts})
    assert answer.headers["x-weft-truncated"] == "1"
    expected_BD = loaded(server, "encoder").embed(texts)
    assert torch.equal(torch.tensor(answer.json()["embeddings"]), expected_BD)


@pytest.mark.parametrize("empty", ["", [], None])
def test_no_text_has_no_vector(server, empty):
    value = server.post("/api/embed", {"model": "encoder", "input": empty}).json()
    assert value["embeddings"] == [] and value["prompt_eval_count"] == 0
    assert server.post("/api/embeddings", {"model": "encoder"}).json() == {"embedding": []}


def test_models_are_described(server):
    tags = server.get("/api/tags").json()["models"]
    names = ["chat", "thinker", "plain", "translator", "encoder", "smollm2"]
    assert [one["name"] for one in tags] == [f"{name}:latest" for name in names]
    running_models = server.get("/api/ps").json()["models"]
    assert len(running_models) == 5
    for one in [*tags, *running_models]:
        assert one["model"] == one["name"] and len(one["digest"]) == 64 and one["size"] > 1000
        assert one["details"]["quantization_level"] == "F32"
        assert set(one["details"]) == {
            "parent_model", "format", "family", "families", "parameter_size", "quantization_level"
        }  # fmt: skip
    assert all(datetime.fromisoformat(one["modified_at"]) for one in tags)
    assert len({one["digest"] for one in running_models}) == 5
    for one in running_models:
        assert one["size_vram"] == 0 and one["context_length"] in (40, 2000)
        assert datetime.fromisoformat(one["expires_at"]).year > 2100
    assert server.get("/api/version").json()["version"].count(".") == 2
    assert server.client.head("/api/tags").status_code == 200


def test_one_model_is_shown(server):
    value = server.post("/api/show", {"model": "smollm2:latest", "verbose": True}).json()
    assert value["template"] == TEMPLATE and TEMPLATE in value["modelfile"]
    assert value["capabilities"] == ["completion", "tools"]
    info = value["model_info"]
    count = sum(one.numel() for one in loaded(server, "chat").model.parameters())
    assert info["general.parameter_count"] == count
    assert info["general.architecture"] == "decoder"
    assert info["decoder.context_length"] == 2000 and info["decoder.embedding_length"] == 32
    assert value["details"]["parameter_size"] == short_count(count)
    kinds = {"thinker": ["completion", "tools", "thinking"], "encoder": ["embedding"]}
    for name, expected in {**kinds, "plain": ["completion"], "translator": ["completion"]}.items():
        assert server.post("/api/show", {"name": name}).json()["capabilities"] == expected


def test_counts_are_short():
    assert [short_count(n) for n in (7, 20_352, 134_515_008, 7_241_732_096)] == [
        "7", "20.4K", "134.5M", "7.2B"
    ]  # fmt: skip
