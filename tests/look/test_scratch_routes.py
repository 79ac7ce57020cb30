"""Scratch engines over HTTP: every answer is that of the Python API, for the caller alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.engine.tiny import tiny
from tests.look.json_events import event_of
from tests.serve.server import RunningServer, make_service, running
from weft.cache.replay import ReplayedState
from weft.cli.look_host import look_routers
from weft.look.route_bodies import SharingResult
from weft.look.scratch_bodies import ScratchResult
from weft.look.scratch_engine import ScratchConfig, ScratchEngine
from weft.look.scratch_routes import script_of
from weft.look.scratch_sessions import ScratchSession, ScratchSessions

TEXT = "the cat sat on the mat and a dog ate two apples while the cat sat on the mat"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    kinds = {"decoder": "decoder", "translator": "encoder-decoder", "reader": "encoder"}
    service = make_service({name: tiny(kind) for name, kind in kinds.items()})
    with running(service, routers=look_routers(service)) as one:
        yield one


def post(server: RunningServer, path: str = "", **body: Any) -> Any:
    answer = server.post(f"/look/scratch{path}", body)
    assert answer.status_code == 200, answer.json()
    TypeAdapter(ScratchResult).validate_json(answer.content, strict=True)
    return answer.json()


@pytest.mark.parametrize("model", ["decoder", "translator"])
def test_the_scenario_over_http_is_that_of_python(server, model):
    answer = post(server, model=model, scenario=TEXT)
    loaded = server.service.models.get(model).loaded
    script = script_of(TEXT, 4, loaded)
    pages, state = answer["snapshot"]["num_pages"], ReplayedState()
    scratch = ScratchEngine.with_scenario(
        *(loaded.model, loaded.tokenizer, script.ids, script.source),
        ScratchConfig(num_pages=pages, page_size=4),
    )
    assert answer["snapshot"] == scratch.snapshot() and not answer["snapshot"]["is_idle"]
    while not answer["snapshot"]["is_idle"]:
        answer = post(server, f"/{answer['id']}/step", count=5)
        for step in answer["steps"]:
            expected = scratch.step()
            assert step["ops"] == [event.to_json() for event in expected.events]
            assert step["preempted"] == expected.preempted
            for op in step["ops"]:
                state.apply(event_of(op))
            assert state == scratch.state
        assert answer["snapshot"] == scratch.snapshot()
        tokens = {token for node in answer["snapshot"]["nodes"] for token in node["tokens"]}
        assert tokens <= {int(token) for token in answer["texts"]}
    assert scratch.is_idle and answer["snapshot"]["evicted"] >= 5
    again = post(server, f"/{answer['id']}/reset")
    assert again["snapshot"]["step"] == 0 and not again["snapshot"]["is_idle"]


def test_requests_are_submitted_stepped_and_read_again(server):
    name = post(server, model="decoder", num_pages=20)["id"]
    first = post(server, f"/{name}/submit", text="the cat sat", max_tokens=4)
    assert first["name"] == "a" and first["snapshot"]["requests"][0]["state"] == "waiting"
    post(server, f"/{name}/submit", text="the cat", max_tokens=3, beam=3)
    answer = post(server, f"/{name}/step", count=256)
    tokens = [one for step in answer["steps"] for one in step["tokens"] if one["request"] == "a"]
    assert len(tokens) == 4 and all(one["top"][0]["id"] == one["id"] for one in tokens)
    assert sum(one["p"] for one in tokens[0]["top"]) <= 1.0001
    since = server.get(f"/look/scratch/{name}", params={"since": 2}).json()
    assert since["steps"] == answer["steps"][2:] and since["snapshot"] == answer["snapshot"]
    assert answer["snapshot"]["requests"][1]["state"] == "finished"
    assert server.client.delete(f"/look/scratch/{name}").json() == {"id": name, "deleted": True}
    gone = server.post(f"/look/scratch/{name}/step", {})
    assert gone.status_code == 404 and gone.json()["error"]["code"] == "scratch_expired"


@pytest.mark.parametrize("model", ["decoder", "translator"])
def test_a_short_text_is_repeated_for_the_scenario(server, model):
    answer = post(server, model=model, scenario="a dog ate")
    while not answer["snapshot"]["is_idle"]:
        answer = post(server, f"/{answer['id']}/step", count=20)
    snapshot = answer["snapshot"]
    assert [one["state"] for one in snapshot["requests"]] == ["finished"] * 5
    assert snapshot["evicted"] >= 5 and snapshot["preemptions"] >= 1
    assert snapshot["requests"][2]["num_cached"] == 12


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"num_pages": 1000, "page_size": 8}, "together 8000 tokens"),
        ({"model": "reader", "scenario": TEXT}, "of kind encoder"),
        ({"pages": 3}, "pages: extra inputs"),
    ],
)
def test_wrong_settings_are_refused_in_one_sentence(server, body, problem):
    answer = server.post("/look/scratch", {"model": "decoder", **body})
    assert answer.status_code == 400 and problem in answer.json()["error"]["message"]


def test_a_request_that_does_not_fit_names_the_pages(server):
    name = post(server, model="decoder", num_pages=3)["id"]
    answer = server.post(f"/look/scratch/{name}/submit", {"text": TEXT, "max_tokens": 30})
    assert answer.status_code == 400
    assert "num_pages: the KV cache has 3 pages of 4 tokens" in answer.json()["error"]["message"]


def test_sessions_do_not_see_each_other_and_have_two_engines_each(server):
    first = post(server, model="decoder")["id"]
    other = server.get(f"/look/scratch/{first}", headers={"x-weft-session": "other"})
    assert other.status_code == 404
    post(server, model="decoder")
    assert server.get(f"/look/scratch/{first}").status_code == 200
    post(server, model="decoder")
    codes = [server.get(f"/look/scratch/{one}").status_code for one in (first,)]
    assert codes == [200], "the one used last stays"


def test_unused_and_too_many_sessions_are_dropped():
    clock = [1.0]
    sessions = ScratchSessions(now=lambda: clock[0])
    made = [ScratchSession(None, ScratchConfig()) for _ in range(12)]
    for number, one in enumerate(made):
        clock[0] += 1
        sessions.add(f"caller {number}", one)
    assert len(sessions.sessions) == 8 and sessions.get("caller 0", made[0].id) is None
    clock[0] += 601
    assert sessions.get("caller 11", made[11].id) is None and not sessions.sessions


def test_scratch_engines_need_the_flag_on_other_addresses():
    service = make_service(host="0.0.0.0")
    with running(service, routers=look_routers(service)) as server:
        for method, path in [("POST", ""), ("POST", "/s_1/step"), ("DELETE", "/s_1")]:
            answer = server.client.request(
                method, f"/look/scratch{path}", json={} if method == "POST" else None
            )
            assert answer.status_code == 403 and "--look" in answer.json()["error"]["message"]


def test_why_compares_with_the_pages_and_the_cache_of_the_scratch_engine(server):
    name = post(server, model="decoder", num_pages=40)["id"]
    post(server, f"/{name}/submit", text=TEXT, max_tokens=2)
    steps = post(server, f"/{name}/step", count=64)["steps"]
    assert [one["finished"] for one in steps if one["finished"]] == [["a"]]
    body = {"first": {"text": TEXT}, "second": {"text": TEXT[:30] + " x"}}
    answer = server.post(f"/look/scratch/{name}/why", body)
    TypeAdapter(SharingResult).validate_json(answer.content, strict=True)
    sharing = answer.json()
    post(server, f"/{name}/submit", text=body["second"]["text"], max_tokens=2)
    after = post(server, f"/{name}/step", count=64)["snapshot"]
    assert sharing["num_cached"] == sharing["num_shared"] == after["requests"][1]["num_cached"] > 0
    assert sharing["page_size"] == after["page_size"] == 4
    unseen = server.post(f"/look/scratch/{name}/why", {**body, "second": {"text": "never read"}})
    assert unseen.json()["num_cached"] == 0
    gone = server.post("/look/scratch/s_0/why", body)
    assert gone.status_code == 404 and gone.json()["error"]["code"] == "scratch_expired"
