"""HTTP routes of scratch engines (scratch_engine.py), which the page's Cache view steps.

    POST   /look/scratch               a new engine, empty or with the requests of a scenario
    GET    /look/scratch/{id}?since=n  its state, and the steps after n
    POST   /look/scratch/{id}/submit   submit a request
    POST   /look/scratch/{id}/step     run some steps
    POST   /look/scratch/{id}/reset    restart with the same scenario
    POST   /look/scratch/{id}/why      why a prompt did not share the prefix of another one
    DELETE /look/scratch/{id}

Results have the form of scratch_sessions.py. Access checks are those of traces (routes.py). An
engine that was dropped is a 404 with the code scratch_expired.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Generator
from itertools import cycle, islice
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi import Path as PathPart
from starlette.requests import Request
from starlette.responses import Response

from weft.core.errors import UsageError
from weft.engine.beam_search import BeamConfig
from weft.engine.loaded_model import LoadedModel
from weft.engine.request import GenerationRequest
from weft.look.host import LookCall, LookHost
from weft.look.prefix_sharing import CachedPrompt, compare_prefixes
from weft.look.route_bodies import PromptPairBody, SharingResult
from weft.look.scratch_bodies import (
    MAX_TOKENS,
    ScratchBody,
    ScratchDeleted,
    ScratchRequestBody,
    ScratchResetBody,
    ScratchResult,
    ScratchStepBody,
)
from weft.look.scratch_engine import SCENARIO_PROMPT_PAGES, ScratchConfig, scenario_pages
from weft.look.scratch_sessions import ScratchSession, ScratchSessions, Script
from weft.sampling.params import SamplingParams

NUM_TOP = 5
"""Alternatives of each token."""


class ScratchRoutes:
    """The routes of one server."""

    def __init__(self, host: LookHost) -> None:
        self.host, self.sessions = host, ScratchSessions()

    async def create(self, body: ScratchBody, call: LookCall) -> Response:
        model = call.model(body.model)
        script = None
        if body.scenario is not None:
            script = await asyncio.to_thread(script_of, body.scenario, body.page_size, model.loaded)
        config = config_of(body, model.loaded, script)
        session = ScratchSession(model, config, script)
        answer = await self.run(call, session, session.make_units())
        self.sessions.add(call.session, session)
        return answer

    async def read(self, session_id: str, since: int | None, call: LookCall) -> Response:
        session = self.find(session_id, call)

        def read() -> Generator[None, None, dict[str, Any]]:
            yield
            return session.answer([] if since is None else session.engine.steps_since(since))

        return await self.run(call, session, read())

    async def submit(self, session_id: str, body: ScratchRequestBody, call: LookCall) -> Response:
        session = self.find(session_id, call)
        request = await asyncio.to_thread(request_of, body, session.model.loaded)

        def submit() -> Generator[None, None, dict[str, Any]]:
            name = session.engine.submit(request)
            yield
            return session.answer([], name=name)

        return await self.run(call, session, submit())

    async def step(self, session_id: str, count: int, call: LookCall) -> Response:
        session = self.find(session_id, call)
        return await self.run(call, session, session.step_units(count))

    async def reset(self, session_id: str, call: LookCall) -> Response:
        session = self.find(session_id, call)
        return await self.run(call, session, session.make_units())

    async def why(self, session_id: str, body: PromptPairBody, call: LookCall) -> Response:
        """Compare two prompts; the second one is looked up in the scratch engine's cache."""
        session = self.find(session_id, call)
        loaded = session.model.loaded
        first, second = await asyncio.to_thread(
            lambda: [
                CachedPrompt(ids, source=source)
                for ids, source in (
                    prompt_and_source(one.text, one.target, loaded)
                    for one in (body.first, body.second)
                )
            ]
        )

        def compare() -> Generator[None, None, dict[str, Any]]:
            yield
            config = session.config
            sharing = compare_prefixes(
                *(first, second, config.page_size, loaded.tokenizer.target, config.prefix_cache),
                num_cached=session.num_cached(second),
            )
            return sharing.to_json()

        return await self.run(call, session, compare())

    async def remove(self, session_id: str, call: LookCall) -> Response:
        self.find(session_id, call)
        self.sessions.remove(call.session, session_id)
        return self.host.json_response({"id": session_id, "deleted": True})

    def find(self, session_id: str, call: LookCall) -> ScratchSession:
        session = self.sessions.get(call.session, session_id)
        if session is None:
            raise self.host.error(
                404,
                f"there is no scratch engine '{session_id[:100]}' any more. POST /look/scratch "
                "makes a new one.",
                param="id",
                code="scratch_expired",
            )
        return session

    async def run(
        self, call: LookCall, session: ScratchSession, units: Generator[None, None, dict[str, Any]]
    ) -> Response:
        """The answer of units that run on the thread of the session's model."""

        async def run_alone() -> dict[str, Any]:
            async with session.lock:
                return await asyncio.wrap_future(session.model.engine.run_units(units))

        content = await call.run(run_alone())
        return await asyncio.to_thread(self.host.json_response, content)


def scratch_router(host: LookHost, routes: ScratchRoutes) -> APIRouter:
    """The routes of one server."""
    router = APIRouter(prefix="/look/scratch", tags=["look"], route_class=host.route_class)

    def enter(request: Request) -> Any:
        return host.enter(request)

    allowed = Depends(enter)

    @router.post("", response_model=ScratchResult)
    async def create(body: ScratchBody, call: Any = allowed) -> Response:
        """A small engine on the model's weights, to be stepped."""
        return await routes.create(body, call)

    @router.get("/{id}", response_model=ScratchResult)
    async def read(
        id: SessionId, since: Annotated[int | None, Query(ge=0)] = None, call: Any = allowed
    ) -> Response:
        """The state of a scratch engine, and the steps after `since`."""
        return await routes.read(id, since, call)

    @router.post("/{id}/submit", response_model=ScratchResult)
    async def submit(id: SessionId, body: ScratchRequestBody, call: Any = allowed) -> Response:
        """A request that arrives before the next step."""
        return await routes.submit(id, body, call)

    @router.post("/{id}/step", response_model=ScratchResult)
    async def step(id: SessionId, body: ScratchStepBody, call: Any = allowed) -> Response:
        """Some steps, until nothing is left to do."""
        return await routes.step(id, body.count, call)

    @router.post("/{id}/reset", response_model=ScratchResult)
    async def reset(id: SessionId, body: ScratchResetBody, call: Any = allowed) -> Response:
        """The same engine from the beginning, with the script of its scenario."""
        return await routes.reset(id, call)

    @router.post("/{id}/why", response_model=SharingResult)
    async def why(id: SessionId, body: PromptPairBody, call: Any = allowed) -> Response:
        """Why a prompt does not share the prefix of another one in this scratch engine."""
        return await routes.why(id, body, call)

    @router.delete("/{id}", response_model=ScratchDeleted)
    async def remove(id: SessionId, call: Any = allowed) -> Response:
        """Drop a scratch engine."""
        return await routes.remove(id, call)

    return router


SessionId = Annotated[str, PathPart(max_length=100)]


def config_of(body: ScratchBody, loaded: LoadedModel, script: Script | None) -> ScratchConfig:
    """The settings of a body; a UsageError for more pages than a server gives away."""
    num_pages = body.num_pages
    if num_pages is None:
        source = None if script is None else script.source
        num_pages = scenario_pages(loaded.model, source, body.page_size)
    if num_pages * body.page_size > MAX_TOKENS:
        raise UsageError(
            f"num_pages is {num_pages} and page_size {body.page_size}: together "
            f"{num_pages * body.page_size} tokens, but a scratch engine has room for {MAX_TOKENS}. "
            "Lower one of them."
        )
    return ScratchConfig(
        num_pages=num_pages,
        page_size=body.page_size,
        prefix_cache=body.prefix_cache,
        token_budget=body.token_budget,
    )


def script_of(text: str, page_size: int, loaded: LoadedModel) -> Script:
    """The tokens of a scenario, repeated up to four pages; of an encoder-decoder the text is source
    and target."""
    prompt, source = prompt_and_source(text, text, loaded)
    number = max(len(prompt), SCENARIO_PROMPT_PAGES * page_size)
    return Script(tuple(islice(cycle(prompt), number)), source)


def prompt_and_source(
    text: str, target: str | None, loaded: LoadedModel
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """The prompt of a text; of an encoder-decoder the beginning of the target, and the source."""
    builder, tokenizer = loaded.request_builder, loaded.tokenizer
    if loaded.kind == "encoder":
        raise UsageError(
            "this model is of kind encoder: it generates no tokens and has no KV cache. Use a "
            "decoder or an encoder-decoder."
        )
    if loaded.kind == "decoder":
        return tuple(builder.prompt_ids(text)), None
    ids = tokenizer.target.encode(target or "", False, sys.maxsize)
    source = tokenizer.encode(text, max_len=loaded.model.config.max_cached_len)
    return (builder.target_begin, *ids), tuple(source)


def request_of(body: ScratchRequestBody, loaded: LoadedModel) -> GenerationRequest:
    prompt, source = prompt_and_source(body.text, body.target, loaded)
    builder = loaded.request_builder
    ends = frozenset([builder.target_end]) if source is not None else builder.ends
    sampling = SamplingParams(temperature=body.temperature, seed=body.seed, logprobs=NUM_TOP)
    beam = None
    if body.beam is not None:
        sampling, beam = SamplingParams(temperature=0.0), BeamConfig(body.beam, num_best=body.beam)
    return GenerationRequest(prompt, body.max_tokens, source, sampling, ends, n=body.n, beam=beam)
