"""A real server on a free port, with tiny models, in a thread of the test process."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import APIRouter
from starlette.types import ASGIApp

from tests.engine.tiny import tiny
from weft.checkpoint.weft_folder import Checkpoint
from weft.engine.async_engine import AsyncEngine
from weft.engine.config import EngineConfig
from weft.engine.engine_thread import EngineThread
from weft.engine.loaded_model import LoadedModel
from weft.serve.api_keys import ApiKeys
from weft.serve.app import create_app
from weft.serve.config import ServeConfig
from weft.serve.context import Service
from weft.serve.limits import Limits
from weft.serve.served_model import ModelRegistry

SMALL = EngineConfig(page_size=4, cache_gib=0.01)


def make_service(
    models: Mapping[str, Checkpoint] | None = None,
    keys: Mapping[str, str] | None = None,
    aliases: Mapping[str, str] | None = None,
    engine: EngineConfig = SMALL,
    limits: Limits | None = None,
    **config: Any,
) -> Service:
    """A service of tiny models: `decoder` unless others are given."""
    checkpoints = dict(models or {"decoder": tiny("decoder")})
    thread = EngineThread()
    registry = ModelRegistry(
        {name: name for name in checkpoints},
        lambda name: LoadedModel(checkpoints[name], engine, thread=thread),
        aliases,
        thread=thread,
    )
    registry.load_all()
    return Service(registry, ServeConfig(**config), ApiKeys(keys or {}), limits or Limits())


class RunningServer:
    """The address of a server, and a client for it."""

    def __init__(self, service: Service, url: str) -> None:
        self.service, self.url = service, url
        self.client = httpx.Client(base_url=url, timeout=60)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.client.post(path, json=body, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.client.get(path, **options)

    def wait_idle(self, seconds: float = 20.0) -> None:
        """Until no request is active; then every page must be free or in a cache, and no place in
        a queue taken: a place is given back after the client has its answer."""
        end = time.monotonic() + seconds
        engines = [served.engine for served in self.service.models.models.values()]
        while self.service.limits.reservations or not all(map(is_at_rest, engines)):
            assert time.monotonic() < end, "requests, pages or reservations are left"
            time.sleep(0.005)


def is_at_rest(one: AsyncEngine) -> bool:
    """Whether nothing is active and no page is held. The engine thread may be ending a step, so a
    test asks until it is."""
    pool = one.engine.kv_cache.pool
    has_pages = pool.num_free + pool.num_evictable == pool.num_usable
    return one.engine.is_idle and not one.commands and not one.receivers and has_pages


@contextmanager
def running(
    service: Service,
    send_buffer: int | None = None,
    routers: Sequence[APIRouter] = (),
    index: ASGIApp | None = None,
) -> Iterator[RunningServer]:
    """Serve until the block ends. `send_buffer`: bytes of each connection in the kernel; `index`:
    the web page."""
    config = uvicorn.Config(
        create_app(service, routers, index),
        "127.0.0.1",
        0,
        loop="asyncio",
        http="httptools",
        ws="none",
        log_config=None,
        lifespan="off",
    )
    server = uvicorn.Server(config)
    sockets = [config.bind_socket()]
    if send_buffer is not None:  # accepted connections inherit it
        sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets)), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.005)
    one = RunningServer(service, f"http://127.0.0.1:{sockets[0].getsockname()[1]}")
    try:
        yield one
    finally:
        one.client.close()
        server.should_exit = True
        thread.join(20)
        service.models.close()
