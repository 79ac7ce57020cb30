"""Valid HTTP requests, which are edited: those of tests/clients/bodies, and some for routes and
fields that no client there uses."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from fastapi.routing import APIRoute

from weft.serve.bodies import Body
from weft.serve.protocols import PROTOCOLS

BODIES = Path(__file__).parents[1] / "clients" / "bodies"
MODEL, TRANSLATOR, ENCODER = "scripted", "translator", "encoder"
LONG_TEXT = 30
"""Texts in bodies are cut to this many characters in most cases: long prompts take long."""
MAX_BODY = 200_000
"""Of the server; some cases send more."""

USER = [{"role": "user", "content": "a"}]
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
TOOL = {"type": "function", "function": FUNCTION}
TOOLS = [
    {"type": "function", **FUNCTION, "strict": True},
    {"type": "custom", "name": "c", "description": "d"},
    {"type": "namespace", "name": "n", "tools": [{"type": "function", **FUNCTION}]},
]
ALLOWED = {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "f"}]}}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
VARIABLES = {"chat_template_kwargs": {"enable_thinking": True, "eos_token": "", "a": {"b": [1]}}}
CALL_MESSAGES = [
    *({"role": "system", "content": "a"}, *USER),
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "r"},
    {"role": "tool", "tool_call_id": "c1", "name": "f", "content": [{"type": "text", "text": "5"}]},
]
CALL_ITEMS = [
    *({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},),
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "r"}]},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": "5"},
]
ITEMS = [{"type": "message", "id": "msg_1", "role": "user", "content": "a"}, {"id": "msg_1"}]
TEXT_FORMAT = {
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}
}
CALL_BLOCKS = [
    *({"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]},),
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "5"}]},
]
OLLAMA_CALLS = [
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": FUNCTION | {"arguments": {}}}],
    },
    {"role": "tool", "tool_name": "f", "content": "5"},
]

MORE_REQUESTS: list[tuple[str, str, Any]] = [
    ("POST", "/translate", {"q": ["a cat", "b"], "source": "en", "target": "de"}),
    ("POST", "/translate", {"q": "a", "source": "auto", "target": "de", "alternatives": 2}),
    ("POST", "/tokenize", {"model": MODEL, "content": "a", "with_pieces": True}),
    ("POST", "/tokenize", {"model": MODEL, "messages": [{"role": "user", "content": "a"}]}),
    ("POST", "/detokenize", {"model": MODEL, "tokens": [5, 6, 7]}),
    ("POST", "/v1/score", {"model": ENCODER, "text_1": "a cat", "text_2": ["a", "b"]}),
    ("POST", "/v1/embeddings", {"model": ENCODER, "input": [[5, 6], [7]], "dimensions": 3}),
    ("POST", "/v1/attention", {"id": "cmpl-1", "position": 2, "layer": 0}),
    ("POST", "/v1/responses/input_tokens", {"model": MODEL, "input": "a"}),
    ("POST", "/v1/completions", {"model": MODEL, "prompt": [5, 6], "n": 2, "logprobs": 2}),
    ("POST", "/v1/completions", {"model": MODEL, "prompt": "a", "use_beam_search": True}),
    ("POST", "/api/generate", {"model": TRANSLATOR, "prompt": "a cat", "stream": True}),
    ("POST", "/v1/chat/completions", {"model": MODEL, "messages": CALL_MESSAGES, "tools": [TOOL]}),
    ("POST", "/v1/chat/completions", {"model": MODEL, "messages": USER, "tools": TOOLS} | ALLOWED),
    ("POST", "/v1/chat/completions", {"model": MODEL, "messages": USER, "functions": [FUNCTION]}),
    ("POST", "/v1/chat/completions", {"model": MODEL, "messages": USER} | VARIABLES),
    ("POST", "/v1/responses", {"model": MODEL, "input": CALL_ITEMS, "tools": TOOLS}),
    ("POST", "/v1/responses", {"model": MODEL, "input": ITEMS, "store": True} | TEXT_FORMAT),
    ("POST", "/v1/messages", {"model": MODEL, "max_tokens": 5, "messages": CALL_BLOCKS}),
    ("POST", "/api/chat", {"model": MODEL, "messages": OLLAMA_CALLS, "think": False}),
    ("GET", "/v1/responses/resp_1/input_items?limit=2", None),
    ("DELETE", "/v1/responses/resp_1", None),
    ("GET", "/languages", None),
    ("GET", "/metrics", None),
    ("GET", "/openapi.json", None),
    ("GET", "/server_info", None),
]


@cache
def valid_requests() -> tuple[tuple[str, str, Any], ...]:
    """Method, path and body of the requests that are edited."""
    recorded = [
        (one.get("method", "POST"), one["path"], one.get("body"))
        for path in sorted(BODIES.glob("*.json"))
        for one in json.loads(path.read_text())["requests"]
    ]
    return (*recorded, *MORE_REQUESTS)


@cache
def field_names() -> tuple[str, ...]:
    """Fields of all bodies of the server."""
    routes = [route for router in PROTOCOLS.values() for route in router.routes]
    kinds = [
        one.field_info.annotation
        for route in routes
        if isinstance(route, APIRoute)
        for one in route.dependant.body_params
    ]
    bodies = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Body)]
    return tuple(sorted({name for body in bodies for name in body.model_fields}))
