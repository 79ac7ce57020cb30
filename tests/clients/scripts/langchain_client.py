"""langchain-openai: chat, tools, structured output and embeddings. Arguments: the address."""

from __future__ import annotations

import sys

import httpx
import langchain_openai
import tiktoken
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from openai_client import TYPES
from pydantic import BaseModel
from received import Received, report

MODEL = "scripted"
BYTES = tiktoken.Encoding(
    "bytes",
    pat_str=r"(?s).",
    mergeable_ranks={bytes([index]): index for index in range(256)},
    special_tokens={},
)
"""OpenAI's encodings would be downloaded."""


@tool
def weather(city: str) -> str:
    """Weather of a city."""
    return "sunny"


class City(BaseModel):
    """A city."""

    city: str


def chat(model: ChatOpenAI) -> None:
    whole = model.invoke("hello")
    assert whole.content and whole.usage_metadata["total_tokens"] > 0
    streamed = None
    for part in model.stream("hello", stream_usage=True):
        streamed = part if streamed is None else streamed + part
    assert streamed.content == whole.content
    assert streamed.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


def tools(model: ChatOpenAI) -> None:
    asked = HumanMessage("Weather in Rome?")
    bound = model.bind_tools([weather])
    message = bound.invoke([asked])
    assert arguments_of(message) == {"city": "Rome"}
    streamed = None
    for part in bound.stream([asked]):
        streamed = part if streamed is None else streamed + part
    assert arguments_of(streamed) == {"city": "Rome"}
    forced = model.bind_tools([weather], tool_choice="weather", strict=True).invoke([asked])
    assert arguments_of(forced) == {"city": "Rome"}
    answer = ToolMessage("sunny", tool_call_id=message.tool_calls[0]["id"])
    last = bound.invoke([asked, message, answer])
    assert last.content and not last.tool_calls


def arguments_of(message: AIMessage) -> object:
    (call,) = message.tool_calls
    assert call["name"] == "weather" and call["id"]
    return call["args"]


def schemas(model: ChatOpenAI) -> None:
    for method in ("json_schema", "function_calling", "json_mode"):
        parsed = model.with_structured_output(City, method=method).invoke("a city, as JSON")
        assert parsed == City(city="Rome"), method


def embeddings(options: dict[str, object]) -> None:
    tiktoken.get_encoding = tiktoken.encoding_for_model = lambda _: BYTES
    arrays = OpenAIEmbeddings(**options).embed_documents(["the cat", "a dog"])
    texts = OpenAIEmbeddings(**options, check_embedding_ctx_length=False)
    assert len(arrays) == 2 and len(arrays[0]) == len(texts.embed_query("the cat"))


def main() -> None:
    received = Received(TYPES)
    client = httpx.Client(event_hooks={"response": [received.record]})
    options = {"model": MODEL, "base_url": sys.argv[1] + "/v1", "api_key": "none"}
    options |= {"http_client": client, "max_retries": 0}
    model = ChatOpenAI(**options)
    chat(model)
    tools(model)
    schemas(model)
    embeddings(options)
    name = f"langchain-openai {langchain_openai.__version__}"
    report(received, [name, "chat", "tools", "schemas", "embeddings"])


if __name__ == "__main__":
    main()
