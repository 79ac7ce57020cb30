"""anthropic: messages, streams, tools and count_tokens. Arguments: the server's address."""

from __future__ import annotations

import sys

import anthropic
from anthropic import Anthropic
from anthropic.types import Message, MessageTokensCount, RawMessageStreamEvent
from received import Received, report

MODEL = "scripted"
TOOL = {
    "name": "weather",
    "description": "Weather of a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
ASK = [{"role": "user", "content": "Weather in Rome?"}]
TYPES = {
    "/v1/messages": (Message, RawMessageStreamEvent),
    "/v1/messages/count_tokens": (MessageTokensCount, None),
}


def create(client: Anthropic) -> None:
    asked = {
        "model": MODEL,
        "max_tokens": 100,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
    }
    whole = client.messages.create(**asked)
    (block,) = whole.content
    assert whole.stop_reason == "end_turn" and block.type == "text" and block.text
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == block.text and final.usage.output_tokens == whole.usage.output_tokens
    cut = client.messages.create(**{**asked, "max_tokens": 3})
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 3


def tools(client: Anthropic) -> None:
    for choice in ({"type": "auto"}, {"type": "any"}, {"type": "tool", "name": "weather"}):
        asked = {"model": MODEL, "max_tokens": 200, "tools": [TOOL], "tool_choice": choice}
        whole = client.messages.create(**asked, messages=ASK)
        (call,) = [one for one in whole.content if one.type == "tool_use"]
        assert call.input == {"city": "Rome"} and whole.stop_reason == "tool_use", whole
        with client.messages.stream(**asked, messages=ASK) as stream:
            final = stream.get_final_message()
        assert [one.input for one in final.content if one.type == "tool_use"] == [call.input]
    answer = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    said = [one.to_dict() for one in whole.content]
    messages = [
        *ASK,
        {"role": "assistant", "content": said},
        {"role": "user", "content": [answer]},
    ]
    last = client.messages.create(model=MODEL, max_tokens=200, tools=[TOOL], messages=messages)
    assert last.stop_reason == "end_turn" and last.content[0].type == "text"


def count_tokens(client: Anthropic) -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=ASK, tools=[TOOL])
    message = client.messages.create(model=MODEL, max_tokens=1, messages=ASK, tools=[TOOL])
    usage = message.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def errors(client: Anthropic) -> None:
    try:
        client.messages.create(model="nobody", max_tokens=1, messages=ASK)
    except anthropic.NotFoundError as error:
        assert error.body["type"] == "error" and error.body["error"]["type"] == "not_found_error"
    else:
        raise AssertionError("an unknown model was accepted")


CHECKS = [create, tools, count_tokens, errors]


def main() -> None:
    received = Received(TYPES)
    http_client = anthropic.DefaultHttpxClient(event_hooks={"response": [received.record]})
    client = Anthropic(base_url=sys.argv[1], api_key="none", http_client=http_client, max_retries=0)
    for check in CHECKS:
        check(client)
    name = f"anthropic {anthropic.__version__}"
    report(received, [name, *(check.__name__ for check in CHECKS)])


if __name__ == "__main__":
    main()
