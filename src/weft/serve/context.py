"""`Service`: the state of the server that all requests share. `HttpCall`: the state of one HTTP
request besides its body. `RequestRecord`: the data of its log line and metrics.

    async def route(body: CompletionBody, call: CallOf) -> Response:
        served = call.open(body, body.model)        checks the fields, finds the model

The middleware (app.py) creates the HttpCall: id, caller, deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, cast

from fastapi import Depends
from starlette.requests import Request

from weft.engine.async_engine import AsyncEngine
from weft.engine.request import GenerationRequest, RequestOutput
from weft.serve.api_errors import ApiError
from weft.serve.api_keys import ANYONE, ApiKeys, Caller
from weft.serve.bodies import Body
from weft.serve.cache_keeping import CacheKeeper
from weft.serve.config import ServeConfig
from weft.serve.limits import Limits, Reservation, check_prompts
from weft.serve.recent_responses import RecentResponses
from weft.serve.response_store import ResponseStore
from weft.serve.served_model import ModelRegistry, ServedModel

if TYPE_CHECKING:
    from weft.serve.generation import Generation, Usage


@dataclass
class RequestRecord:
    """Data of one request for the log and the metrics. Contains no text of prompts or answers."""

    id: str
    route: str = ""
    key: str = ""
    model: str = ""
    status: int = 0
    began_at: float = field(default_factory=time.perf_counter)
    ended_at: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    last_by_sample: dict[tuple[str, int], float] = field(default_factory=dict)
    """Time of the last token of each sample."""
    token_gaps: list[float] = field(default_factory=list)
    """Seconds between two outputs of a sample."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finish_reason: str = ""
    error: ApiError | None = None
    seed: int | None = None
    generation: Generation | None = None
    """The running requests; their stream has the queueing times."""

    def started(self, generation: Generation) -> None:
        """Record that the requests were submitted to the engine."""
        self.generation, self.model = generation, generation.served.name
        self.seed = generation.requests[0].sampling.seed if generation.requests else None

    def received(self, output: RequestOutput) -> None:
        """Record an output of the engine."""
        if output.tokens:
            now, sample = time.perf_counter(), (output.request_id, output.index)
            if self.first_token_at is None:
                self.first_token_at = now
            if sample in self.last_by_sample:
                self.token_gaps.append(now - self.last_by_sample[sample])
            self.last_by_sample[sample] = self.last_token_at = now
        if output.finish is not None:
            self.finish_reason = output.finish.reason

    def used(self, usage: Usage) -> None:
        """Record the final token counts."""
        self.prompt_tokens, self.cached_tokens = usage.prompt_tokens, usage.cached_tokens
        self.completion_tokens = usage.completion_tokens

    def disconnected(self) -> None:
        """Record that the client disconnected before the end."""
        self.finish_reason = "disconnect"

    def failed(self, error: ApiError) -> None:
        self.error, self.finish_reason = error, "error"

    @property
    def total_seconds(self) -> float | None:
        """From the headers of the request to the end of the response."""
        return None if self.ended_at is None else self.ended_at - self.began_at

    @property
    def first_token_seconds(self) -> float | None:
        """Time to first token."""
        return None if self.first_token_at is None else self.first_token_at - self.began_at

    @property
    def admitted_at(self) -> float | None:
        """Time at which the first of the requests was admitted."""
        times = [] if self.generation is None else list(self.generation.stream.times.values())
        return min((one.admitted_at for one in times if one.admitted_at is not None), default=None)

    @property
    def queue_seconds(self) -> float | None:
        """From the headers of the request to its admission."""
        return None if self.admitted_at is None else self.admitted_at - self.began_at


RecordSink = Callable[[RequestRecord], None]
"""Functions that are called with the record of each finished request: log, metrics."""


@dataclass
class Service:
    """The state of one server."""

    models: ModelRegistry
    config: ServeConfig = field(default_factory=ServeConfig)
    keys: ApiKeys = field(default_factory=lambda: ApiKeys({}))
    limits: Limits = field(default_factory=Limits)
    sinks: list[RecordSink] = field(default_factory=list)
    is_draining: bool = False
    fatal: str | None = None
    """Why the watchdog is about to end the process; None: it is not."""
    started_at: float = field(default_factory=time.time)
    num_active: int = 0
    """Number of HTTP requests in progress."""
    recent: RecentResponses = field(default_factory=RecentResponses)
    """Engine requests of recent responses, for /v1/attention."""
    keeper: CacheKeeper | None = None
    """Saves the prefix caches; None without --keep."""
    stored_responses: ResponseStore = field(default_factory=ResponseStore)

    @property
    def problem(self) -> str | None:
        """Why an engine can no longer serve requests; None: all can."""
        if self.fatal is not None:
            return self.fatal
        for served in list(self.models.models.values()):
            if not served.engine.is_alive:
                return f"the engine of model '{served.name}' has stopped"
        return None

    def end_requests(self, reason: str) -> None:
        """End all requests of the engines with an error."""

        def end_all(engine: AsyncEngine) -> None:
            ids = list(engine.receivers)
            engine.end_requests(reason)
            for request_id in ids:
                engine.remove(request_id)

        for served in list(self.models.models.values()):
            if served.engine.is_alive:
                served.engine.post(end_all)


@dataclass
class HttpCall:
    """One HTTP request."""

    request: Request
    service: Service
    id: str
    caller: Caller = ANYONE
    timeout: float = ServeConfig.model_fields["timeout"].default
    record: RequestRecord = field(default_factory=lambda: RequestRecord(""))
    response_headers: dict[str, str] = field(default_factory=dict)
    """Headers that are added to the response."""
    warnings: list[str] = field(default_factory=list)
    reservations: list[Reservation] = field(default_factory=list)
    has_ended: bool = False

    def __post_init__(self) -> None:
        self.deadline = asyncio.get_running_loop().time() + self.timeout
        """Deadline by the clock of the event loop."""

    def set_timeout(self, header: str) -> None:
        """Lower the timeout to the seconds in the header x-request-timeout."""
        try:
            seconds = float(header)
        except ValueError:
            seconds = -1.0
        if not 0 < seconds < float("inf"):
            raise ApiError(
                400, f"x-request-timeout is '{header[:40]}': it must be seconds above 0."
            )
        self.timeout = min(self.timeout, seconds)
        self.deadline = asyncio.get_running_loop().time() + self.timeout

    def timed_out(self) -> ApiError:
        """The error for a call whose deadline has passed."""
        return ApiError(504, f"the request took longer than {self.timeout:g} s and was cancelled.")

    @property
    def config(self) -> ServeConfig:
        return self.service.config

    @property
    def limits(self) -> Limits:
        return self.service.limits

    def reserve(self, served: ServedModel, requests: Sequence[GenerationRequest]) -> Reservation:
        """Reserve a place in the queue of a model until the call ends. Raises an ApiError 429 if
        the queue is full, 400 for a prompt that is too long."""
        check_prompts(requests, self.config.max_prompt)
        bound = self.config.max_queued_tokens
        reservation = self.limits.reserve(served, self.caller.name, requests, bound)
        if self.service.keeper is not None:
            self.service.keeper.mark_used()
        self.reservations.append(reservation)
        if self.has_ended:  # meanwhile, in the event loop
            self.release()
        return reservation

    def release(self) -> None:
        """Release the reservations of the call, which has ended."""
        self.has_ended = True
        for reservation in self.reservations:
            self.limits.release(reservation)

    @property
    def ping_seconds(self) -> float:
        return self.config.ping_seconds

    def open(self, body: Body, model: str | None, *kinds: str) -> ServedModel:
        """Check the fields of a body and return its model, which must be of one of `kinds`."""
        for warning in body.check_fields(self.config.lenient):
            self.warn(warning)
        self.record.model = self.service.models.resolve(model)
        served = self.service.models.get(model)
        if kinds:
            served.check_kind(*kinds)
        return served

    def warn(self, warning: str) -> None:
        """Add a sentence to the header x-weft-warning, once: a request that has waited for its
        model is read again."""
        if warning in self.warnings:
            return
        self.warnings.append(warning)
        self.response_headers["x-weft-warning"] = header_value("; ".join(self.warnings))[:1000]


def header_value(text: str) -> str:
    """Text as the value of a header: what is not printable ASCII, such as a line break that a
    client has sent in the name of a field, becomes a question mark."""
    return "".join(each if " " <= each <= "~" else "?" for each in text)


def call_of(request: Request) -> HttpCall:
    """The HttpCall that the middleware has created."""
    return cast(HttpCall, request.scope["weft.call"])


async def call_dependency(request: Request) -> HttpCall:
    """`call_of` as a dependency of routes. A coroutine, because FastAPI runs other dependencies in
    a thread, which delays each request by half a millisecond or more."""
    return call_of(request)


CallOf = Annotated[HttpCall, Depends(call_dependency)]
