"""`TraceStore`: the last traces of a server. `TraceQueue`: records one trace at a time.

store.put(key, model, trace)        at most 32 traces and 256 MB, least recently used dropped first
store.get(key, trace_id)            None: unknown, dropped, or another API key's
await queue.run(session, work)      a session's new trace cancels its old one; others wait
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from weft.core.errors import UsageError
from weft.look.host import LookModel
from weft.look.trace import Trace

T = TypeVar("T")

MAX_TRACES, MAX_BYTES = 32, 256 * 2**20
MAX_WAITING, WAIT_SECONDS = 4, 2.0
"""Traces that may wait for the running one, and how long."""


class QueueFullError(Exception):
    """Too many traces wait, or this one has waited too long."""


class ReplacedError(Exception):
    """A newer trace of the same session has taken the place of this one."""


@dataclass(frozen=True)
class StoredTrace:
    model: LookModel
    trace: Trace


class TraceStore:
    """Traces by API key and id. Used by the event loop only."""

    def __init__(self, max_traces: int = MAX_TRACES, max_bytes: int = MAX_BYTES) -> None:
        self.max_traces, self.max_bytes = max_traces, max_bytes
        self.traces: OrderedDict[tuple[str, str], StoredTrace] = OrderedDict()

    @property
    def num_bytes(self) -> int:
        return sum(one.trace.nbytes for one in self.traces.values())

    def put(self, key: str, model: LookModel, trace: Trace) -> None:
        """Store a trace; drops the least recently used ones. Raises a UsageError for a trace that
        is larger than the store."""
        if trace.nbytes > self.max_bytes:
            raise UsageError(
                f"the trace has {trace.nbytes / 2**20:,.0f} MB, but the server keeps at most "
                f"{self.max_bytes / 2**20:,.0f} MB. Use a shorter text, or a window of it."
            )
        self.traces[key, trace.id] = StoredTrace(model, trace)
        while len(self.traces) > self.max_traces or self.num_bytes > self.max_bytes:
            self.traces.popitem(last=False)

    def get(self, key: str, trace_id: str) -> StoredTrace | None:
        stored = self.traces.get((key, trace_id))
        if stored is not None:
            self.traces.move_to_end((key, trace_id))
        return stored


@dataclass(eq=False)
class QueuedTrace:
    session: str
    task: asyncio.Task[object] | None = None
    is_replaced: bool = False


class TraceQueue:
    """Runs one trace at a time, with a short queue. Used by one event loop."""

    def __init__(self, max_waiting: int = MAX_WAITING, wait_seconds: float = WAIT_SECONDS) -> None:
        self.max_waiting, self.wait_seconds = max_waiting, wait_seconds
        self.is_taken = False
        self.waiting: list[asyncio.Future[None]] = []
        self.traces: list[QueuedTrace] = []

    async def run(self, session: str, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` when no other trace is being recorded. Raises a QueueFullError if that takes
        too long, a ReplacedError if the session requests another trace meanwhile."""
        await self.replace(session)
        queued = QueuedTrace(session)
        task = asyncio.ensure_future(self.run_in_turn(work))
        queued.task = task
        self.traces.append(queued)
        try:
            return await task
        except asyncio.CancelledError:
            if queued.is_replaced:
                raise ReplacedError from None
            raise
        finally:
            task.cancel()
            self.traces.remove(queued)

    async def replace(self, session: str) -> None:
        """Cancel the traces that a session is waiting for."""
        old = [one for one in self.traces if one.session == session and one.task is not None]
        for one in old:
            one.is_replaced = True
            assert one.task is not None
            one.task.cancel()
        tasks = [one.task for one in old if one.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    async def run_in_turn(self, work: Callable[[], Awaitable[T]]) -> T:
        await self.take_place()
        try:
            return await work()
        finally:
            self.leave_place()

    async def take_place(self) -> None:
        """Wait until no other trace is being recorded; raises a QueueFullError after some
        seconds."""
        if not self.is_taken and not self.waiting:
            self.is_taken = True
            return
        if len(self.waiting) >= self.max_waiting:
            raise QueueFullError
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(turn)
        try:
            async with asyncio.timeout(self.wait_seconds):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # the place was given to it meanwhile
                self.leave_place()
            elif turn in self.waiting:
                self.waiting.remove(turn)
            if isinstance(error, TimeoutError):
                raise QueueFullError from None
            raise

    def leave_place(self) -> None:
        """Let the first waiting trace run."""
        self.is_taken = False
        while self.waiting:
            turn = self.waiting.pop(0)
            if not turn.done():
                self.is_taken = True
                turn.set_result(None)
                return
