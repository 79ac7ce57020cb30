"""POST /look/generate: one request decoded step by step in a scratch engine, as server-sent events.

    event: session   {"id", "num_pages", "page_size"}     the scratch engine, for later requests
    event: prefill   {"step", "n_prompt", "cached", "ms"}
    event: kv        {"step", "ops", "texts"}              events.py
    event: token     {"step", "id", "text", "bytes", "logprob", "top": [{"id", "text", "p"}], "ms"}
    event: snapshot  {"step", "pages", "nodes"}            every 16 steps (replay.py)
    event: done      {"step", "reason", "usage": {"prompt_tokens", "cached_tokens",
                                                  "completion_tokens"}}

Ids increase. Events are computed from the stored steps of the engine, so a client whose connection
was lost continues: it sends `resume` with the id of the session and the header Last-Event-ID, and
gets the later events. Applying the ops of `kv` to an earlier snapshot gives each later one. A beam
search has no tokens before its end; its hypotheses are in the snapshot of the session.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from weft.cache.replay import ReplayedState, replay
from weft.look.event_stream import EVENT_STREAM, event_bytes
from weft.look.host import LookCall, LookHost
from weft.look.scratch_bodies import GenerateBody, ScratchBody
from weft.look.scratch_engine import ScratchEngine, ScratchStep
from weft.look.scratch_routes import ScratchRoutes, config_of, request_of
from weft.look.scratch_sessions import ScratchSession, step_json, token_texts

SNAPSHOT_STEPS = 16
Event = tuple[str, dict[str, Any]]


class DecodeStream:
    """The events of the first request of a session, from its first step on."""

    def __init__(self, session: ScratchSession) -> None:
        self.session, self.engine = session, session.engine
        self.tokenizer = session.model.loaded.tokenizer.target
        self.state, self.has_prefill = ReplayedState(), False

    def begin(self) -> Iterator[Event]:
        pool = self.engine.engine.kv_cache.pool
        size = {"num_pages": pool.num_usable, "page_size": pool.page_size}
        yield "session", {"id": self.session.id, **size}

    def of_step(self, step: ScratchStep) -> Iterator[Event]:
        """The events of one step."""
        entry, ms = step_json(step), round(step.seconds * 1000, 3)
        if not self.has_prefill:
            self.has_prefill = True
            request = self.engine.requests["a"]
            prompt, cached = len(request.request.prompt), request.num_cached
            yield "prefill", {"step": step.number, "n_prompt": prompt, "cached": cached, "ms": ms}
        ids = {token for op in entry["ops"] for token in op.get("tokens") or ()}
        texts = token_texts(ids, self.tokenizer)
        yield "kv", {"step": step.number, "ops": entry["ops"], "texts": texts}
        replay(step.events, self.state)
        for token in entry["tokens"]:
            yield "token", {"step": step.number, **self.token(token), "ms": ms}
        if step.number % SNAPSHOT_STEPS == 0:
            yield "snapshot", {"step": step.number, **self.state.to_json()}

    def token(self, token: dict[str, Any]) -> dict[str, Any]:
        """A token and its alternatives, with their texts."""
        top = token["top"]
        texts = token_texts([token["id"], *(one["id"] for one in top)], self.tokenizer)
        none = {"text": "", "bytes": ""}
        return {
            "index": token["index"],
            "id": token["id"],
            **texts.get(str(token["id"]), none),
            "logprob": token["logprob"],
            "top": [{**one, "text": texts.get(str(one["id"]), none)["text"]} for one in top],
        }

    def end(self) -> Iterator[Event]:
        request = self.engine.requests["a"]
        usage = {
            "prompt_tokens": len(request.request.prompt),
            "cached_tokens": request.num_cached,
            "completion_tokens": sum(map(len, request.outputs.values())),
        }
        step = self.engine.num_steps
        yield "done", {"step": step, "reason": request.finish, "usage": usage}


class DecodeRoutes:
    """The route of one server; its scratch engines are those of /look/scratch."""

    def __init__(self, scratch: ScratchRoutes) -> None:
        self.scratch, self.host = scratch, scratch.host

    async def generate(self, body: GenerateBody, last_id: int, call: LookCall) -> Response:
        if body.resume is not None:
            session = self.scratch.find(body.resume, call)
            if session.engine.steps and session.engine.steps[0].number > 1:
                raise self.host.error(
                    404,
                    f"the first steps of '{session.id}' are not kept. Begin again.",
                    code="scratch_expired",
                )
        else:
            session = await self.begin(body, call)
        return await call.stream(self.chunks(session, last_id))

    async def begin(self, body: GenerateBody, call: LookCall) -> ScratchSession:
        """A new scratch engine with the request."""
        model = call.model(body.model)
        settings = ScratchBody(num_pages=body.num_pages, page_size=body.page_size)
        session = ScratchSession(model, config_of(settings, model.loaded, None))
        request = await asyncio.to_thread(request_of, body, model.loaded)

        def make() -> Any:
            yield from session.make_units()
            session.engine.submit(request)

        await call.run(asyncio.wrap_future(model.engine.run_units(make())))
        self.scratch.sessions.add(call.session, session)
        return session

    async def chunks(self, session: ScratchSession, last_id: int) -> AsyncIterator[bytes]:
        """The events after `last_id`; steps that were not run yet are run."""
        stream, number = DecodeStream(session), 0
        async for name, data in self.events(session, stream):
            number += 1
            if number > last_id:
                yield event_bytes(number, name, data)

    async def events(self, session: ScratchSession, stream: DecodeStream) -> AsyncIterator[Event]:
        for event in stream.begin():
            yield event
        num_seen = 0
        while True:
            for step in session.engine.steps_since(num_seen):
                for event in stream.of_step(step):
                    yield event
                num_seen = step.number
            if session.engine.is_idle:
                break
            async with session.lock:
                if session.engine.num_steps == num_seen and not session.engine.is_idle:
                    units = run_step(session.engine)
                    await asyncio.wrap_future(session.model.engine.run_units(units))
        for event in stream.end():
            yield event


def run_step(engine: ScratchEngine) -> Any:
    """Engine thread: one step as a unit."""
    engine.step()
    return
    yield


def decode_router(host: LookHost, scratch: ScratchRoutes) -> APIRouter:
    """The route of one server."""
    routes = DecodeRoutes(scratch)
    router = APIRouter(tags=["look"], route_class=host.route_class)

    def enter(request: Request) -> Any:
        return host.enter(request)

    allowed = Depends(enter)

    @router.post("/look/generate", response_class=StreamingResponse, responses=EVENT_STREAM)
    async def generate(body: GenerateBody, request: Request, call: Any = allowed) -> Response:
        """A request decoded step by step in a small engine: tokens, pages and tree as events."""
        last = request.headers.get("last-event-id", "0")
        last_id = int(last) if last.isdecimal() and len(last) < 10 else 0
        return await routes.generate(body, last_id, call)

    return router
