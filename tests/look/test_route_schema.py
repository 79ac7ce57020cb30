"""/openapi.json describes the routes below /look, and random requests are answered as it says."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode

from tests.engine.tiny import tiny
from tests.serve.server import RunningServer, make_service, running
from tests.serve.test_schemathesis import CHECKS, SHARE
from weft.cli.look_host import look_routers
from weft.serve.api_route import ApiRoute

LIVE = "GET /look/cache"
"""Has no end."""
TEXT = "the cat sat on the mat and a dog ate two apples"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    service = make_service({"decoder": tiny("decoder", max_len=400)})
    with running(service, routers=look_routers(service)) as one:
        yield one


def test_every_route_has_its_class_models_and_declared_errors(server):
    routers = look_routers(server.service)
    routes = [one for router in routers for one in router.routes if isinstance(one, APIRoute)]
    assert len(routes) == 14 and all(isinstance(one, ApiRoute) for one in routes)
    schema = server.get("/openapi.json").json()
    for route in routes:
        for method in route.methods:
            operation = schema["paths"][route.path][method.lower()]
            assert operation["responses"]["200"]["content"] and "422" not in operation["responses"]
            assert "default" in operation["responses"] and "403" in operation["responses"]
            assert operation["summary"] and operation["description"], route.path
    body = schema["components"]["schemas"]["TraceBody"]
    assert body["additionalProperties"] is False
    assert body["properties"]["model"]["anyOf"][0]["enum"] == ["decoder"]


class FilledRequests:
    """Random requests of the routes, with ids that exist."""

    def __init__(self, server: RunningServer) -> None:
        self.server, self.session = server, requests.Session()
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        found = schema.include(path_regex="^/look").get_all_operations()
        self.operations = {one.label: one for one in (result.ok() for result in found)}

    def new_id(self, path: str) -> str:
        if "scratch" in path:
            return str(self.server.post("/look/scratch", {"num_pages": 60}).json()["id"])
        return str(self.server.post("/look", {"text": TEXT}).json()["id"])

    def fill(self, case: Case) -> None:
        if "id" in (case.path_parameters or {}):
            case.path_parameters["id"] = self.new_id(case.path)
        if case.path.endswith("/array"):
            case.query = {**(case.query or {}), "name": "decoder.0.attention.weights"}
            case.query = {key: value for key, value in case.query.items() if key in ("name", "as")}
        if case.path.endswith("/neighbors"):
            case.query = {"token": 0}
        if case.path.endswith("/lens"):
            case.query = {"token": [0, 1]}
        if "since" in (case.query or {}):
            case.query["since"] = 0
        if isinstance(case.body, dict):
            self.fill_body(case.body)

    def fill_body(self, body: dict[str, Any]) -> None:
        """Values that depend on the model: heads, windows, lengths of texts."""
        if body.get("scenario") is not None:
            body |= {"scenario": TEXT, "num_pages": None, "page_size": 4}
        if body.get("page_size") is not None:
            body["page_size"] = min(body["page_size"], 16)
        for name in ("target", "resume", "task", "window"):
            body.pop(name, None)
        for prompt in (body.get("first"), body.get("second")):
            if isinstance(prompt, dict):
                prompt.pop("target", None)
        if "ablate" in body:
            body["ablate"] = ["0.1"]
        if "max_tokens" in body:
            body["max_tokens"] = 4
        if "num_pages" in body:
            body["num_pages"] = 60
        if body.get("beam") is not None:
            body["n"] = 1

    def explore(self, label: str, mode: GenerationMode, number: int) -> Counter[int]:
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
        @given(case=self.operations[label].as_strategy(generation_mode=mode))
        def run(case: Case) -> None:
            if mode is GenerationMode.POSITIVE:
                self.fill(case)
            answer = case.call(base_url=self.server.url, session=self.session, timeout=60)
            case.validate_response(answer, checks=CHECKS)
            statuses[int(answer.status_code)] += 1

        run()
        return statuses


def check_routes(server: RunningServer, number: int, caplog: pytest.LogCaptureFixture) -> None:
    filled, shares = FilledRequests(server), dict[str, float]()
    assert LIVE in filled.operations
    for label in filled.operations.keys() - {LIVE}:
        served = filled.explore(label, GenerationMode.POSITIVE, number)
        shares[label] = served[200] / served.total()
        refused = filled.explore(label, GenerationMode.NEGATIVE, number)
        assert any(400 <= status < 500 for status in refused), f"{label}: {refused}"
    low = {label: share for label, share in shares.items() if share < SHARE}
    assert not low, json.dumps(low)
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]
    server.wait_idle()


def test_random_requests_are_answered_as_described(server, caplog):
    check_routes(server, 2, caplog)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_random_requests_are_answered_as_described(server, caplog):
    check_routes(server, 60, caplog)
