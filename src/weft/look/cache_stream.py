"""GET /look/cache: what the serving engine's cache does, live, as server-sent events.

    event: snapshot   {"num_pages", "page_size", "pages", "nodes", "texts"}    (replay.py)
    event: kv         {"ops": [CacheEvent.to_json(), ...], "texts"}            (events.py)

The first event is the snapshot. Applying the ops of the following events to it gives the state
after each step. Ops are bundled to at most 20 events per second, and none is left out; a client for
which 200,000 ops wait gets an error and has to reconnect.

A caller sees only its own text. Nodes of other API keys, and of translations if there are keys,
have `tokens: null` with the number of tokens, and a namespace that reveals nothing. Without API
keys there is one caller, whose text is sent on loopback addresses only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from weft.cache.events import CacheEvent
from weft.cache.replay import ReplayedState
from weft.engine.engine import Engine
from weft.look.event_stream import EVENT_STREAM, event_bytes
from weft.look.host import LookCall, LookHost, LookModel
from weft.look.route_bodies import ModelName
from weft.look.scratch_sessions import token_texts

BUNDLE_SECONDS = 0.05
"""Time between two events of a stream."""
CHECK_SECONDS = 1.0
"""How often a stream without ops looks whether the server is ending."""
MAX_PENDING, MAX_STREAMS = 200_000, 8


class CacheInbox:
    """A listener of an engine that passes events to an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop, self.has_events = loop, asyncio.Event()
        self.events: deque[CacheEvent] = deque()
        self.is_full = False
        """MAX_PENDING events have waited: later ones are lost."""

    def __call__(self, event: CacheEvent) -> None:
        """Engine thread."""
        self.is_full = self.is_full or len(self.events) >= MAX_PENDING
        if self.is_full:
            return
        was_empty = not self.events
        self.events.append(event)
        if was_empty:
            self.loop.call_soon_threadsafe(self.has_events.set)

    def take(self) -> list[CacheEvent]:
        """Event loop: all events so far."""
        self.has_events.clear()
        return [self.events.popleft() for _ in range(len(self.events))]


class CallerView:
    """What one caller sees of the nodes: the text of its own, the lengths of the others."""

    def __init__(self, call: LookCall) -> None:
        self.call = call
        self.own_nodes: set[int] = set()
        self.labels: dict[str, str] = {}
        """Names for the namespaces of others."""

    def is_own(self, namespace: str) -> bool:
        salt = self.call.salt
        return self.call.owns_all or (
            bool(salt) and (namespace == salt or namespace.startswith(f"{salt}/"))
        )

    def namespace(self, namespace: str) -> str:
        """The name of a namespace without the salt of the key."""
        if self.is_own(namespace):
            return namespace.removeprefix(self.call.salt).removeprefix("/")
        return self.labels.setdefault(namespace, f"other {len(self.labels) + 1}")

    def node(self, entry: dict[str, Any]) -> dict[str, Any]:
        """A node of a snapshot, or the op that adds one."""
        if self.is_own(entry["namespace"]):
            self.own_nodes.add(entry["node"])
        return self.hidden({**entry, "namespace": self.namespace(entry["namespace"])})

    def hidden(self, entry: dict[str, Any]) -> dict[str, Any]:
        """The entry without tokens, unless its node is the caller's."""
        return entry if entry["node"] in self.own_nodes else {**entry, "tokens": None}

    def op(self, event: CacheEvent) -> dict[str, Any]:
        """The JSON of an event."""
        entry = event.to_json()
        kind = entry["op"]
        if kind == "reset":
            self.own_nodes.clear()
        elif kind == "node_added":
            return self.node(entry)
        elif kind == "node_grown":
            return self.hidden(entry)
        elif kind == "node_split" and entry["node"] in self.own_nodes:
            self.own_nodes.add(entry["parent"])
        elif kind == "node_removed":
            self.own_nodes.discard(entry["node"])
        return entry


class CacheStreams:
    """The live streams of one server."""

    def __init__(self, host: LookHost) -> None:
        self.host, self.num_streams = host, 0

    async def open(self, model: LookModel, call: LookCall) -> Response:
        if self.num_streams >= MAX_STREAMS:
            raise self.host.error(
                429,
                f"{MAX_STREAMS} streams of the cache are open. Close one of them.",
                headers={"retry-after": "5"},
            )
        return await call.stream(self.chunks(model, call))

    async def chunks(self, model: LookModel, call: LookCall) -> AsyncIterator[bytes]:
        """The events of one stream."""
        inbox, view = CacheInbox(asyncio.get_running_loop()), CallerView(call)
        self.num_streams += 1
        try:
            listening = model.engine.call(lambda engine: (engine.listen(inbox), sizes(engine)))
            state, size = await asyncio.wrap_future(listening)
            snapshot = await asyncio.to_thread(snapshot_of, state, size, view, model)
            yield event_bytes(1, "snapshot", snapshot)
            number = 1
            while not call.is_ending:
                events = await wait_for_events(inbox)
                if inbox.is_full:
                    raise self.host.error(
                        503, f"{MAX_PENDING} changes wait: the client reads too slowly. Reconnect."
                    )
                if events:
                    number += 1
                    bundle = await asyncio.to_thread(bundle_of, events, view, model)
                    yield event_bytes(number, "kv", bundle)
                    await asyncio.sleep(BUNDLE_SECONDS)
        finally:
            self.num_streams -= 1
            if model.engine.is_usable:
                model.engine.call(lambda engine: engine.stop_listening(inbox))


async def wait_for_events(inbox: CacheInbox) -> list[CacheEvent]:
    """The next events; none if there are none for a while."""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await inbox.has_events.wait()
    except TimeoutError:
        return []
    return inbox.take()


def sizes(engine: Engine) -> dict[str, int]:
    pool = engine.kv_cache.pool
    return {"num_pages": pool.num_usable, "page_size": pool.page_size}


def snapshot_of(
    state: ReplayedState, size: dict[str, int], view: CallerView, model: LookModel
) -> dict[str, Any]:
    """The first event."""
    content = {**size, **state.to_json()}
    content["nodes"] = [view.node(entry) for entry in content["nodes"]]
    return {**content, "texts": texts(content["nodes"], model)}


def bundle_of(events: list[CacheEvent], view: CallerView, model: LookModel) -> dict[str, Any]:
    ops = [view.op(event) for event in events]
    return {"ops": ops, "texts": texts(ops, model)}


def texts(entries: list[dict[str, Any]], model: LookModel) -> dict[str, dict[str, str]]:
    """The texts of all tokens that are shown."""
    ids = {token for entry in entries for token in entry.get("tokens") or ()}
    return token_texts(ids, model.loaded.tokenizer.target)


def cache_router(host: LookHost) -> APIRouter:
    """The route of one server."""
    streams = CacheStreams(host)
    router = APIRouter(tags=["look"], route_class=host.route_class)

    def enter(request: Request) -> Any:
        return host.enter(request)

    allowed = Depends(enter)

    @router.get("/look/cache", response_class=StreamingResponse, responses=EVENT_STREAM)
    async def cache(
        model: Annotated[ModelName | None, Query()] = None, call: Any = allowed
    ) -> Response:
        """Pages and radix tree of a model's engine, live: a snapshot, then each change."""
        return await streams.open(call.model(model), call)

    return router
