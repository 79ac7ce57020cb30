"""Every documented field of every route does what its class says: honored, no effect, template
variable or rejected. The cases are generated from the declarations that docs/serve.md is generated
from, so that a new field without a probe (field_probes.py) fails."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, get_args

import pytest
from pydantic.fields import FieldInfo

from tests.engine.tiny import tiny
from tests.serve.field_checks import (
    BODIES,
    CHAT,
    MESSAGE,
    MESSAGE_COUNT,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    RESPOND,
    RESPOND_COUNT,
    TEMPLATE,
    THINKING_TEMPLATE,
    USER,
    Answer,
    greedy_texts,
    script,
    thinking_script,
)
from tests.serve.field_probes import PROBES
from tests.serve.scripted import follow_script, scripted_checkpoint
from tests.serve.server import RunningServer, make_service, running
from weft.cli.serve_page import NESTED, bodies_of, fields_tables, inner_classes, served_routes
from weft.engine.request_builder import GenerationOptions
from weft.sampling.params import SamplingParams
from weft.serve.bodies import Body, field_class
from weft.serve.context import RequestRecord

HEADERS = {"x-api-key": "k1"}
GREEDY = GenerationOptions(max_tokens=12, sampling=SamplingParams(temperature=0))
SPECIAL = ("<|im_start|>", "<|im_end|>")
SCRIPTS = {"script": (TEMPLATE, script), "thinker": (THINKING_TEMPLATE, thinking_script)}
COUNTS = (RESPOND_COUNT, MESSAGE_COUNT)
VOLATILE = re.compile(
    r"id|created|created_at|completed_at|modified_at|.*_duration|.*cached_tokens|call_id"
    r"|cache_read_input_tokens"
)
ECHOED = ("output", "usage", "status")
"""What of a response of /v1/responses is not an echo of the request."""


def fields_of(body: type[Body], prefix: str = "") -> Iterator[tuple[str, str, FieldInfo]]:
    """Name, class and declaration of the fields of a body and of the bodies inside of it that are
    documented."""
    for name, info in body.model_fields.items():
        kind, shown = field_class(info).name, prefix + (info.alias or name)
        if prefix and not info.description and kind != "rejected":
            continue
        yield shown, kind, info
        for inner in inner_classes(info.annotation) if kind in NESTED else ():
            yield from fields_of(inner, f"{shown}.")


FIELDS = [
    (route.path, name, kind, info)
    for route, body in bodies_of(served_routes())
    for name, kind, info in fields_of(body)
]


def cases(wanted: str) -> Any:
    chosen = [(path, name, info) for path, name, kind, info in FIELDS if kind == wanted]
    names = [f"{path}-{name}" for path, name, _ in chosen]
    return pytest.mark.parametrize(("path", "name", "info"), chosen, ids=names)


def paths(wanted: str) -> list[str]:
    """The routes that have fields of a class."""
    return list(dict.fromkeys(path for path, _, kind, _ in FIELDS if kind == wanted))


class FieldServer:
    """A server, and what its engines were asked for."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.records: dict[str, RequestRecord] = {}
        self.baselines: dict[str, Answer] = {}
        server.service.sinks.append(lambda record: self.records.update({record.id: record}))

    def baseline(self, path: str, body: Mapping[str, Any], *more: Any) -> Answer:
        """The answer to a request without a field, which many tests compare with."""
        key = f"{path} {body} {more}"
        if key not in self.baselines:
            self.baselines[key] = self.ask(path, body, *more)
        return self.baselines[key]

    def ask(
        self,
        path: str,
        body: Mapping[str, Any],
        status: int = 200,
        headers: Mapping[str, str] = HEADERS,
    ) -> Answer:
        sent = {name: self.value(one) for name, one in body.items() if one is not None}
        response = self.server.post(path, sent, headers=headers)
        assert response.status_code == status, f"{sent}: {response.text}"
        record = self.record_of(response.headers["x-request-id"])
        requests = [] if record.generation is None else record.generation.requests
        prompt = ""
        if requests:
            tokenizer = self.server.service.models.get(record.model).tokenizer
            prompt = tokenizer.decode(requests[0].prompt, skip_special=False)
        return Answer(response, requests, prompt)

    def value(self, value: Any) -> Any:
        return value(self.server) if callable(value) else value

    def record_of(self, request_id: str) -> RequestRecord:
        """It is complete a moment after the response."""
        end = time.monotonic() + 20
        while request_id not in self.records:
            assert time.monotonic() < end, f"no record of {request_id}"
            time.sleep(0.001)
        return self.records[request_id]


@pytest.fixture(scope="module")
def fields() -> Iterator[FieldServer]:
    random_text = replace(tiny("decoder", max_len=400), chat_template=TEMPLATE)
    models = {
        name: scripted_checkpoint(template, SPECIAL, 400) for name, (template, _) in SCRIPTS.items()
    }
    models |= {
        "text": random_text,
        "encoder": tiny("encoder"),
        "en-de": replace(tiny(), languages=("en", "de")),
    }
    service = make_service(models, keys={"one": "k1"})
    for name, (_, says) in SCRIPTS.items():
        loaded = service.models.get(name).loaded
        follow_script(loaded.client.async_engine.engine, loaded.tokenizer, says)
    with running(service) as server:
        server.client.headers.update(HEADERS)
        remember_greedy_texts(server)
        yield FieldServer(server)


def remember_greedy_texts(server: RunningServer) -> None:
    """What the engine itself says for the prompts of the bodies."""
    loaded = server.service.models.get("text").loaded
    prompt = BODIES["/v1/completions"]["prompt"]
    conversations = [USER, [{"role": "user", "content": BODIES[OLLAMA_GENERATE]["prompt"]}]]
    for ids in [loaded.prompt_ids(prompt), *map(loaded.chat_ids, conversations)]:
        outputs = loaded.stream(ids, GREEDY)
        text = "".join(output.text for output in outputs)
        greedy_texts[loaded.tokenizer.decode(ids, skip_special=False)] = text


def changed(body: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """A body with another value of a field; `options.seed` is a field of an object."""
    first, _, rest = name.partition(".")
    if not rest:
        return {**body, name: value}
    return {**body, first: changed(body.get(first) or {}, rest, value)}


def stable(value: Any, is_response: bool = False) -> Any:
    """A response without ids, times and what depends on earlier requests."""
    if is_response:
        value = {name: value[name] for name in ECHOED}
    if isinstance(value, list):
        return [stable(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "cache_read_input_tokens" in value:
        value = {**value, "input_tokens": None}
    return {name: stable(one) for name, one in value.items() if not VOLATILE.fullmatch(name)}


@cases("honored")
def test_an_honored_field_has_its_effect(fields, path, name, info):
    probe = PROBES.get(path, {}).get(name)
    assert probe is not None, f"{name} of {path} has no probe: add one to field_probes.py"
    body = {**BODIES[path], **probe.base}
    headers = {**HEADERS, **probe.headers}
    other = fields.baseline(path, body, probe.other_status, headers)
    value = fields.value(probe.value)
    seen = fields.ask(path, changed(body, name, value), probe.status, headers)
    if probe.check is not None:
        assert probe.check(seen, other), (seen.response.text, other.response.text)
    elif probe.status == probe.other_status == 200:
        assert stable(seen.json, path == RESPOND) != stable(other.json, path == RESPOND)


def sample(annotation: Any) -> Any:
    """A value of a type that is not the default."""
    kinds = [one for one in get_args(annotation) if one is not type(None)] or [annotation]
    kind = kinds[0]
    if isinstance(kind, type) and issubclass(kind, Body):
        return {}
    values = {str: "auto", bool: True, int: 7, float: 0.5, list[str]: ["a"], list[int]: [1]}
    return values.get(kind, {"a": "b"})


@pytest.mark.parametrize("path", paths("no effect"))
def test_fields_without_effect_change_nothing(fields, path):
    body = dict(BODIES[path])
    for one, name, kind, info in FIELDS:
        if (one, kind) == (path, "no effect"):
            body = changed(body, name, sample(info.annotation))
    other = fields.baseline(path, BODIES[path])
    seen = fields.ask(path, body)
    assert stable(seen.json, path == RESPOND) == stable(other.json, path == RESPOND), body
    assert [one.prompt for one in seen.requests] == [one.prompt for one in other.requests]


@cases("template variable")
def test_a_template_variable_reaches_the_template(fields, path, name, info):
    values = {"think": (True, "(True)"), "chat_template_kwargs": ({"verbosity": "low"}, "(low)")}
    value, shown = values.get(name, ("high", "(high)"))
    body = {**BODIES[path], "model": "thinker"}
    other = fields.baseline(path, body)
    seen = fields.ask(path, changed(body, name, value))
    if path in COUNTS:
        assert seen.json["input_tokens"] == other.json["input_tokens"] + len(shown) - 2
    else:
        assert shown in seen.prompt and "()" in other.prompt


@cases("rejected")
def test_a_rejected_field_is_named(fields, path, name, info):
    seen = fields.ask(path, changed(BODIES[path], name, {"a": "b"}), 400)
    assert f"{name} is not supported: " in seen.response.text


@pytest.mark.parametrize("empty", [None, False, {}, [], ""], ids=str)
@pytest.mark.parametrize("path", paths("rejected"))
def test_empty_values_of_rejected_fields_are_accepted(fields, path, empty):
    body = dict(BODIES[path])
    names = [name for one, name, kind, _ in FIELDS if (one, kind) == (path, "rejected")]
    for name in names:
        body = changed(body, name, empty)
    response = fields.server.post(path, body)
    assert response.status_code == 200, (names, response.text)


def test_the_cases_are_the_documented_fields():
    documented = set(re.findall(r"^\| `([^`]+)` \|", fields_tables(), re.MULTILINE))
    assert documented == {name for _, name, _, _ in FIELDS}
    assert set(BODIES) == set(PROBES) == {path for path, *_ in FIELDS}
    probed = {(path, name) for path, probes in PROBES.items() for name in probes}
    assert probed == {(path, name) for path, name, kind, _ in FIELDS if kind == "honored"}


@pytest.mark.parametrize("path", [CHAT, MESSAGE, OLLAMA_CHAT])
def test_unknown_fields_are_refused_or_ignored(fields, path):
    status = 200 if path.startswith("/api") else 400
    seen = fields.ask(path, {**BODIES[path], "modell": "x"}, status)
    assert status == 200 or "Did you mean 'model'?" in seen.response.text


NESTED_FIELDS = [
    (CHAT, "structured_outputs", {"regx": "[ab]+"}, "structured_outputs.regx", "regex"),
    (
        CHAT,
        "stream_options",
        {"include_usge": True},
        "stream_options.include_usge",
        "include_usage",
    ),
    (CHAT, "response_format", {"type": "text", "schem": {}}, "response_format.schem", "schema"),
    (
        CHAT,
        "response_format",
        {"type": "json_schema", "json_schema": {"shema": {}}},
        "response_format.json_schema.shema",
        "schema",
    ),
    (RESPOND, "text", {"verbosty": "low"}, "text.verbosty", "verbosity"),
    (RESPOND, "text", {"format": {"type": "text", "schem": {}}}, "text.format.schem", "schema"),
    (RESPOND, "reasoning", {"efort": "low"}, "reasoning.efort", "effort"),
]


@pytest.mark.parametrize(("path", "name", "value", "where", "guess"), NESTED_FIELDS)
def test_unknown_fields_of_objects_are_refused(fields, path, name, value, where, guess):
    seen = fields.ask(path, {**BODIES[path], name: value}, 400)
    assert (
        f"'{where}' is not a field of this request. Did you mean '{guess}'?"
        in (seen.response.json()["error"]["message"])
    )
