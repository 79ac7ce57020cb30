"""The hint for an unknown field is one that helps: the same field of another server or route, or a
name that is nearly the same."""

from __future__ import annotations

from typing import Any

import pytest

from weft.cli.serve_page import bodies_of, served_routes
from weft.serve.anthropic_messages import MessagesBody
from weft.serve.bodies import Body
from weft.serve.field_hints import ELSEWHERE, field_hint
from weft.serve.openai_chat import ChatBody
from weft.serve.openai_completions import CompletionBody
from weft.serve.openai_responses import ResponseBody


@pytest.mark.parametrize(
    ("body", "name", "hint"),
    [
        (ChatBody, "guided_json", "structured_outputs.json"),
        (ChatBody, "json_schema", "structured_outputs.json"),
        (ChatBody, "n_predict", "max_completion_tokens"),
        (ChatBody, "prompt", "messages"),
        (ChatBody, "stop_sequences", "stop"),
        (ChatBody, "temperatur", "temperature"),
        (ChatBody, "foo", None),
        (CompletionBody, "max_new_tokens", "max_tokens"),
        (CompletionBody, "messages", "prompt"),
        (ResponseBody, "max_tokens", "max_output_tokens"),
        (ResponseBody, "messages", "input"),
        (ResponseBody, "response_format", "text.format"),
        (MessagesBody, "stop", "stop_sequences"),
        (MessagesBody, "max_completion_tokens", "max_tokens"),
        (MessagesBody, "instructions", "system"),
        (MessagesBody, "response_format", "output_config.format"),
        (MessagesBody, "foo", None),
    ],
)
def test_the_hint_is_the_field_that_was_meant(body: type[Body], name: str, hint: str | None):
    known = [info.alias or field for field, info in body.model_fields.items()]
    assert name not in known
    assert field_hint(name, known) == hint


def test_places_of_the_table_exist():
    """In the body of a route: a field, or a field of one of its objects."""
    schemas = [body.model_json_schema() for _, body in bodies_of(served_routes())]
    for place in {place for places in ELSEWHERE.values() for place in places}:
        assert any(has_place(schema, place) for schema in schemas), place


def has_place(schema: dict[str, Any], place: str) -> bool:
    name, _, inner = place.partition(".")
    if name not in schema.get("properties", {}):
        return False
    definitions = schema.get("$defs", {}).values()
    return not inner or any(inner in one.get("properties", {}) for one in definitions)
