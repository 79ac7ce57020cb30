"""schemathesis: requests that /openapi.json allows, requests that it does not allow, and sequences
of requests, on every route. No status of 500 or more, responses as described, and of the allowed
requests of each POST route at least 40 % are served."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import FlakyStrategyDefinition
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.soak.malformed_http import MalformedServer

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
SHARE = 0.4
"""Of the allowed requests of a POST route that must be served."""
FAST, LONG = 2, 100
"""Examples of a route and mode."""
GRAMMARS: dict[str, Any] = {
    "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "schema": {"type": "object"},
    "regex": "[ab]+",
    "grammar": 'start: "a" | "b"',
    "json": {"type": "object"},
}
"""Fields whose values are schemas, expressions or grammars: random ones are hardly ever valid."""


class Explored:
    """A server, its description, and ids of responses that it has stored."""

    def __init__(self, server: MalformedServer) -> None:
        self.server, self.url = server, server.running.url
        self.schema = schemathesis.openapi.from_url(f"{self.url}/openapi.json")
        self.session = requests.Session()
        self.operations = {
            operation.label: operation
            for operation in (result.ok() for result in self.schema.get_all_operations())
        }

    def new_id(self, label: str) -> str:
        """The id of a response that is stored, and of which attention weights can be read."""
        kind = "completions" if label == "POST /v1/attention" else "responses"
        body = {"model": "scripted", "max_tokens": 1, "prompt": "a"}
        if kind == "responses":
            body = {"model": "scripted", "input": "a"}
        answer = self.session.post(f"{self.url}/v1/{kind}", json=body, timeout=60)
        return str(answer.json()["id"])

    def fill(self, label: str, case: Case) -> None:
        """Give an allowed request ids that exist, and valid grammars."""
        if "response_id" in (case.path_parameters or {}):
            case.path_parameters["response_id"] = self.new_id(label)
        if isinstance(case.body, dict):
            fill_grammars(case.body)
            if isinstance(case.body.get("input"), list):
                self.fill_items(case.body["input"])
            if label == "POST /v1/attention":
                case.body |= {"id": self.new_id(label), "index": 0, "position": 1}
                case.body |= {name: 0 for name in ("layer", "head") if case.body.get(name)}
            if isinstance(case.body.get("previous_response_id"), str):
                case.body["previous_response_id"] = self.new_id(label)

    def fill_items(self, items: list[Any]) -> None:
        """Give references ids of stored items, and outputs those of calls before them. An output
        before all calls keeps its id, and is refused."""
        calls: list[str] = []
        for item in items:
            kind = item.get("type") if isinstance(item, dict) else None
            if kind == "item_reference":
                item["id"] = self.new_item_id()
            elif kind == "function_call":
                calls.append(item["call_id"])
            elif kind == "function_call_output" and calls:
                item["call_id"] = calls[-1]

    def new_item_id(self) -> str:
        body = {"model": "scripted", "input": "a"}
        answer = self.session.post(f"{self.url}/v1/responses", json=body, timeout=60)
        return str(answer.json()["output"][0]["id"])

    def call(self, case: Case) -> int:
        """Send a request and check its response; returns the status."""
        response = case.call(base_url=self.url, session=self.session, timeout=60)
        case.validate_response(response, checks=CHECKS)
        logged = self.server.log.take()
        assert not logged, f"{case.method} {case.path}: {logged[-2000:]}"
        return int(response.status_code)


def fill_grammars(value: Any) -> None:
    """Replace the values of GRAMMARS at any depth."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in GRAMMARS and inner is not None:
                value[key] = GRAMMARS[key]
            else:
                fill_grammars(inner)
    elif isinstance(value, list):
        for one in value:
            fill_grammars(one)


@pytest.fixture(scope="module")
def explored() -> Iterator[Explored]:
    with MalformedServer() as server:
        one = Explored(server)
        yield one
        one.session.close()


def explore(explored: Explored, label: str, mode: GenerationMode, number: int) -> Counter[int]:
    """How many examples of a route had which status."""
    statuses: Counter[int] = Counter()

    @settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=explored.operations[label].as_strategy(generation_mode=mode))
    def run(case: Case) -> None:
        if mode is GenerationMode.POSITIVE:
            explored.fill(label, case)
        statuses[explored.call(case)] += 1

    run()
    return statuses


def has_input(operation: Any) -> bool:
    """Whether anything about a request of the route can be wrong."""
    raw = operation.definition.raw
    return bool(raw.get("parameters") or raw.get("requestBody"))


def check_routes(explored: Explored, number: int) -> None:
    """Allowed and forbidden requests of all routes."""
    shares: dict[str, float] = {}
    for label in explored.operations:
        served = explore(explored, label, GenerationMode.POSITIVE, number)
        shares[label] = served[200] / served.total()
        if has_input(explored.operations[label]):
            refused = explore(explored, label, GenerationMode.NEGATIVE, number)
            assert any(400 <= status < 500 for status in refused), f"{label}: {refused}"
    low = {label: share for label, share in shares.items() if share < SHARE}
    assert not low, json.dumps(low)
    explored.server.running.wait_idle()


def test_random_requests_of_every_route_are_answered_as_described(explored):
    check_routes(explored, FAST)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_random_requests_of_every_route_are_answered_as_described(explored):
    check_routes(explored, LONG)


def run_sequences(explored: Explored, paths: str, number: int, steps: int) -> Counter[str]:
    """Sequences in which requests use values of earlier responses, such as ids."""
    calls: Counter[str] = Counter()
    schema = explored.schema.include(path_regex=paths)

    class Sequences(schema.as_state_machine()):  # type: ignore[misc]
        def get_call_kwargs(self, case: Case) -> dict[str, Any]:
            return {"session": explored.session, "timeout": 60, "base_url": explored.url}

        def validate_response(self, response: Any, case: Case, **_: Any) -> None:
            case.validate_response(response, checks=CHECKS)
            calls[f"{case.method} {case.path} {response.status_code}"] += 1

    # the server remembers responses of earlier sequences, so that the same requests may have other
    # results the next time, which Hypothesis reports; failures of checks are raised all the same
    with suppress(FlakyStrategyDefinition):
        Sequences.run(
            settings=settings(
                max_examples=number,
                stateful_step_count=steps,
                derandomize=True,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
        )
    assert explored.server.log.take() == ""
    return calls


STORED, OTHERS = "^/v1/responses", "^/(?!v1/responses)"
"""Paths of routes with ids in them, and the rest: schemathesis begins with routes that need none,
and would not get to the others."""


def test_sequences_of_requests_use_the_ids_of_earlier_responses(explored):
    calls = run_sequences(explored, STORED, number=5, steps=8)
    later = [call for call in calls if "{response_id}" in call and call.endswith(" 200")]
    assert later, calls


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_many_sequences_of_requests_are_answered_as_described(explored):
    for paths in (STORED, OTHERS):
        assert run_sequences(explored, paths, number=60, steps=12).total() > 60
