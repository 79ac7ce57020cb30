"""`EngineThread`: one thread that steps any number of engines in turns.

    thread = EngineThread()
    a, b = AsyncEngine(engine_a, thread=thread), AsyncEngine(engine_b, thread=thread)
    ...
    thread.close()

One thread for all models of a process: libgomp creates a team of threads for every thread that runs
kernels, and two teams on the same cores wait for each other. Engines that have work get equal
shares of the wall time (turns.py), and their steps are kept short meanwhile (latency_budget.py).
Before each step the thread runs the commands of all engines, and one unit of the background work
(background_units.py) if there is any.

The thread starts at first use. While nothing runs it holds weak references only, so that a thread
that is dropped without `close` ends, and so does an engine. An engine that fails is removed, and
the others continue; an exception outside of an engine ends the thread and all of its engines.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Protocol

from weft.engine.background_units import BackgroundUnits
from weft.engine.turns import TimeShare, Turns

log = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
"""`close` waits so long for the current step."""


class SteppedEngine(Protocol):
    """What the thread needs of an engine; all methods are called in the thread."""

    is_closed: bool

    @property
    def has_commands(self) -> bool: ...

    @property
    def has_work(self) -> bool:
        """Whether a step has anything to do."""

    def run_commands(self) -> None: ...

    def run_step(self, is_shared: bool) -> None:
        """One step; `is_shared`: another engine has work as well."""

    def fail(self, error: BaseException) -> None:
        """The engine is not stepped any more, because of this error."""

    def end(self) -> None:
        """The engine is not stepped any more, because it was closed."""


@dataclass(eq=False)
class Member:
    """An engine of the thread."""

    ref: weakref.ref[SteppedEngine]
    share: TimeShare = field(default_factory=TimeShare)


class EngineThread:
    """The thread and its engines. `add` and `close` may be called in any thread."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now, self.turns = now, Turns()
        self.background = BackgroundUnits()
        self.unit_began_at: float | None = None
        """While a background unit runs, when it began by time.monotonic."""
        self.members: list[Member] = []
        """Replaced as a whole, never changed: the thread iterates over it."""
        self.wakeups: SimpleQueue[None] = SimpleQueue()
        """One for each command. `put` may be called anywhere, as by the garbage collector."""
        self.is_closed = False
        self.pid = os.getpid()
        self.thread: threading.Thread | None = None
        self.lock = threading.Lock()
        OPEN.add(self)
        weakref.finalize(self, self.wakeups.put, None).atexit = False

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else "not started" if self.thread is None else "running"
        return f"EngineThread({len(self.members)} engines, {state})"

    def add(self, engine: SteppedEngine) -> None:
        """Step an engine from now on, until it is closed, fails or is dropped."""
        with self.lock:
            self.members = [*self.members, Member(weakref.ref(engine))]

    def remove(self, member: Member) -> None:
        with self.lock:
            self.members = [one for one in self.members if one is not member]

    def wake(self) -> None:
        """Let the thread look for commands and work."""
        self.wakeups.put(None)

    def start(self) -> None:
        """Start the thread unless it was started before."""
        with self.lock:
            if self.thread is None:
                thread = threading.Thread(
                    target=run_thread,
                    args=(self.wakeups, weakref.ref(self)),
                    name="weft-engine",
                    daemon=True,  # `close_all` ends it at exit
                )
                thread.start()
                self.thread = thread  # once it runs: `is_alive` may be asked at any time

    @property
    def is_alive(self) -> bool:
        """Whether engines can be stepped: the thread works, or has not been needed yet."""
        is_dead = self.thread is not None and not self.thread.is_alive()
        return not self.is_closed and not is_dead

    @property
    def can_wait(self) -> bool:
        """Whether the thread runs, and the caller is not in it."""
        thread = self.thread
        is_other = thread is not None and thread is not threading.current_thread()
        return is_other and os.getpid() == self.pid

    def run_until_idle(self) -> None:
        """Thread: turns until no engine has anything to do."""
        while not self.is_closed and self.run_turn():
            pass

    def run_turn(self) -> bool:
        """Thread: the commands of all engines, one background unit, then one step of one engine.
        False: there is nothing to do."""
        busy = {
            member.share: (member, engine)
            for member, engine in self.engines()
            if self.prepare(member, engine)
        }
        has_run_unit = self.background.has_work and self.run_unit()
        if not busy:
            return has_run_unit
        member, engine = busy[self.turns.choose([*busy])]
        self.run_timed(member, engine, lambda: engine.run_step(len(busy) > 1))
        return True

    def run_unit(self) -> bool:
        """Thread: one background unit. False: there was none."""
        self.unit_began_at = time.monotonic()
        try:
            return self.background.run_one()
        finally:
            self.unit_began_at = None

    def engines(self) -> Iterator[tuple[Member, SteppedEngine]]:
        """The engines that were not dropped."""
        for member in self.members:
            engine = member.ref()
            if engine is None:
                self.remove(member)
            else:
                yield member, engine

    def prepare(self, member: Member, engine: SteppedEngine) -> bool:
        """Run the commands of an engine; whether it has work then."""
        if engine.is_closed:
            self.remove(member)
            engine.end()
            return False
        if engine.has_commands and not self.run_timed(member, engine, engine.run_commands):
            return False
        return engine.has_work

    def run_timed(
        self, member: Member, engine: SteppedEngine, function: Callable[[], None]
    ) -> bool:
        """Call a function of an engine and charge it the time. False: it has failed."""
        begin = self.now()
        try:
            function()
            return True
        except BaseException as error:
            self.remove(member)
            engine.fail(error)
            return False
        finally:
            self.turns.charge(member.share, self.now() - begin)

    def end(self) -> None:
        """Thread: it was closed, and so are its engines."""
        self.background.cancel_all()
        for member, engine in self.engines():
            engine.is_closed = True
            self.remove(member)
            engine.end()

    def fail(self, error: BaseException) -> None:
        """Thread: it ends, and its engines with it."""
        self.is_closed = True
        self.background.cancel_all()
        for member, engine in self.engines():
            self.remove(member)
            engine.fail(error)

    def close(self) -> None:
        """End the thread after the current step. Requests that run are dropped."""
        self.is_closed = True
        self.wake()
        if self.thread is None:
            self.end()
        elif self.can_wait:
            self.thread.join(CLOSE_SECONDS)


OPEN: weakref.WeakSet[EngineThread] = weakref.WeakSet()
"""Closed when the interpreter exits: a thread must not be inside a kernel then."""


@atexit.register
def close_all() -> None:
    for thread in list(OPEN):
        thread.close()


def run_thread(wakeups: SimpleQueue[None], ref: weakref.ref[EngineThread]) -> None:
    """Main function of the thread."""
    while True:
        wakeups.get()
        owner = ref()
        if owner is None:
            return
        try:
            owner.run_until_idle()
            if owner.is_closed:
                owner.end()
                return
        except BaseException as error:
            log.critical("thread=stopped", exc_info=error)
            owner.fail(error)
            return
        del owner  # while it waits, nothing keeps the engines
