"""What a test of a field sees: requests, answers, and checks of both (see field_probes.py).

Three models answer: `text` is random but far from uniform, `script` says `Hi!`, or calls if there
are tools, and `thinker` reasons first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.serve.scripted import ANSWER
from tests.serve.server import RunningServer
from weft.engine.request import GenerationRequest

CHAT, COMPLETE, EMBED = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
RESPOND, RESPOND_COUNT = "/v1/responses", "/v1/responses/input_tokens"
MESSAGE, MESSAGE_COUNT = "/v1/messages", "/v1/messages/count_tokens"
OLLAMA_CHAT, OLLAMA_GENERATE, OLLAMA_EMBED = "/api/chat", "/api/generate", "/api/embed"

SPECIAL = "<|im_start|>"
SCRIPT = f"Hi{SPECIAL}!"
CALL = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
TEMPLATE = (
    "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "({{ reasoning_effort }}{{ verbosity }}{{ enable_thinking }})"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}<|im_end|>\n{% endfor %}"
    + ANSWER
    + "{# <tool_call> #}"
)
THINKING_TEMPLATE = TEMPLATE + "{# </think> #}"
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
SECOND = {**FUNCTION, "name": "second"}
TOOLS = [{"type": "function", "function": FUNCTION}]
ANTHROPIC_TOOLS = [{"name": one["name"], "input_schema": {}} for one in (FUNCTION, SECOND)]
YES = {"enum": ["yes"]}
USER = [{"role": "user", "content": "the cat sat on the mat"}]
OTHER_USER = [{"role": "user", "content": "a dog"}]


def script(prompt: str) -> str:
    """What the model `script` says."""
    if "<tools>" in prompt:
        return CALL + CALL
    return SCRIPT


def thinking_script(prompt: str) -> str:
    """What the model `thinker` says."""
    return "<think>hm</think>Hi"


BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"model": "script", "messages": USER, "max_tokens": 120, "seed": 4},
    COMPLETE: {"model": "script", "prompt": "the cat sat on the mat", "seed": 4},
    EMBED: {"model": "encoder", "input": "the cat"},
    RESPOND: {"model": "script", "input": "the cat sat on the mat", "seed": 4},
    RESPOND_COUNT: {"model": "script", "input": "the cat"},
    MESSAGE: {"model": "script", "messages": USER, "max_tokens": 120},
    MESSAGE_COUNT: {"model": "script", "messages": USER},
    OLLAMA_CHAT: {"model": "script", "messages": USER, "stream": False, "options": {"seed": 4}},
    OLLAMA_GENERATE: {"model": "script", "prompt": "the cat", "stream": False},
    OLLAMA_EMBED: {"model": "encoder", "input": "the cat"},
    "/api/embeddings": {"model": "encoder", "prompt": "the cat"},
    "/api/show": {"model": "script"},
    "/translate": {"q": "the cat sat", "source": "en", "target": "de"},
    "/v1/rerank": {"model": "encoder", "query": "cat", "documents": ["a dog", "the cat"]},
    "/v1/score": {"model": "encoder", "text_1": "cat", "text_2": "the cat"},
    "/tokenize": {"model": "script", "prompt": "the cat"},
    "/detokenize": {"model": "script", "tokens": [70, 71]},
    "/v1/attention": {"id": "", "position": 1},
}


@dataclass(frozen=True)
class Answer:
    """A response, and what the engine was asked for."""

    response: httpx.Response
    requests: list[GenerationRequest]
    prompt: str
    """Text of the first request's prompt, special tokens included."""

    @property
    def json(self) -> Any:
        return self.response.json()

    @property
    def request(self) -> GenerationRequest:
        return self.requests[0]

    @property
    def text(self) -> str:
        """The generated text."""
        return "|".join(texts_of(self.json))

    @property
    def calls(self) -> int:
        """Number of tool calls."""
        found = list(objects(self.json))
        named = sum(one.get("type") in ("tool_use", "function_call") for one in found)
        older = sum("function_call" in one for one in found)
        return named + older + sum(len(one.get("tool_calls", ())) for one in found)

    @property
    def num_new(self) -> int:
        usage = self.json.get("usage", self.json)
        names = ("completion_tokens", "output_tokens", "eval_count")
        return next(usage[name] for name in names if name in usage)

    @property
    def num_cached(self) -> int:
        usage = self.json["usage"]
        for name in ("prompt_tokens_details", "input_tokens_details"):
            if name in usage:
                return usage[name]["cached_tokens"]
        return usage["cache_read_input_tokens"]


def texts_of(value: Any) -> Iterable[str]:
    """The texts of a response of any protocol."""
    for choice in value.get("choices", ()):
        yield choice["text"] if "text" in choice else choice["message"]["content"] or ""
    for item in value.get("output", ()):
        yield from (part["text"] for part in item.get("content", ()) if "text" in part)
    if isinstance(value.get("content"), list):
        yield from (block["text"] for block in value["content"] if block["type"] == "text")
    if "response" in value:
        yield value["response"]
    if "message" in value:
        yield value["message"]["content"]


Check = Callable[[Answer, Answer], Any]


@dataclass(frozen=True)
class Probe:
    """A value of a field, and how its effect is seen."""

    value: Any
    """Or a function of the server."""
    check: Check | None = None
    """(with the field, without it); None: the answers differ."""
    base: Mapping[str, Any] = field(default_factory=dict)
    """Changes of the body in both requests; None removes a field."""
    status: int = 200
    other_status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


def text_is(text: str) -> Check:
    return lambda seen, other: seen.text == text != other.text


def prompt_has(text: str) -> Check:
    return lambda seen, other: text in seen.prompt and text not in other.prompt


def same(seen: Answer, other: Answer) -> bool:
    """For fields of a prompt's count that are not part of a prompt."""
    return seen.json == other.json


def is_greedy(seen: Answer, other: Answer) -> bool:
    """For a protocol without seeds, whose other answers are random."""
    return bool(seen.text) and seen.text == greedy_texts[seen.prompt]


def becomes_greedy(seen: Answer, other: Answer) -> bool:
    return is_greedy(seen, other) and seen.text != other.text


greedy_texts: dict[str, str] = {}
"""Greedy continuations of the prompts of `text`, which the fixture computes."""


def num_new(count: int) -> Check:
    return lambda seen, other: seen.num_new == count != other.num_new


def is_other_namespace(seen: Answer, other: Answer) -> bool:
    return seen.num_cached == 0 and seen.request.salt != other.request.salt


def missing_model() -> Probe:
    return Probe("missing", lambda seen, other: "missing" in seen.response.text, status=404)


def streamed_text(seen: Answer, other: Answer) -> bool:
    """The same text in several parts."""
    kind = seen.response.headers["content-type"]
    lines = [line for line in seen.response.text.splitlines() if line.strip()]
    return kind.split(";")[0] in ("text/event-stream", "application/x-ndjson") and len(lines) > 3


def byte(text: str) -> Callable[[RunningServer], list[int]]:
    """The token ids of a text of the model `script`."""
    return lambda server: server.service.models.get("script").tokenizer.encode(text, False)


def has_logprobs(seen: Answer, other: Answer) -> bool:
    return '"logprob":' in seen.response.text and '"logprob":' not in other.response.text


def num_top(name: str, count: int) -> Check:
    """Each token has that many alternatives."""

    def check(seen: Answer, other: Answer) -> bool:
        found = [one for one in objects(seen.json) if name in one]
        return bool(found) and all(len(one[name]) == count for one in found)

    return check


def objects(value: Any) -> Iterable[Any]:
    """All objects in a JSON value."""
    if isinstance(value, dict):
        yield value
    for one in value.values() if isinstance(value, dict) else value:
        if isinstance(one, (dict, list)):
            yield from objects(one)


def stored_id(server: RunningServer) -> str:
    """The id of a response whose conversation has `earlier`."""
    answer = server.post(RESPOND, {**BODIES[RESPOND], "input": "earlier"})
    return answer.json()["id"]


def completion_id(server: RunningServer) -> str:
    return server.post(COMPLETE, {**BODIES[COMPLETE], "n": 2}).json()["id"]


def is_not_stored(seen: Answer, other: Answer) -> bool:
    paths = [f"{one.response.url}/{one.json['id']}" for one in (seen, other)]
    headers = {"x-api-key": seen.response.request.headers["x-api-key"]}
    return [httpx.get(path, headers=headers).status_code for path in paths] == [404, 200]


def renamed(probes: Mapping[str, Probe], **names: str) -> dict[str, Probe]:
    """Probes of a protocol that has other names for fields in the body of some of them."""

    def rename(base: Mapping[str, Any]) -> dict[str, Any]:
        return {names.get(name, name): value for name, value in base.items()}

    return {
        name: Probe(
            one.value, one.check, rename(one.base), one.status, one.other_status, one.headers
        )
        for name, one in probes.items()
    }
