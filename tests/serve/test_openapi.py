"""/openapi.json describes every route: bodies with the names and bounds of this server, responses
that real ones match strictly, and errors in the shape of each protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.routing import APIRoute
from pydantic import TypeAdapter

from tests.serve.server import RunningServer, make_service, running
from tests.soak.malformed_http import MalformedServer
from weft.core.errors import DataError
from weft.serve.api_errors import error_status, protocol_of
from weft.serve.api_route import ERROR_STATUSES, ApiRoute
from weft.serve.app import create_app
from weft.serve.context import Service
from weft.serve.protocols import PROTOCOLS
from weft.serve.responses import ERROR_BODIES
from weft.serve.served_model import ModelRegistry

USER = [{"role": "user", "content": "a"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
TEXT = {"model": "scripted", "prompt": "a", "max_tokens": 3}
CHAT = {"model": "scripted", "messages": USER, "max_tokens": 4}
REQUESTS: list[tuple[str, str, Any]] = [
    ("POST", "/v1/chat/completions", CHAT),
    ("POST", "/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2, "n": 2}),
    ("POST", "/v1/chat/completions", CHAT | {"prompt_logprobs": 1}),
    ("POST", "/v1/chat/completions", CHAT | {"tools": [TOOL], "tool_choice": "required"}),
    ("POST", "/v1/completions", TEXT),
    ("POST", "/v1/completions", TEXT | {"logprobs": 2, "echo": True, "prompt_logprobs": 1}),
    ("POST", "/v1/completions", TEXT | {"use_beam_search": True, "n": 2}),
    ("POST", "/v1/embeddings", {"model": "encoder", "input": ["a", "b"]}),
    ("POST", "/v1/embeddings", {"model": "encoder", "input": "a", "encoding_format": "base64"}),
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/{name}", "scripted"),
    ("POST", "/v1/responses", {"model": "scripted", "input": "a", "max_output_tokens": 2}),
    ("POST", "/v1/responses/input_tokens", {"model": "scripted", "input": "a"}),
    ("GET", "/v1/responses/{response_id}", "stored"),
    ("GET", "/v1/responses/{response_id}/input_items", "stored"),
    ("DELETE", "/v1/responses/{response_id}", "stored"),
    ("POST", "/v1/messages", CHAT),
    ("POST", "/v1/messages", CHAT | {"tools": [{"name": "f"}], "tool_choice": {"type": "any"}}),
    ("POST", "/v1/messages/count_tokens", {"model": "scripted", "messages": USER}),
    ("POST", "/api/chat", {"model": "scripted", "messages": USER, "stream": False}),
    ("POST", "/api/chat", {"model": "scripted"}),
    ("POST", "/api/generate", {**TEXT, "stream": False, "logprobs": True, "top_logprobs": 1}),
    ("POST", "/api/generate", {"model": "translator", "prompt": "a cat", "stream": False}),
    ("POST", "/api/embed", {"model": "encoder", "input": "a"}),
    ("POST", "/api/embeddings", {"model": "encoder", "prompt": "a"}),
    ("POST", "/api/show", {"model": "scripted"}),
    ("GET", "/api/tags", None),
    ("GET", "/api/ps", None),
    ("GET", "/api/version", None),
    ("POST", "/v1/rerank", {"model": "encoder", "query": "a", "documents": ["b"]}),
    ("POST", "/v1/score", {"model": "encoder", "text_1": "a", "text_2": "b"}),
    ("POST", "/tokenize", {"model": "scripted", "content": "a", "with_pieces": True}),
    ("POST", "/detokenize", {"model": "scripted", "tokens": [5]}),
    ("POST", "/translate", {"q": ["a"], "source": "auto", "target": "de", "alternatives": 1}),
    ("GET", "/languages", None),
    ("POST", "/v1/attention", {"id": "translated", "position": 0, "layer": 0}),
    ("GET", "/health", None),
    ("GET", "/ready", None),
    ("GET", "/version", None),
    ("GET", "/v1/loads", None),
    ("GET", "/server_info", None),
]
"""For each route that returns JSON. A text is the value of the parameter in the path."""
TEXT_ROUTES = {"/", "/metrics"}


@pytest.fixture(scope="module")
def malformed() -> Iterator[MalformedServer]:
    with MalformedServer() as one:
        yield one


@pytest.fixture(scope="module")
def server(malformed: MalformedServer) -> RunningServer:
    return malformed.running


@pytest.fixture(scope="module")
def schema(server: RunningServer) -> Any:
    return server.get("/openapi.json").json()


def documented() -> list[APIRoute]:
    routes = [route for router in PROTOCOLS.values() for route in router.routes]
    return [one for one in routes if isinstance(one, APIRoute) and one.include_in_schema]


def operations(schema: Any) -> Iterator[tuple[str, str, Any]]:
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def component(schema: Any, reference: Any) -> Any:
    return schema["components"]["schemas"][reference["$ref"].split("/")[-1]]


def test_every_route_has_models_for_its_body_and_its_response(schema):
    for method, path, operation in operations(schema):
        content = operation["responses"]["200"]["content"]
        kind = "text/plain" if path in TEXT_ROUTES else "application/json"
        assert content[kind]["schema"], f"{method} {path} returns anything"
        assert "422" not in operation["responses"], path
        if method == "POST":
            body = operation["requestBody"]["content"]["application/json"]["schema"]
            assert "$ref" in body or body["properties"], path


def test_every_route_declares_the_errors_of_its_protocol(schema):
    for method, path, operation in operations(schema):
        assert "default" in operation["responses"]
        errors = {key: one for key, one in operation["responses"].items() if key != "200"}
        protocol = protocol_of(path)
        for one in errors.values():
            model = component(schema, one["content"]["application/json"]["schema"])
            assert model["title"] == ERROR_BODIES[protocol].__name__
        if method == "POST":
            wanted = {str(error_status(protocol, one)) for one in ERROR_STATUSES[protocol]}
            assert set(errors) == {*wanted, "default"}, path


def test_all_routes_are_of_the_class_that_declares_errors():
    routes = [route for router in PROTOCOLS.values() for route in router.routes]
    assert all(isinstance(route, ApiRoute) for route in routes)


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_a_real_response_matches_its_model_strictly(server, method, path, body):
    url = path
    if path == "/v1/attention":
        text = {"q": "a", "source": "en", "target": "de"}
        server.post("/translate", text, headers={"x-request-id": body["id"]})
    if body == "stored":
        made = server.post("/v1/responses", {"model": "scripted", "input": "a"}).json()
        url = path.replace("{response_id}", made["id"])
    elif isinstance(body, str):
        url = path.replace("{name}", body)
    answer = server.client.request(method, url, json=body if isinstance(body, dict) else None)
    assert answer.status_code == 200, answer.text
    [route] = [
        one
        for one in documented()
        if one.path.replace(":path", "") == path and method in (one.methods or ())
    ]
    TypeAdapter(route.response_model).validate_json(answer.content, strict=True)


def test_every_json_route_has_a_request_above():
    described = {
        (method, route.path.replace(":path", ""))
        for route in documented()
        for method in route.methods or ()
    }
    tested = {(method, path) for method, path, _ in REQUESTS}
    assert described - tested == {("GET", path) for path in TEXT_ROUTES}


@pytest.mark.parametrize(
    ("name", "models"),
    [
        ("ChatBody", ["scripted"]),
        ("CompletionBody", ["scripted"]),
        ("MessagesBody", ["scripted"]),
        ("OllamaChatBody", ["scripted"]),
        ("EmbeddingBody", ["scripted", "translator", "encoder"]),
        ("OllamaGenerateBody", ["scripted", "translator", "encoder"]),
    ],
)
def test_a_body_names_the_models_that_its_route_accepts(schema, name, models):
    body = schema["components"]["schemas"][name]
    assert body["properties"]["model"]["enum"] == models and "model" in body["required"]


def test_bodies_have_the_bounds_of_this_server(server, schema):
    bodies = schema["components"]["schemas"]
    chat, models = bodies["ChatBody"], server.service.models.models.values()
    assert chat["additionalProperties"] is False and "audio" not in chat["properties"]
    assert chat["properties"]["temperature"]["anyOf"][0]["maximum"] == 1e6
    assert chat["properties"]["top_p"]["anyOf"][0]["minimum"] == 0
    smallest = min(served.tokenizer.vocab_size for served in models)
    tokens = bodies["DetokenizeBody"]["properties"]["tokens"]
    assert tokens["items"] == {"type": "integer", "minimum": 0, "maximum": smallest - 1}
    width = min(served.loaded.model.config.width for served in models)
    assert bodies["EmbeddingBody"]["properties"]["dimensions"]["anyOf"][0]["maximum"] == width
    translate = schema["paths"]["/translate"]["post"]["requestBody"]["content"]
    assert translate["application/json"]["schema"]["properties"]["target"]["enum"] == ["de"]
    assert "weft-" not in str(schema["components"]) + str(translate)


def test_a_model_that_is_not_loaded_is_in_all_enumerations():
    def load(name: str) -> Any:
        raise DataError("there is no such model.", name)

    service = Service(ModelRegistry({"later": "later"}, load, {"alias": "later"}))
    bodies = create_app(service).openapi()["components"]["schemas"]
    for name in ("ChatBody", "CompletionBody", "EmbeddingBody"):
        assert bodies[name]["properties"]["model"]["enum"] == ["later", "alias"]


def test_a_server_of_one_model_lets_requests_leave_it_out():
    service = make_service()
    bodies = create_app(service).openapi()["components"]["schemas"]
    service.models.close()
    assert "model" not in bodies["TokenizeBody"].get("required", ())
    assert {"type": "null"} in bodies["TokenizeBody"]["properties"]["model"]["anyOf"]


def test_names_of_models_are_for_callers_with_a_key():
    service = make_service(aliases={"other-name": "decoder"}, keys={"ann": "key-ann"})
    with running(service) as server:
        known = server.get("/openapi.json", headers={"authorization": "Bearer key-ann"})
        bodies = known.json()["components"]["schemas"]
        assert bodies["CompletionBody"]["properties"]["model"]["enum"] == ["decoder", "other-name"]
        for headers in ({}, {"x-api-key": "wrong"}):
            answer = server.get("/openapi.json", headers=headers)
            assert answer.status_code == 200 and "other-name" not in answer.text
            model = answer.json()["components"]["schemas"]["CompletionBody"]["properties"]["model"]
            assert model["type"] == "string" and "enum" not in model and "format" not in model
        page = server.get("/docs")
        assert page.status_code == 200 and "other-name" not in page.text


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/version", "/server_info"])
def test_head_is_get_without_a_body(path):
    with running(make_service()) as server:
        whole, head = server.get(path), server.client.head(path)
        assert head.status_code == whole.status_code == 200 and head.content == b""
        assert head.headers["content-type"] == whole.headers["content-type"]
        if path != "/server_info":  # has the time
            assert head.headers["content-length"] == str(len(whole.content))
        refused = server.client.head("/v1/completions")
        assert refused.status_code == 405
        assert "HEAD" not in str(server.get("/openapi.json").json()["paths"].keys())
