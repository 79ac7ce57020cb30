"""openai: the responses API. Arguments: the server's address."""

from __future__ import annotations

import json
import sys

import openai
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel
from received import Received, report

MODEL = "scripted"
TOOL = {
    "type": "function",
    "name": "weather",
    "description": "Weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class City(BaseModel):
    city: str


TYPES = {
    "/v1/responses": (Response, ResponseStreamEvent),
    "/v1/responses/*": (Response, None),
}


def create(client: OpenAI) -> None:
    whole = client.responses.create(model=MODEL, input="hello", instructions="Be brief.")
    assert whole.status == "completed" and whole.output_text
    with client.responses.stream(model=MODEL, input="hello", instructions="Be brief.") as stream:
        text = "".join(one.delta for one in stream if one.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == whole.output_text


def state(client: OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="hello")
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.create(model=MODEL, input="and again", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.input_tokens


def tools(client: OpenAI) -> None:
    for choice in ("auto", "required", {"type": "function", "name": "weather"}):
        asked = {"model": MODEL, "tools": [TOOL], "tool_choice": choice}
        whole = client.responses.create(**asked, input="Weather in Rome?")
        (call,) = [one for one in whole.output if one.type == "function_call"]
        assert json.loads(call.arguments) == {"city": "Rome"}, call
        with client.responses.stream(**asked, input="Weather in Rome?") as stream:
            parts = [e.delta for e in stream if e.type == "response.function_call_arguments.delta"]
        assert json.loads("".join(parts)) == {"city": "Rome"}
    answer = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    items = [{"role": "user", "content": "Weather in Rome?"}, call.to_dict(), answer]
    last = client.responses.create(model=MODEL, tools=[TOOL], input=items)
    assert last.output_text and all(one.type != "function_call" for one in last.output)


def schemas(client: OpenAI) -> None:
    parsed = client.responses.parse(model=MODEL, input="a city, as JSON", text_format=City)
    assert parsed.output_parsed == City(city="Rome")


CHECKS = [create, state, tools, schemas]


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
