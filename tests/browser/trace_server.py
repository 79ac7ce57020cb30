"""The page and real traces of models, without an engine: for tests of Walk.

    with TraceServer({"base": model}) as server:
        server.url; server.traces

Answers `GET /server_info`, `POST /look` and `GET /look/{id}/array` as `weft serve` does, from
traces recorded in this process, which a test compares with what the page shows. `failures` are
answers to the next requests for a trace, before real ones.
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict
from typing import Any

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from weft.checkpoint.weft_folder import Checkpoint
from weft.core.errors import UsageError
from weft.look.assets import PageApp
from weft.look.recorder import record
from weft.look.trace import Trace


class TraceServer:
    """A server on a free port, in a thread. `with` ends it."""

    def __init__(self, models: dict[str, Checkpoint], examples: list[dict[str, str]] | None = None):
        self.models, self.examples = models, examples or []
        self.traces: dict[str, Trace] = {}
        self.failures: list[Response] = []
        self.delay = 0.0
        self.lock = threading.Lock()
        """Of whoever runs a model: hooks of two threads would see each other's numbers."""
        routes = [
            Route("/health", lambda request: Response("ok")),
            Route("/server_info", self.server_info),
            Route("/look", self.look, methods=["POST"]),
            Route("/look/{id}/array", self.array),
            Route("/look/{id}/neighbors", self.neighbors),
            Route("/look/{id}/lens", self.lens),
            Mount("/", PageApp()),
        ]
        config = uvicorn.Config(
            Starlette(routes=routes), port=0, log_level="warning", lifespan="off"
        )
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def __enter__(self) -> TraceServer:
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(10)

    @property
    def url(self) -> str:
        port = self.server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}"

    @property
    def last(self) -> Trace:
        """The trace that was recorded last."""
        return next(reversed(self.traces.values()))

    def server_info(self, request: Request) -> Response:
        models = {
            name: {
                "is_loaded": True,
                "kind": one.model.config.kind,
                "architecture": {"layers": 2, "heads": one.model.config.attention.num_heads},
                "examples": self.examples,
            }
            for name, one in self.models.items()
        }
        return JSONResponse({"version": "0", "settings": {}, "models": models})

    async def look(self, request: Request) -> Response:
        body: dict[str, Any] = await request.json()
        time.sleep(self.delay)
        if self.failures:
            return self.failures.pop(0)
        one = self.models[body["model"]]
        try:
            with self.lock:
                trace = record(
                    one.model,
                    one.tokenizer,
                    body["text"],
                    body.get("target"),
                    ablate=[tuple(head) for head in body.get("ablate", [])],
                    detail=body.get("detail", "auto"),
                    name=body["model"],
                )
        except UsageError as error:
            return JSONResponse({"error": {"message": str(error)}}, 400)
        self.traces[trace.id] = trace
        return JSONResponse(trace.to_json())

    def neighbors(self, request: Request) -> Response:
        trace = self.traces.get(request.path_params["id"])
        if trace is None:
            return JSONResponse({"error": {"message": "gone", "code": "trace_expired"}}, 404)
        side, token = request.query_params["side"], int(request.query_params["token"])
        with self.lock:
            found = trace.neighbors(side, token)
        return JSONResponse({"neighbors": [asdict(one) for one in found]})

    def lens(self, request: Request) -> Response:
        trace = self.traces.get(request.path_params["id"])
        if trace is None:
            return JSONResponse({"error": {"message": "gone", "code": "trace_expired"}}, 404)
        positions = [int(one) for one in request.query_params.getlist("token")]
        with self.lock:
            return JSONResponse(asdict(trace.logit_lens(positions)))

    def array(self, request: Request) -> Response:
        trace = self.traces.get(request.path_params["id"])
        if trace is None:
            return JSONResponse({"error": {"message": "gone", "code": "trace_expired"}}, 404)
        query = request.query_params
        head, row = (int(query[key]) if key in query else None for key in ("head", "row"))
        with self.lock:
            values = np.ascontiguousarray(trace.array(query["name"], head, row), dtype="<f4")
        shape = ",".join(map(str, values.shape))
        return Response(values.tobytes(), headers={"x-shape": shape, "x-dtype": "float32"})
