"""GET /look/cache: the state that the events lead to is the engine's, and no foreign text is in
them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.look.json_events import event_of
from tests.serve.server import RunningServer, make_service, running
from weft.cache.events import PageEvent, TreeEvent
from weft.cache.replay import ReplayedState
from weft.cli.look_host import look_routers
from weft.engine.config import EngineConfig
from weft.look import cache_stream
from weft.look.cache_stream import CacheInbox

TEXT = "the cat sat on the mat and a dog ate two apples"


class Stream:
    """The events of one connection, and the state they lead to."""

    def __init__(self, lines: Iterator[str]) -> None:
        self.lines, self.times, self.ids = lines, list[float](), list[int]()
        self.seen: list[Any] = []
        self.state = ReplayedState()
        name, snapshot = self.read()
        assert name == "snapshot"
        self.size = snapshot["num_pages"], snapshot["page_size"]
        for entry in snapshot["pages"]:
            (first, *_) = entry["owners"]
            self.state.apply(event_of({"op": "alloc", "step": 0, **entry, "owner": first}))
            self.state.holders[entry["page"]].update(entry["owners"])
            self.state.holders[entry["page"]][first] -= 1
            self.state.rows[entry["page"]] = entry["rows"]
        for entry in snapshot["nodes"]:
            self.state.apply(event_of({"op": "node_added", "step": 0, **entry}))
            self.state.nodes[entry["node"]].locks = entry["locks"]

    def read(self) -> tuple[str, Any]:
        """The next event."""
        event: dict[str, str] = {}
        for line in self.lines:
            if not line and event:
                break
            key, _, value = line.partition(": ")
            if key:
                event[key] = value
        self.times.append(time.monotonic())
        self.ids.append(int(event["id"]))
        data = json.loads(event["data"])
        self.seen.append(data)
        return event["event"], data

    def read_until(self, state: ReplayedState) -> None:
        """Apply events until they lead to a state; a timeout of the client if they never do."""
        while self.state.to_json() != state.to_json():
            name, data = self.read()
            assert name == "kv"
            for op in data["ops"]:
                self.state.apply(event_of(op))


@contextmanager
def watched(server: RunningServer, **headers: str) -> Iterator[Stream]:
    with server.client.stream("GET", "/look/cache", headers=headers, timeout=10) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Stream(answer.iter_lines())


def state_of(server: RunningServer) -> ReplayedState:
    return server.service.models.get("decoder").engine.call(lambda one: one.cache_state()).result()


def complete(server: RunningServer, prompt: str = TEXT, **headers: str) -> None:
    body = {"model": "decoder", "prompt": prompt, "max_tokens": 6, "ignore_eos": True}
    answer = server.post("/v1/completions", body, headers=headers)
    assert answer.status_code == 200, answer.text


def serving(**options: Any) -> Any:
    engine = EngineConfig(page_size=4, num_pages=24)
    service = make_service(engine=engine, **options)
    return running(service, routers=look_routers(service))


def test_the_stream_leads_to_the_state_of_the_engine_through_evictions():
    with serving() as server:
        complete(server)
        with watched(server) as stream:
            assert stream.size == (24, 4) and stream.state.nodes
            for number in range(6):
                complete(server, f"{number} {TEXT}")
            complete(server, f"5 {TEXT[:20]}")
            server.wait_idle()
            stream.read_until(state_of(server))
            kinds = {op["op"] for data in stream.seen[1:] for op in data["ops"]}
            assert {"evict", "node_split", "locked", "write"} <= kinds
            shown = {int(token) for data in stream.seen for token in data["texts"]}
            assert {token for node in stream.state.nodes.values() for token in node.tokens} <= shown
            assert stream.ids == sorted(set(stream.ids))
            seconds = stream.times[-1] - stream.times[0]
            num_ops = sum(len(data["ops"]) for data in stream.seen[1:])
            assert len(stream.seen) <= 20 * seconds + 3 < num_ops, "events are bundled"
        engine = server.service.models.get("decoder").engine
        end = time.monotonic() + 10
        while engine.call(lambda one: one.events.has_listeners).result():
            assert time.monotonic() < end, "a closed stream listens"
            time.sleep(0.01)


def test_two_streams_see_the_same_and_a_late_one_begins_with_a_snapshot():
    with serving() as server, watched(server) as first:
        complete(server)
        with watched(server) as second:
            complete(server, f"a {TEXT}")
            server.wait_idle()
            expected = state_of(server)
            first.read_until(expected)
            second.read_until(expected)


def texts_in(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def test_text_of_other_api_keys_is_a_length():
    keys = {"ann": "key-a", "bob": "key-b"}
    with serving(keys=keys) as server:
        ann, bob = ({"authorization": f"Bearer {key}"} for key in keys.values())
        assert server.get("/look/cache").status_code == 401
        complete(server, **ann)
        with watched(server, **bob) as stream:
            complete(server, f"secret {TEXT}", **ann)
            complete(server, "the cat sat on the mat", **bob)
            server.wait_idle()
            state = state_of(server)
            while set(stream.state.nodes) != set(state.nodes) or any(
                stream.state.nodes[node].blocks != state.nodes[node].blocks for node in state.nodes
            ):
                for op in stream.read()[1]["ops"]:
                    stream.state.apply(event_of(op))
        salts = {one.name: one.salt for one in server.service.keys.callers.values()}
        own = {n: one for n, one in state.nodes.items() if one.namespace == salts["bob"]}
        assert own and len(own) < len(state.nodes)
        entries = list(stream.seen[0]["nodes"])
        entries += [op for data in stream.seen[1:] for op in data["ops"] if "tokens" in op]
        shown = {entry["node"] for entry in entries if entry["tokens"]}
        hidden = [entry for entry in entries if entry["tokens"] is None]
        assert shown and shown <= set(own)
        assert any(entry["num_tokens"] > 0 for entry in hidden)
        assert all(salt not in texts_in(stream.seen) for salt in salts.values())
        ids = {int(token) for data in stream.seen for token in data["texts"]}
        assert ids == {token for node in own.values() for token in node.tokens}


@pytest.mark.parametrize("allowed", [False, True])
def test_other_addresses_need_the_flag_and_show_lengths_without_keys(allowed):
    with serving(host="0.0.0.0", look=allowed) as server:
        if not allowed:
            answer = server.get("/look/cache")
            assert answer.status_code == 403 and "--look" in answer.json()["error"]["message"]
            return
        complete(server)
        with watched(server) as stream:
            assert all(node["tokens"] is None for node in stream.seen[0]["nodes"])
            assert stream.seen[0]["texts"] == {} and len(stream.seen[0]["nodes"]) > 1


def test_a_server_that_drains_ends_the_stream():
    with serving() as server, watched(server) as stream:
        server.service.is_draining = True
        assert list(stream.lines) == []


def test_json_of_events_is_read_back():
    event = TreeEvent("node_added", 3, 2, 1, "", [5, 6], [[4]], last_use=9)
    assert event_of(event.to_json()) == event


def test_a_stalled_reader_has_a_bounded_inbox(monkeypatch):
    monkeypatch.setattr(cache_stream, "MAX_PENDING", 10)

    async def fill() -> CacheInbox:
        inbox = CacheInbox(asyncio.get_running_loop())
        for page in range(50):
            inbox(PageEvent("free", 0, page, "a/0"))
        return inbox

    inbox = asyncio.run(fill())
    assert len(inbox.events) == 10 and inbox.is_full
