"""Routes for operators: /health, /ready, /metrics, /v1/loads, /server_info, /version, /docs, /."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from weft import __version__
from weft.sampling.params import SamplingParams
from weft.serve.api_errors import ApiError
from weft.serve.api_route import ApiRoute
from weft.serve.context import CallOf, Service
from weft.serve.docs_page import docs_page
from weft.serve.model_facts import described_facts, loaded_facts
from weft.serve.operation_results import Health, Readiness, ServerInfo, ServerLoad, WeftVersion
from weft.serve.page_requests import wants_page
from weft.serve.responses import JsonResponse, or_streamed
from weft.serve.served_model import ServedModel
from weft.serve.server_metrics import CONTENT_TYPE, load_of, page_usage

router = APIRouter(tags=["operations"], route_class=ApiRoute)


@router.get("/health", response_model=Health)
async def health(call: CallOf) -> Response:
    """200 while the server can answer; 503 if an engine thread has died or is stuck."""
    problem = call.service.problem
    if problem is not None:
        raise ApiError(503, f"{problem}. Restart the server.")
    return JsonResponse({"status": "ok", "ready": is_ready(call) is None})


@router.get("/ready", response_model=Readiness)
async def ready(call: CallOf) -> Response:
    """200 if requests are accepted; 503 with what is loading or draining."""
    reason = is_ready(call)
    if reason is not None:
        raise ApiError(503, reason, headers={"retry-after": "1"})
    return JsonResponse({"status": "ready"})


def is_ready(call: CallOf) -> str | None:
    """Why requests are not accepted; None: they are."""
    service = call.service
    if service.is_draining:
        return "the server is draining: running requests finish, and no others are accepted."
    if service.models.loading:
        return f"loading {', '.join(service.models.loading)}."
    return service.problem


@router.get("/metrics", response_class=PlainTextResponse)
def metrics(request: Request) -> Response:
    """Prometheus metrics."""
    return Response(request.app.state.metrics.render(), media_type=CONTENT_TYPE)


@router.get("/v1/loads", response_model=ServerLoad)
async def loads(call: CallOf) -> Response:
    """The work of each model, in the fields that SGLang's gateway reads."""
    now = time.time()
    entries = [model_load(served, now) for served in call.service.models.models.values()]
    running = sum(one["num_running_reqs"] for one in entries)
    waiting = sum(one["num_waiting_reqs"] for one in entries)
    content = {
        "timestamp": now,
        "version": __version__,
        "dp_rank_count": 1,
        "loads": entries,
        "aggregate": {
            "total_running_reqs": running,
            "total_waiting_reqs": waiting,
            "total_reqs": running + waiting,
            "avg_token_usage": sum(one["token_usage"] for one in entries) / max(1, len(entries)),
        },
    }
    return JsonResponse(content)


def model_load(served: ServedModel, now: float) -> dict[str, Any]:
    load, pool = load_of(served), served.engine.engine.kv_cache.pool
    used = pool.num_usable - pool.num_free - pool.num_evictable
    return {
        "model": served.name,
        "dp_rank": 0,
        "timestamp": now,
        "num_running_reqs": load.num_running,
        "num_waiting_reqs": load.num_waiting,
        "num_total_reqs": load.num_running + load.num_waiting,
        "num_waiting_uncached_tokens": load.tokens_ahead,
        "num_used_tokens": used * pool.page_size,
        "max_total_num_tokens": pool.num_usable * pool.page_size,
        "token_usage": round(page_usage(served), 4),
        "prefill_throughput": round(load.prefill_rate, 1),
        "gen_throughput": round(load.decode_rate, 1),
        "max_running_requests": served.loaded.engine_config.max_running,
    }


@router.get("/server_info", response_model=ServerInfo)
async def server_info(call: CallOf) -> Response:
    """The settings in effect, and the defaults of each model. No keys."""
    service = call.service
    models = await asyncio.to_thread(all_models, service)
    content = {
        "version": __version__,
        "uptime_seconds": round(time.time() - service.started_at, 1),
        "settings": service.config.to_dict(),
        "has_api_keys": bool(service.keys),
        "models": models,
    }
    return JsonResponse(content)


def all_models(service: Service) -> dict[str, Any]:
    """Called in a thread: the files of models that are not loaded are read."""
    return {name: model_info(service, name) for name in service.models.paths}


def model_info(service: Service, name: str) -> dict[str, Any]:
    served = service.models.models.get(name)
    info: dict[str, Any] = {"path": service.models.paths[name], "is_loaded": served is not None}
    if served is None:
        return info | described_facts(service.models.paths[name])
    return info | {
        "kind": served.kind,
        "max_model_len": served.max_len,
        "tool_format": served.tool_format.name,
        "can_chat": served.can_chat,
        "languages": served.languages,
        "architecture": loaded_facts(served),
        "examples": [one.to_dict() for one in served.loaded.checkpoint.examples],
        "defaults": effective_defaults(served),
        "generation_config": served.loaded.generation_config.to_dict(),
        "engine": served.loaded.engine_config.to_dict(),
        "is_reserving": served.is_reserving,
    }


def effective_defaults(served: ServedModel) -> dict[str, Any]:
    """The sampling parameters of a request that sets none. Without a seed it draws a random one."""
    values = SamplingParams.from_dict(served.defaults).to_dict()
    hidden = ["logprobs"] if "seed" in served.defaults else ["logprobs", "seed"]
    return {name: value for name, value in values.items() if name not in hidden}


@router.get("/version", response_model=WeftVersion)
async def version() -> Response:
    """The version of Weft."""
    return JsonResponse({"version": __version__})


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> Response:
    """A page with the routes of this server."""
    return HTMLResponse(docs_page(request.app.openapi()))


@router.get("/openapi.json", include_in_schema=False)
async def openapi(request: Request, call: CallOf) -> Response:
    """The description of the routes; model names only for callers who may use them."""
    return JsonResponse(request.app.openapi(call.service.keys.is_caller(request.headers)))


@router.get("/", response_class=PlainTextResponse, responses=or_streamed("text/html"))
@router.head("/", include_in_schema=False)  # the first route: HEAD is always the greeting
async def index(request: Request) -> Response:
    """The web page for browsers; for others what Ollama's clients look for."""
    page = request.app.state.index
    accept = request.headers.get("accept", "")
    if page is not None and wants_page(request.method, "/", accept):
        return PageResponse(page)
    return PlainTextResponse("Ollama is running", headers={"vary": "accept"})


class PageResponse(Response):
    """Lets another application answer."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__()
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)
