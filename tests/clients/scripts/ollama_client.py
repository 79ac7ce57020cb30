"""ollama: chat, generate, embed, show, ps and list. Arguments: the server's address."""

from __future__ import annotations

import json
import sys

import ollama
from ollama import (
    ChatResponse,
    Client,
    EmbedResponse,
    GenerateResponse,
    ListResponse,
    ProcessResponse,
    ShowResponse,
)
from received import Received, report

MODEL = "scripted"
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
ASK = [{"role": "user", "content": "Weather in Rome?"}]
TYPES = {
    "/api/chat": (ChatResponse, ChatResponse),
    "/api/generate": (GenerateResponse, GenerateResponse),
    "/api/embed": (EmbedResponse, None),
    "/api/show": (ShowResponse, None),
    "/api/ps": (ProcessResponse, None),
    "/api/tags": (ListResponse, None),
}


def chat(client: Client) -> None:
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
    whole = client.chat(**asked, options={"temperature": 0, "num_ctx": 2048})
    assert whole.done and whole.done_reason == "stop" and whole.message.content
    parts = list(client.chat(**asked, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert parts[-1].done and parts[-1].eval_count == whole.eval_count
    wanted = {"model": MODEL, "messages": [{"role": "user", "content": "a city, as JSON"}]}
    for form in (SCHEMA, "json"):
        text = client.chat(**wanted, format=form).message.content
        assert json.loads(text) == {"city": "Rome"}


def tools(client: Client) -> None:
    whole = client.chat(model=MODEL, messages=ASK, tools=[TOOL])
    (call,) = whole.message.tool_calls
    assert call.function.name == "weather" and call.function.arguments == {"city": "Rome"}
    parts = list(client.chat(model=MODEL, messages=ASK, tools=[TOOL], stream=True))
    calls = [one for part in parts for one in part.message.tool_calls or ()]
    assert [one.function.arguments for one in calls] == [{"city": "Rome"}]
    answer = {"role": "tool", "tool_name": "weather", "content": "sunny"}
    last = client.chat(model=MODEL, messages=[*ASK, whole.message, answer], tools=[TOOL])
    assert last.message.content and not last.message.tool_calls


def generate(client: Client) -> None:
    whole = client.generate(MODEL, "hello", options={"num_predict": 5})
    assert whole.done_reason == "length" and whole.eval_count == 5
    parts = client.generate(MODEL, "hello", options={"num_predict": 5}, stream=True)
    assert "".join(part.response for part in parts) == whole.response


def embed(client: Client) -> None:
    several = client.embed(MODEL, ["the cat", "a dog"])
    (one,) = client.embed(MODEL, "the cat").embeddings
    assert len(several.embeddings) == 2 and len(one) == len(several.embeddings[0])


def models(client: Client) -> None:
    assert any(one.model.startswith(MODEL) for one in client.list().models)
    assert any(one.model.startswith(MODEL) for one in client.ps().models)
    shown = client.show(MODEL)
    assert "completion" in shown.capabilities and "tools" in shown.capabilities


def errors(client: Client) -> None:
    try:
        client.chat("nobody", ASK)
    except ollama.ResponseError as error:
        assert error.status_code == 404 and "nobody" in error.error
    else:
        raise AssertionError("an unknown model was accepted")


CHECKS = [chat, tools, generate, embed, models, errors]


def main() -> None:
    received = Received(TYPES, is_complete=False)
    client = Client(sys.argv[1], event_hooks={"response": [received.record]})
    for check in CHECKS:
        check(client)
    report(received, ["ollama", *(check.__name__ for check in CHECKS)])


if __name__ == "__main__":
    main()
