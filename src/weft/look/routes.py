"""HTTP routes of traces: POST /look, GET /look/{id}/array, neighbors and lens, POST /look/why.

    router = look_router(host)          create_app(service, routers=[router])

Only on loopback addresses, or with --look; API keys are respected. A trace contains its own text
only, and other API keys cannot read it. It is recorded on the model's engine thread in units of at
most 10 ms, one between two engine steps. A session's new trace cancels its old one; others wait for
two seconds, then the answer is 429. The last 32 traces are kept, up to 256 MB; 404 with the code
trace_expired after that.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import APIRouter, Depends, Query
from fastapi import Path as PathPart
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from weft.cache.prefix_cache import PrefixQuery
from weft.core.errors import UsageError
from weft.engine.beam_search import BeamConfig
from weft.engine.client import translation
from weft.engine.engine import Engine
from weft.engine.scheduling.sequence import Request as EngineRequest
from weft.look.host import LookCall, LookHost, LookModel
from weft.look.logit_lens import lens_units
from weft.look.prefix_sharing import CachedPrompt, compare_prefixes
from weft.look.recorder import trace_units
from weft.look.route_bodies import (
    ArrayResult,
    LensResult,
    NeighborsResult,
    PromptBody,
    SharingBody,
    SharingResult,
    TraceBody,
    TraceResult,
)
from weft.look.trace import Trace
from weft.look.trace_data import Array
from weft.look.trace_input import TextOrIds
from weft.look.trace_store import QueueFullError, ReplacedError, StoredTrace, TraceQueue, TraceStore

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_SECONDS = 2
MAX_LENS = 64
"""Positions of one request of the logit lens."""
Position = Annotated[int, Field(ge=0)]
BINARY = "application/octet-stream"


class TraceRoutes:
    """The routes of traces, and what they keep."""

    def __init__(self, host: LookHost) -> None:
        self.host, self.store, self.queue = host, TraceStore(), TraceQueue()

    async def trace(self, body: TraceBody, call: LookCall) -> Response:
        """Record a trace and keep it."""
        model = call.model(body.model)
        try:
            trace = await call.run(
                self.queue.run(call.session, lambda: self.record(body, call, model))
            )
        except QueueFullError:
            raise self.host.error(
                429,
                "other traces are being recorded. Try again in some seconds.",
                headers={"retry-after": str(RETRY_SECONDS)},
            ) from None
        except ReplacedError:
            raise self.host.error(
                409,
                "a newer trace of the same session has taken the place of this one. Use that.",
                code="trace_replaced",
            ) from None
        self.store.put(call.key, model, trace)
        return await asyncio.to_thread(lambda: self.host.json_response(trace.to_json()))

    async def record(self, body: TraceBody, call: LookCall, model: LookModel) -> Trace:
        """The trace, recorded between the steps of the model's engine."""
        target: TextOrIds | None = body.target
        if target is None and model.loaded.kind == "encoder-decoder":
            target = await translate(body.text, call, model)
        units = await asyncio.to_thread(units_of, body, target, model)
        return await asyncio.wrap_future(model.engine.run_units(units))

    async def array(
        self, trace_id: str, name: str, head: int | None, row: int | None, form: str, call: LookCall
    ) -> Response:
        """Values of a stage of a stored trace."""
        stored = self.find(trace_id, call)
        units = last_of(stored.trace.array_units(name, head, row))
        if name in stored.trace.arrays:
            values = await asyncio.to_thread(run_units, units)
        else:
            values = await call.run(asyncio.wrap_future(stored.model.engine.run_units(units)))
        if form == "json":
            return await asyncio.to_thread(self.json_array, name, values)
        data = np.ascontiguousarray(values, dtype="<f4").tobytes()
        shape = ",".join(map(str, values.shape))
        return Response(data, headers={"x-shape": shape, "x-dtype": "float32"}, media_type=BINARY)

    def find(self, trace_id: str, call: LookCall) -> StoredTrace:
        """A kept trace of the caller; an error 404 if there is none."""
        stored = self.store.get(call.key, trace_id)
        if stored is None:
            raise self.host.error(
                404,
                f"there is no trace '{trace_id[:100]}' any more. POST /look records it again.",
                param="id",
                code="trace_expired",
            )
        return stored

    async def neighbors(self, trace_id: str, side: str, token: int, call: LookCall) -> Response:
        """The tokens with the most similar embeddings to that of a token of a stored trace."""
        stored = self.find(trace_id, call)
        units = last_of(stored.trace.neighbor_units(side, token))
        found = await call.run(asyncio.wrap_future(stored.model.engine.run_units(units)))
        token_id = stored.trace.tokens[side][token].id
        return self.host.json_response(
            {"token": token_id, "neighbors": [asdict(one) for one in found]}
        )

    async def lens(self, trace_id: str, positions: Sequence[int], call: LookCall) -> Response:
        """The logit lens of some positions of a stored trace."""
        stored = self.find(trace_id, call)
        units = last_of(lens_units(stored.trace, positions))
        found = await call.run(asyncio.wrap_future(stored.model.engine.run_units(units)))
        return self.host.json_response(asdict(found))

    def json_array(self, name: str, values: Array) -> Response:
        entry = {"name": name, "shape": list(values.shape), "dtype": "float32"}
        return self.host.json_response({**entry, "values": np.ascontiguousarray(values)})

    async def why(self, body: SharingBody, call: LookCall) -> Response:
        """Compare two prompts."""
        model = call.model(body.model)
        first, second = await asyncio.to_thread(
            lambda: [prompt_of(one, call, model) for one in (body.first, body.second)]
        )

        def look_up(engine: Engine) -> int:
            source = None if second.source is None else tuple(second.source)
            salted = EngineRequest("", tuple(second.ids), 1, source, salt_of(call, second))
            return engine.kv_cache.prefix_cache.peek(
                PrefixQuery(list(second.ids), salted.namespace)
            )

        num_cached = await call.run(asyncio.wrap_future(model.engine.call(look_up)))
        config = model.engine.engine.config
        sharing = compare_prefixes(
            first,
            second,
            config.page_size,
            model.loaded.tokenizer.target,
            config.prefix_cache,
            num_cached,
        )
        return self.host.json_response(sharing.to_json())


def look_router(host: LookHost) -> APIRouter:
    """The routes of one server."""
    routes = TraceRoutes(host)
    router = APIRouter(tags=["look"], route_class=host.route_class)

    def enter(request: Request) -> Any:
        return host.enter(request)

    allowed = Depends(enter)

    async def trace(body: TraceBody, call: Any = allowed) -> Response:
        """Every stage of one forward pass over a text."""
        return await routes.trace(body, call)

    async def array(
        id: Annotated[str, PathPart(max_length=100)],
        name: Annotated[str, Query(max_length=200)],
        head: Annotated[int | None, Query(ge=0)] = None,
        row: Annotated[int | None, Query(ge=0)] = None,
        form: Annotated[str, Query(alias="as", pattern="^(binary|json)$")] = "binary",
        call: Any = allowed,
    ) -> Response:
        """Exact float32 values of a stage, of one head or row of it. Headers: X-Shape, X-Dtype."""
        return await routes.array(id, name, head, row, form, call)

    async def neighbors(
        id: Annotated[str, PathPart(max_length=100)],
        token: Annotated[int, Query(ge=0)],
        side: Annotated[str, Query(pattern="^(src|tgt)$")] = "src",
        call: Any = allowed,
    ) -> Response:
        """The tokens of the vocabulary whose embeddings are most similar, by cosine."""
        return await routes.neighbors(id, side, token, call)

    async def lens(
        id: Annotated[str, PathPart(max_length=100)],
        token: Annotated[list[Position], Query(min_length=1, max_length=MAX_LENS)],
        call: Any = allowed,
    ) -> Response:
        """The most likely next tokens after each layer, at some positions."""
        return await routes.lens(id, token, call)

    async def why(body: SharingBody, call: Any = allowed) -> Response:
        """Why a prompt did not share the cached prefix of an earlier one."""
        return await routes.why(body, call)

    binary: dict[int | str, dict[str, Any]] = {
        200: {"content": {BINARY: {"schema": {"type": "string", "format": "binary"}}}}
    }
    add(router, "POST", "/look", trace, TraceResult)
    add(router, "GET", "/look/{id}/array", array, ArrayResult, binary)
    add(router, "GET", "/look/{id}/neighbors", neighbors, NeighborsResult)
    add(router, "GET", "/look/{id}/lens", lens, LensResult)
    add(router, "POST", "/look/why", why, SharingResult)
    return router


def add(
    router: APIRouter,
    method: str,
    path: str,
    endpoint: Callable[..., Coroutine[Any, Any, Response]],
    result: type[Any],
    responses: dict[int | str, dict[str, Any]] | None = None,
) -> None:
    router.add_api_route(
        path, endpoint, methods=[method], response_model=result, responses=responses
    )


def units_of(
    body: TraceBody, target: TextOrIds | None, model: LookModel
) -> Generator[None, None, Trace]:
    """The units of a trace; raises a UsageError for a text or head that does not fit."""
    loaded = model.loaded
    is_translation = loaded.kind == "encoder-decoder"
    return trace_units(
        *(loaded.model, loaded.tokenizer, body.text, target, body.task, body.ablate, body.detail),
        window=body.window,
        start=loaded.request_builder.target_begin if is_translation else None,
        name=model.name,
    )


async def translate(text: TextOrIds, call: LookCall, model: LookModel) -> str:
    """The model's translation, as `translate` returns it, in the namespace of the caller."""
    if not isinstance(text, str):
        raise UsageError("text is a list of ids: give the target too, which they are read with.")
    loaded = model.loaded
    if not text.strip():
        return ""
    limit = loaded.model.config.max_cached_len

    def build() -> Any:
        (source,) = loaded.tokenizer.encode_batch([text], max_len=limit)
        request = loaded.request_builder.beam_search(source, None, BeamConfig(1, 1.0, 1))
        return replace(request, salt=call.salt, key=call.key)

    request = await asyncio.to_thread(build)
    async for output in model.engine.stream(request):
        for best in output.hypotheses:
            return translation(loaded.tokenizer.target, best.ids, best.score).text
    return ""


def last_of(units: Iterator[T | None]) -> Generator[None, None, T]:
    """Units of work whose last value is the result of a generator."""
    for value in units:
        if value is not None:
            return value
        yield
    raise AssertionError("the units ended without a value")


def run_units(units: Generator[None, None, Array]) -> Array:
    """The result of units that compute nothing."""
    while True:
        try:
            next(units)
        except StopIteration as stop:
            values: Array = stop.value
            return values


def prompt_of(prompt: PromptBody, call: LookCall, model: LookModel) -> CachedPrompt:
    """The tokens of a prompt, as a completion or a translation of it would have them."""
    builder, tokenizer = model.loaded.request_builder, model.loaded.tokenizer
    if model.loaded.kind != "encoder-decoder":
        return CachedPrompt(builder.prompt_ids(prompt.text), call.key, prompt.cache_salt)
    target = tokenizer.target.encode(prompt.target or "", False, sys.maxsize)
    ids: Sequence[int] = [builder.target_begin, *target]
    source = tuple(tokenizer.encode(prompt.text))
    return CachedPrompt(ids, call.key, prompt.cache_salt, source)


def salt_of(call: LookCall, prompt: CachedPrompt) -> str:
    """The salt of a request with this prompt."""
    return f"{call.salt}/{prompt.salt}" if prompt.salt else call.salt
