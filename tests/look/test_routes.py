"""POST /look and its arrays: numbers of the Python API, for this session and API key only, and only
where the server allows it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from tests.engine.tiny import tiny
from tests.serve.server import RunningServer, make_service, running
from weft.cli.look_host import look_routers
from weft.core.errors import UsageError
from weft.look import trace_json
from weft.look.recorder import record
from weft.look.route_bodies import ArrayResult, SharingResult, TraceResult
from weft.look.trace_store import QueueFullError, ReplacedError, TraceQueue, TraceStore
from weft.serve.context import Service

TEXT = "the cat sat on the mat"
NAME = "decoder.1.attention.weights"


def serving(service: Service) -> Any:
    return running(service, routers=look_routers(service))


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    kinds = {"decoder": "decoder", "translator": "encoder-decoder", "reader": "encoder"}
    with serving(make_service({name: tiny(kind) for name, kind in kinds.items()})) as one:
        yield one


def look(server: RunningServer, **body: Any) -> Any:
    answer = server.post("/look", {"model": "decoder", "text": TEXT, **body})
    assert answer.status_code == 200, answer.json()
    TypeAdapter(TraceResult).validate_json(answer.content, strict=True)
    return answer.json()


@pytest.mark.parametrize("model", ["decoder", "translator", "reader"])
def test_a_trace_has_the_numbers_of_python(server, model):
    trace = look(server, model=model, target="x" if model == "translator" else None)
    loaded = server.service.models.get(model).loaded
    start = loaded.request_builder.target_begin if model == "translator" else None
    expected = record(
        loaded.model, loaded.tokenizer, TEXT, trace["target"], start=start, name=model
    )
    arrays = trace_json.to_json(expected)["arrays"]
    assert trace["arrays"].keys() == arrays.keys() and trace["arrays"]
    for name, entry in trace["arrays"].items():
        assert np.allclose(trace_json.decode(entry), trace_json.decode(arrays[name]), atol=1e-5)


def test_an_array_is_exact_whole_or_in_part_as_bytes_and_as_json(server):
    trace = look(server)
    path, whole = f"/look/{trace['id']}/array", trace_json.decode(trace["arrays"][NAME])
    answer = server.get(path, params={"name": NAME})
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-dtype"] == "float32"
    shape = [int(size) for size in answer.headers["x-shape"].split(",")]
    assert np.array_equal(np.frombuffer(answer.content, "<f4").reshape(shape), whole)
    part = server.get(path, params={"name": NAME, "head": 1, "row": 3})
    assert np.array_equal(np.frombuffer(part.content, "<f4"), whole[1, 3])
    text = server.get(path, params={"name": NAME, "head": 1, "row": 3, "as": "json"})
    TypeAdapter(ArrayResult).validate_json(text.content, strict=True)
    assert np.array_equal(np.array(text.json()["values"], np.float32), whole[1, 3])


def test_values_that_are_not_kept_are_computed_between_steps():
    with serving(make_service({"decoder": tiny("decoder", max_len=400)})) as server:
        text = " ".join([TEXT] * 16)
        trace = look(server, text=text)
        assert trace["limits"]["reduced"] and NAME not in trace["arrays"]
        path = f"/look/{trace['id']}/array"
        answer = server.get(path, params={"name": NAME, "head": 2, "row": 70})
        loaded = server.service.models.get("decoder").loaded
        expected = record(loaded.model, loaded.tokenizer, text).array(NAME, head=2, row=70)
        assert np.allclose(np.frombuffer(answer.content, "<f4"), expected, atol=1e-6)


def test_a_translation_without_a_target_reads_that_of_the_model(server):
    trace = look(server, model="translator")
    loaded = server.service.models.get("translator").loaded
    assert trace["target"] == loaded.translate([TEXT])[0]


def test_ids_are_read_as_they_are(server):
    loaded = server.service.models.get("decoder").loaded
    ids = [token["id"] for token in look(server)["tokens"]["src"]]
    parts = [*ids, *loaded.tokenizer.encode("果", add_special=False)[:1]]
    trace = look(server, text=parts)
    assert [token["id"] for token in trace["tokens"]["src"]] == parts
    start = server.service.models.get("translator").loaded.request_builder.target_begin
    trace = look(server, model="translator", target=[start, 50, 51])
    assert [token["id"] for token in trace["tokens"]["tgt"]] == [start, 50, 51]
    for body in ({"text": [10**9]}, {"text": []}, {"text": [-1]}):
        assert server.post("/look", {"model": "decoder", **body}).status_code == 400
    answer = server.post("/look", {"model": "translator", "text": ids})
    assert answer.status_code == 400 and "give the target" in answer.json()["error"]["message"]


def test_ablation_changes_the_logits_as_in_python(server):
    plain, ablated = look(server), look(server, ablate=[[1, 2], "decoder.0.1"])
    assert ablated["ablated"] == ["decoder.0.1", "decoder.1.2"]
    path = "/look/{}/array?name=decoder.logits"
    values = [
        np.frombuffer(server.get(path.format(one["id"])).content, "<f4") for one in (plain, ablated)
    ]
    delta = server.get(f"/look/{ablated['id']}/array?name=decoder.logits_delta").content
    assert np.abs(values[1] - values[0]).max() > 1e-3
    assert np.allclose(np.frombuffer(delta, "<f4"), values[1] - values[0], atol=1e-4)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"ablate": [[9, 0]]}, "there is no head decoder.9.0"),
        ({"task": "translate"}, "task is translate, but this model is of kind decoder"),
        ({"window": [5, 99]}, "window is 5:99"),
        ({"txt": "a"}, "txt: extra inputs are not permitted"),
        ({"model": "none"}, "model 'none' is not served here"),
    ],
)
def test_wrong_bodies_are_answered_in_openais_shape(server, body, problem):
    answer = server.post("/look", {"model": "decoder", "text": TEXT, **body})
    assert answer.status_code in (400, 404)
    error = answer.json()["error"]
    assert problem in error["message"] and set(error) == {"message", "type", "param", "code"}


def test_a_stage_that_does_not_exist_and_a_trace_that_is_gone(server):
    path = f"/look/{look(server)['id']}/array"
    assert server.get(path, params={"name": "decoder.9.q"}).status_code == 400
    assert server.get(path, params={"name": NAME, "head": 99}).status_code == 400
    answer = server.get("/look/t_0/array", params={"name": NAME})
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "trace_expired"


def test_other_addresses_need_the_flag():
    routes = [
        ("POST", "/look", {"text": TEXT}),
        ("GET", "/look/t_0/array?name=a", None),
        ("POST", "/look/why", {"first": {"text": "a"}, "second": {"text": "b"}}),
    ]
    for allowed in (False, True):
        with serving(make_service(host="0.0.0.0", look=allowed)) as server:
            for method, path, body in routes:
                answer = server.client.request(method, path, json=body)
                assert (answer.status_code == 403) == (not allowed)
                assert allowed or "--look" in answer.json()["error"]["message"]


def test_an_api_key_reads_its_own_traces_only():
    keys = {"ann": "key-a", "bob": "key-b"}
    with serving(make_service(keys=keys)) as server:
        assert server.post("/look", {"text": TEXT}).status_code == 401
        headers = [{"authorization": f"Bearer {key}"} for key in keys.values()]
        trace = server.post("/look", {"text": TEXT}, headers=headers[0]).json()
        path = f"/look/{trace['id']}/array?name={NAME}"
        codes = [server.get(path, headers=one).status_code for one in headers]
        assert codes == [200, 404] and server.get(path).status_code == 401


def test_why_a_prefix_was_not_shared(server):
    server.post("/v1/completions", {"model": "decoder", "prompt": TEXT, "max_tokens": 1})
    first, second = {"text": TEXT}, {"text": "the cat sat on the dog"}
    body = {"model": "decoder", "first": first, "second": second}
    answer = server.post("/look/why", body)
    TypeAdapter(SharingResult).validate_json(answer.content, strict=True)
    sharing = answer.json()
    assert sharing["page_size"] == 4 and sharing["num_cached"] == sharing["num_shared"] > 0
    assert sharing["difference"]["position"] == sharing["num_equal"]
    body["second"] = {"text": TEXT, "cache_salt": "x"}
    sharing = server.post("/look/why", body).json()
    assert sharing["num_shared"] == 0 and sharing["reasons"][0]["code"] == "cache_salt"
    assert sharing["num_cached"] == 0


def test_a_new_trace_of_a_session_replaces_its_old_one_and_others_wait():
    queue, order = TraceQueue(wait_seconds=5), list[Any]()

    async def work(name: str, seconds: float) -> str:
        order.append(name)
        await asyncio.sleep(seconds)
        return name

    async def run() -> list[Any]:
        jobs = [("a", "old", 9.0), ("b", "other", 0.01), ("a", "new", 0.01)]
        tasks = []
        for session, name, seconds in jobs:
            one = queue.run(session, lambda name=name, seconds=seconds: work(name, seconds))
            tasks.append(asyncio.ensure_future(one))
            await asyncio.sleep(0.01)
        return await asyncio.gather(*tasks, return_exceptions=True)

    old, other, new = asyncio.run(run())
    assert isinstance(old, ReplacedError) and (other, new) == ("other", "new")
    assert order == ["old", "other", "new"] and not queue.traces and not queue.is_taken


def test_a_fifth_that_waits_is_refused_and_a_long_wait_too():
    queue = TraceQueue(wait_seconds=0.1)

    async def run() -> list[Any]:
        release = asyncio.Event()
        tasks = [asyncio.ensure_future(queue.run(str(i), release.wait)) for i in range(6)]
        await asyncio.sleep(0.03)
        assert [task.done() for task in tasks] == [False] * 5 + [True]
        await asyncio.sleep(0.2)
        release.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert await queue.run("again", release.wait)
        return results

    results = asyncio.run(run())
    assert results[0] is True and all(isinstance(one, QueueFullError) for one in results[1:])


def test_a_busy_server_says_when_to_try_again(server, monkeypatch):
    release, started = threading.Event(), threading.Event()

    def hold(_: Any) -> None:
        started.set()
        release.wait(20)

    server.service.models.get("decoder").engine.call(hold)
    assert started.wait(20)
    with ThreadPoolExecutor(8) as pool:

        def ask(number: int) -> Any:
            headers = {"x-weft-session": str(number)}
            return server.post("/look", {"model": "decoder", "text": TEXT}, headers=headers)

        answers = [pool.submit(ask, number) for number in range(8)]
        threading.Timer(0.5, release.set).start()
        codes = sorted(one.result().status_code for one in answers)
        busy = [one.result() for one in answers if one.result().status_code == 429]
    assert codes == [200] * 5 + [429] * 3
    assert all(int(one.headers["retry-after"]) >= 1 for one in busy)


def test_the_store_drops_the_least_recently_used():
    checkpoint = tiny("decoder")
    traces = [record(checkpoint.model, checkpoint.tokenizer, TEXT) for _ in range(4)]
    store = TraceStore(max_traces=3)
    for trace in traces[:3]:
        store.put("", None, trace)
    assert store.get("", traces[0].id) is not None
    store.put("", None, traces[3])
    assert [store.get("", one.id) is not None for one in traces] == [True, False, True, True]
    assert store.get("bob", traces[0].id) is None
    store = TraceStore(max_bytes=2 * traces[0].nbytes)
    for trace in traces:
        store.put("", None, trace)
    assert len(store.traces) == 2 and store.num_bytes <= store.max_bytes
    store = TraceStore(max_bytes=traces[0].nbytes - 1)
    with pytest.raises(UsageError, match="the server keeps at most"):
        store.put("", None, traces[0])
    assert store.num_bytes == 0
