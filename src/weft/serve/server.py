"""`HttpServer`: listens at once, loads models in a thread, drains on SIGTERM.

    HttpServer(config, paths, keys, status).run_until_stopped()

    bound socket -> /health 200, /ready 503 with what is loading     within a second or two
                 -> thread: import torch, load and warm up models    all routes
    SIGTERM      -> /ready 503, new requests 503, running ones finish, exit 0
    second signal, or --drain-timeout: the rest ends with an error

This module imports neither torch nor fastapi, so that a service manager or a gateway sees the port
and what is loading. Python's switch interval is lowered while serving: the event loop would
otherwise wait up to 5 ms for the engine thread whenever that holds the interpreter lock.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import uvicorn

from weft.serve.api_errors import ApiError, error_body, error_status, protocol_of
from weft.serve.api_keys import ApiKeys
from weft.serve.config import ServeConfig
from weft.serve.page_requests import is_for_page
from weft.serve.sockets import SocketFile, notify, open_sockets, url_of
from weft.serve.startup_checks import check_exposure, check_template, check_tls

if TYPE_CHECKING:
    from fastapi import APIRouter, FastAPI
    from starlette.types import ASGIApp

    from weft.serve.context import Service

log = logging.getLogger(__name__)

SWITCH_SECONDS = 0.001
POLL_SECONDS = 0.02
END_SECONDS = 2.0
"""Time to send error events and the ends of responses after the drain timeout."""
KEEP_ALIVE_SECONDS = 75
"""Longer than the idle timeout of common proxies, so that the proxy closes idle connections
first."""


class StartupApp:
    """Answers requests until the application is loaded, then forwards them to it."""

    def __init__(self, loading: str, page: ASGIApp | None = None) -> None:
        self.loading, self.page = loading, page
        self.app: FastAPI | None = None

    async def __call__(
        self, scope: Mapping[str, Any], receive: Callable[..., Any], send: Callable[..., Any]
    ) -> None:
        if self.app is not None:
            await self.app(scope, receive, send)  # type: ignore[arg-type]
        elif scope["type"] != "http":
            return
        elif self.page is not None and is_page_request(scope):
            await self.page(scope, receive, send)  # type: ignore[arg-type]
        else:
            status, body = self.answer(scope["path"])
            headers = [(b"content-type", b"application/json"), (b"retry-after", b"2")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    def answer(self, path: str) -> tuple[int, dict[str, Any]]:
        if path == "/health":
            return 200, {"status": "ok", "ready": False}
        error = ApiError(503, f"loading {self.loading}. Try again in some seconds.")
        return error_status(protocol_of(path), 503), error_body(path, error)


def is_page_request(scope: Mapping[str, Any]) -> bool:
    accept = dict(scope["headers"]).get(b"accept", b"").decode("latin-1")
    return is_for_page(scope["method"], scope["path"], accept)


def no_routers(service: Service) -> Sequence[APIRouter]:
    return ()


class HttpServer(uvicorn.Server):
    """One server process."""

    def __init__(
        self,
        config: ServeConfig,
        paths: Mapping[str, str],
        keys: ApiKeys,
        status: Callable[[str], None],
        is_on_demand: bool = False,
        page: ASGIApp | None = None,
        routers: Callable[[Service], Sequence[APIRouter]] = no_routers,
    ) -> None:
        """`paths`: name -> model. `status` prints a line for the user. `page`: the web page.
        `routers` creates further routes."""
        check_exposure(config, keys)
        check_tls(config)
        self.settings, self.paths, self.keys, self.status = config, dict(paths), keys, status
        self.is_on_demand, self.page, self.routers = is_on_demand, page, routers
        self.startup_app = StartupApp(", ".join(paths), page)
        self.sockets = open_sockets(config)
        self.socket_file = SocketFile(config.uds)
        self.url = url_of(config, self.sockets)
        self.service: Service | None = None
        self.failure: BaseException | None = None
        """The error that ended loading; None: there was none."""
        self.loader = threading.Thread(target=self.load, name="weft-loading", daemon=True)
        self.drain_task: asyncio.Task[None] | None = None
        super().__init__(
            uvicorn.Config(
                self.startup_app,
                http="httptools",
                ws="none",  # otherwise each request for one is logged with what to install
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=int(END_SECONDS),
                ssl_certfile=config.tls_cert,
                ssl_keyfile=config.tls_key,
            )
        )

    def run_until_stopped(self) -> None:
        """Serve until a signal; raises the error of a model that cannot be loaded."""
        try:
            with switch_interval(SWITCH_SECONDS):
                self.run(self.sockets)
        finally:
            self.socket_file.remove()
        if self.failure is not None:
            raise self.failure
        if self.loader.is_alive():  # inside torch, which must not run while Python shuts down
            sys.stderr.flush()
            os._exit(0)
        if self.service is not None:
            self.watchdog.stop()
            if self.service.keeper is not None:
                self.service.keeper.finish()
            self.service.models.close()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn would repeat the signal after serving; here a drained server exits with 0."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(number, self.stop)
        what = "starting" if self.is_on_demand else f"loading {self.startup_app.loading}"
        self.status(f"listening on {self.url}; {what}")
        self.loader.start()

    def load(self) -> None:
        """Loading thread: import the application, then load the models."""
        try:
            if self.settings.chat_template is not None:
                check_template(self.settings.chat_template)
            from weft.serve.app import create_app
            from weft.serve.model_loading import build_service, load_models
            from weft.serve.watchdog import Watchdog

            service = build_service(self.settings, self.paths, self.keys, self.is_on_demand)
            app = create_app(service, self.routers(service), self.page)
            self.watchdog = Watchdog(service)
            self.watchdog.start()
            if service.keeper is not None:
                service.keeper.start()
            self.loop.call_soon_threadsafe(self.attach, service, app)
            load_models(service, self.status)
            self.loop.call_soon_threadsafe(self.announce, service)
        except BaseException as error:
            self.failure, self.should_exit = error, True

    def attach(self, service: Service, app: FastAPI) -> None:
        """Event loop: forward requests to the application from now on."""
        service.is_draining = self.drain_task is not None
        self.service, self.startup_app.app = service, app

    def announce(self, service: Service) -> None:
        """Event loop: print that the server is ready, and notify the service manager."""
        import torch

        from weft.serve.model_loading import describe_models

        for line in describe_models(service):
            self.status(f"  {line}")
        if self.is_on_demand:
            self.status(f"  loaded on demand: {', '.join(self.paths)}")
        self.status(f"ready on {self.url}, {torch.get_num_threads()} threads; Ctrl-C stops it")
        notify("READY=1")

    def stop(self) -> None:
        """Event loop: handle a signal. The first one drains the server, the second one ends running
        requests."""
        notify("STOPPING=1")
        if self.drain_task is not None or self.service is None:
            self.drain_timeout = 0.0
            self.should_exit = self.should_exit or self.service is None
            return
        self.service.is_draining = True
        self.drain_timeout = self.settings.drain_timeout
        self.drain_task = self.loop.create_task(self.drain(self.service))

    async def drain(self, service: Service) -> None:
        """Wait for running requests up to the drain timeout, end the others, and exit."""
        begin, count = self.loop.time(), service.num_active
        if count:
            self.status(f"draining: {count} requests run, for at most {self.drain_timeout:g} s")
        while service.num_active and self.loop.time() - begin < self.drain_timeout:
            await asyncio.sleep(POLL_SECONDS)
        if service.num_active:
            self.status(f"{service.num_active} requests were ended")
            service.end_requests("the server has stopped")
            end = self.loop.time() + END_SECONDS
            while service.num_active and self.loop.time() < end:
                await asyncio.sleep(POLL_SECONDS)
        self.should_exit = True


@contextmanager
def switch_interval(seconds: float) -> Iterator[None]:
    """How long a Python thread may hold the interpreter lock while others wait."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
