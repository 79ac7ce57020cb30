"""openai: completions, chat, embeddings and models. Arguments: the server's address."""

from __future__ import annotations

import json
import sys
from typing import Literal

import openai
from openai import OpenAI
from openai.types import (
    Completion,
    CompletionChoice,
    CreateEmbeddingResponse,
    Embedding,
    Model,
)
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel
from received import Received, report

MODEL = "scripted"
ASK = [{"role": "user", "content": "Weather in Rome?"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


class City(BaseModel):
    city: str


class Base64Embedding(Embedding):
    """What the client asks for and decodes itself."""

    embedding: list[float] | str  # type: ignore[assignment]


class Embeddings(CreateEmbeddingResponse):
    data: list[Base64Embedding]  # type: ignore[assignment]


class PartialChoice(CompletionChoice):
    """OpenAI's server sends null before the end; the client's type is that of whole texts."""

    finish_reason: Literal["stop", "length", "content_filter"] | None  # type: ignore[assignment]


class PartialCompletion(Completion):
    choices: list[PartialChoice]  # type: ignore[assignment]


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[Model]


TYPES = {
    "/v1/chat/completions": (ChatCompletion, ChatCompletionChunk),
    "/v1/completions": (Completion, PartialCompletion),
    "/v1/embeddings": (Embeddings, None),
    "/v1/models": (ModelList, None),
    "/v1/models/*": (Model, None),
}


def completions(client: OpenAI) -> None:
    asked = {"model": MODEL, "prompt": "the cat", "max_tokens": 9, "seed": 1, "logprobs": 2}
    whole = client.completions.create(**asked)
    assert whole.usage.completion_tokens == 9 and whole.choices[0].finish_reason == "length"
    with client.completions.create(**asked, stream=True) as stream:
        text = "".join(part.choices[0].text for part in stream)
    assert text == whole.choices[0].text
    several = client.completions.create(model=MODEL, prompt=["a", "b"], n=2, max_tokens=3)
    assert [one.index for one in several.choices] == [0, 1, 2, 3]


def chat(client: OpenAI) -> None:
    hello = [{"role": "user", "content": "hello"}]
    whole = client.chat.completions.create(
        model=MODEL, messages=hello, logprobs=True, top_logprobs=2, n=2
    )
    text = whole.choices[0].message.content
    assert text and whole.choices[0].finish_reason == "stop" and len(whole.choices) == 2
    assert whole._request_id and whole.usage.total_tokens > 0
    with client.chat.completions.stream(
        model=MODEL, messages=hello, stream_options={"include_usage": True}
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == text
    assert final.usage.completion_tokens * 2 == whole.usage.completion_tokens


def tools(client: OpenAI) -> None:
    for choice in ("auto", "required", {"type": "function", "function": {"name": "weather"}}):
        asked = {"model": MODEL, "messages": ASK, "tools": [TOOL], "tool_choice": choice}
        message = client.chat.completions.create(**asked).choices[0].message
        assert arguments_of(message) == {"city": "Rome"}, message
        with client.chat.completions.stream(**asked) as stream:
            kinds = {event.type for event in stream}
            streamed = stream.get_final_completion().choices[0].message
        assert "tool_calls.function.arguments.delta" in kinds, kinds
        assert arguments_of(streamed) == {"city": "Rome"}
    answer = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    messages = [*ASK, message.to_dict(), answer]
    last = client.chat.completions.create(model=MODEL, messages=messages, tools=[TOOL])
    assert last.choices[0].finish_reason == "stop" and last.choices[0].message.tool_calls is None


def arguments_of(message: object) -> object:
    (call,) = message.tool_calls
    assert call.function.name == "weather" and call.id
    return json.loads(call.function.arguments)


def schemas(client: OpenAI) -> None:
    ask = [{"role": "user", "content": "a city, as JSON"}]
    parsed = client.chat.completions.parse(model=MODEL, messages=ask, response_format=City)
    assert parsed.choices[0].message.parsed == City(city="Rome")
    with client.chat.completions.stream(model=MODEL, messages=ask, response_format=City) as stream:
        stream.until_done()
        final = stream.get_final_completion()
    assert final.choices[0].message.parsed == City(city="Rome")
    plain = client.chat.completions.create(
        model=MODEL, messages=ask, response_format={"type": "json_object"}
    )
    assert json.loads(plain.choices[0].message.content) == {"city": "Rome"}


def embeddings(client: OpenAI) -> None:
    decoded = client.embeddings.create(model=MODEL, input=["the cat", "a dog"])
    plain = client.embeddings.create(
        model=MODEL, input=["the cat", "a dog"], encoding_format="float"
    )
    for one, other in zip(decoded.data, plain.data, strict=True):
        assert len(one.embedding) == len(other.embedding)
        for a, b in zip(one.embedding, other.embedding, strict=True):
            assert abs(a - b) < 1e-6
    short = client.embeddings.create(model=MODEL, input=[97, 98, 99], dimensions=5)
    assert len(short.data) == 1 and len(short.data[0].embedding) == 5


def models(client: OpenAI) -> None:
    names = [one.id for one in client.models.list()]
    assert MODEL in names and client.models.retrieve(MODEL).id == MODEL


def errors(client: OpenAI) -> None:
    try:
        client.chat.completions.create(model="nobody", messages=ASK)
    except openai.NotFoundError as error:
        assert error.code is None or isinstance(error.code, str)
        assert error.type and "nobody" in error.message
    else:
        raise AssertionError("an unknown model was accepted")
    try:
        client.chat.completions.create(model=MODEL, messages=ASK, extra_body={"temprature": 1})
    except openai.BadRequestError as error:
        assert error.param == "temprature" and "'temperature'" in error.message
    else:
        raise AssertionError("an unknown field was accepted")


CHECKS = [completions, chat, tools, schemas, embeddings, models, errors]


def main() -> None:
    received = Received(TYPES)
    http_client = openai.DefaultHttpxClient(event_hooks={"response": [received.record]})
    client = OpenAI(
        base_url=sys.argv[1] + "/v1", api_key="none", http_client=http_client, max_retries=0
    )
    for check in CHECKS:
        check(client)
    report(received, [f"openai {openai.__version__}", *(check.__name__ for check in CHECKS)])


if __name__ == "__main__":
    main()
