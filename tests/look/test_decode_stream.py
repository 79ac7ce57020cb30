"""POST /look/generate: tokens of the model, pages and tree by replay, and streams that continue."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine import plain
from tests.engine.tiny import tiny
from tests.look.json_events import event_of
from tests.serve.server import RunningServer, make_service, running
from weft.cache.replay import ReplayedState
from weft.cli.look_host import look_routers

BODY = {"model": "decoder", "text": "the cat sat on the", "max_tokens": 30, "num_pages": 20}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    models = {"decoder": tiny("decoder", max_len=80), "translator": tiny("encoder-decoder")}
    service = make_service(models)
    with running(service, routers=look_routers(service)) as one:
        yield one


def events(server: RunningServer, last: int = 0, **body: Any) -> list[tuple[int, str, Any]]:
    headers = {"last-event-id": str(last)} if last else {}
    answer = server.post("/look/generate", {**BODY, **body}, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    parts = [part.split("\n") for part in answer.text.strip().split("\n\n")]
    assert all(len(part) == 3 for part in parts)
    return [(int(number[4:]), name[7:], json.loads(data[6:])) for number, name, data in parts]


def of_kind(stream: list[tuple[int, str, Any]], kind: str) -> list[Any]:
    return [data for _, name, data in stream if name == kind]


def test_tokens_pages_and_tree_are_those_of_the_engine(server):
    stream = events(server)
    loaded = server.service.models.get("decoder").loaded
    ids = loaded.prompt_ids(BODY["text"])
    tokens = of_kind(stream, "token")
    expected = plain.greedy(loaded.model, ids, 30)
    assert [one["id"] for one in tokens] == expected[: len(tokens)]
    assert all(one["top"][0]["id"] == one["id"] and one["logprob"] <= 0 for one in tokens)
    (prefill,), (done,) = of_kind(stream, "prefill"), of_kind(stream, "done")
    assert prefill["n_prompt"] == len(ids) and prefill["cached"] == 0
    assert done["usage"]["completion_tokens"] == len(tokens) and done["reason"] in ("end", "length")
    state, snapshots = ReplayedState(), 0
    for _, name, data in stream:
        for op in data.get("ops", ()):
            state.apply(event_of(op))
        if name == "snapshot":
            snapshots += 1
            assert {**state.to_json(), "step": data["step"]} == data
    assert snapshots == len(of_kind(stream, "kv")) // 16 >= 1
    name = of_kind(stream, "session")[0]["id"]
    final = server.get(f"/look/scratch/{name}").json()["snapshot"]
    assert final["pages"] == state.to_json()["pages"] and final["nodes"] == state.to_json()["nodes"]
    assert [number for number, _, _ in stream] == list(range(1, len(stream) + 1))


def test_a_stream_that_was_cut_off_continues_after_the_last_event(server):
    whole = events(server)
    name = of_kind(whole, "session")[0]["id"]
    assert events(server, resume=name) == whole
    assert events(server, last=17, resume=name) == whole[17:]
    gone = server.post("/look/generate", {**BODY, "resume": "s_0"})
    assert gone.status_code == 404 and gone.json()["error"]["code"] == "scratch_expired"


def test_a_client_that_leaves_can_come_back_for_the_rest(server):
    with server.client.stream("POST", "/look/generate", json=BODY) as answer:
        lines = answer.iter_lines()
        first = [next(lines) for _ in range(20)]
    name = json.loads(first[2][6:])["id"]
    rest = events(server, last=5, resume=name)
    assert [number for number, _, _ in rest] == list(range(6, 6 + len(rest)))
    assert (
        of_kind(rest, "done") and server.get(f"/look/scratch/{name}").json()["snapshot"]["is_idle"]
    )


def test_translations_and_beam_searches_are_decoded_too(server):
    stream = events(server, model="translator", max_tokens=9)
    assert of_kind(stream, "token") and of_kind(stream, "done")
    stream = events(server, beam=3, max_tokens=9)
    assert any(op["op"] == "copy" for data in of_kind(stream, "kv") for op in data["ops"])
    assert of_kind(stream, "done")[0]["usage"]["completion_tokens"] > 0


def test_a_request_that_does_not_fit_is_a_status(server):
    answer = server.post("/look/generate", {**BODY, "num_pages": 4})
    assert answer.status_code == 400 and "num_pages" in answer.json()["error"]["message"]
