"""A team: processes with an engine each. Searches in, what they found out, as each is done.

    with Team("runs/en-de", size=2) as team:
        loaded.translate(texts, beam=5, team=team)

For small models, whose step takes as long in Python as in arithmetic: one engine leaves the other
cores waiting then, threads would wait for each other's Python, and processes do not. Each loads the
model and has a cache of its own, so a team pays for long files. Requests are handed out in portions
that become smaller, so that a core that is slower than the others gets fewer. What is found is the
same to the last bit.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import torch

from weft.core.errors import DataError, UsageError, WeftError
from weft.engine.beam import Hypothesis
from weft.engine.config import EngineConfig
from weft.engine.desk import Desk
from weft.engine.load import load
from weft.engine.writing import Writing

PATIENCE = 5.0
"""Seconds that a process has for ending by itself."""

LEAST = 8
"""Requests of a portion, where there are as many."""

Found = tuple[int, list[Hypothesis]]
"""The place of a request, and what its search has found, best first."""
Portion = list[tuple[int, Writing]]
"""Requests with their places."""


@dataclass(frozen=True)
class Failed:
    """Why a process could not do what it was told."""

    why: str
    is_usage: bool

    @classmethod
    def of(cls, error: Exception) -> Failed:
        is_told = isinstance(error, WeftError)
        why = str(error) if is_told else f"a worker failed with {type(error).__name__}: {error}"
        return cls(why, isinstance(error, UsageError))


@dataclass(frozen=True)
class Share:
    """What each process is given when it starts."""

    model: str | Path
    device: str
    engine: EngineConfig
    threads: int


class GoneError(Exception):
    """Nobody is at the other end any more."""


class Team(AbstractContextManager["Team"]):
    """`size` processes that search at the same time, each with its part of the cores."""

    def __init__(
        self,
        model: str | Path,
        size: int,
        device: str = "auto",
        engine: EngineConfig | None = None,
    ) -> None:
        """`engine`: of each process, its cache included."""
        if size < 1:
            raise UsageError(f"the team has {size} workers: it needs at least 1. Use 1 or more.")
        threads = max(1, torch.get_num_threads() // size)
        share = Share(model, device, engine or EngineConfig(), threads)
        context: Any = multiprocessing.get_context("spawn")
        self.members: dict[Connection, Any] = {}
        self.is_idle = True
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(theirs, share), daemon=True)
            start(process)
            theirs.close()  # so that its end is seen when the process dies
            self.members[ours] = process

    def search(self, writings: Sequence[Writing]) -> Iterator[Found]:
        """The results of all requests, as they come."""
        if not self.members or not self.is_idle:
            state = "was left in the middle of a search" if self.members else "is closed"
            raise UsageError(f"the team {state}. Make another one.")
        self.is_idle = False
        # long sources first: what is left at the end is short
        lengths = [len(writing.source or ()) for writing in writings]
        places = deque(sorted(range(len(writings)), key=lambda place: -lengths[place]))
        held, share = dict.fromkeys(self.members, 0), -(-len(places) // len(self.members))
        for member in self.members:
            held[member] += self.hand_out(member, places, writings, share)
        while busy := [member for member, number in held.items() if number]:
            for member in cast(list[Connection], wait(busy)):
                told = self.hear(member)
                held[member] -= len(told)
                if held[member] <= self.portion(len(places), share):
                    held[member] += self.hand_out(member, places, writings, share)
                yield from told
        self.is_idle = True

    def portion(self, left: int, share: int) -> int:
        """Of so many that nobody has yet half of what each could have, as a second portion comes
        before a first one is done; but not so few that they run alone."""
        return min(left, max(-(-left // (2 * len(self.members))), min(share, LEAST)))

    def hand_out(
        self, member: Connection, places: deque[int], writings: Sequence[Writing], share: int
    ) -> int:
        """The next portion for a process; how many it is."""
        number = self.portion(len(places), share)
        if number:
            given = [places.popleft() for _ in range(number)]
            self.tell(member, [(place, writings[place]) for place in given])
        return number

    def tell(self, member: Connection, portion: Portion) -> None:
        try:
            member.send(portion)
        except OSError:
            while True:  # it may have said why before it went
                self.hear(member)

    def hear(self, member: Connection) -> list[Found]:
        """The next that a process says; its error is raised here."""
        try:
            told: list[Found] | Failed = member.recv()
        except (EOFError, OSError):
            raise self.lost(member) from None
        if isinstance(told, Failed):
            raise UsageError(told.why) if told.is_usage else DataError(told.why)
        return told

    def lost(self, member: Connection) -> DataError:
        process = self.members[member]
        process.join(PATIENCE)
        code = process.exitcode
        hint = "Its memory may not have sufficed: use" if code == -signal.SIGKILL else "Use"
        return DataError(
            f"one of {len(self.members)} workers ended with exit code {code}. {hint} fewer of them."
        )

    def close(self) -> None:
        """All processes end; by force those that are in the middle of something."""
        for member in self.members:
            member.close()
        for process in self.members.values():
            process.join(PATIENCE if self.is_idle else 0)
            if process.exitcode is None:
                process.kill()
                process.join()
        self.members = {}

    def __exit__(self, *error: object) -> None:
        self.close()


def start(process: Any) -> None:
    """Ctrl-C is the parent's business: who is started while it is ignored ignores it."""
    if threading.current_thread() is not threading.main_thread():
        process.start()
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, before)


def freeze_gc() -> None:
    """Exempt everything that exists now from garbage collection, and collect less often.

    For processes that only run an engine: workers and commands. An engine creates and drops
    thousands of small objects per step, and every collection they trigger would traverse torch and
    the model, which is a twentieth of the time of a small model.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def work(connection: Connection, share: Share) -> None:
    """The life of a process: portions in, what was found out. It ends with the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(share.threads)
    with suppress(GoneError):
        try:
            desk = load(share.model, share.device, engine=share.engine).desk
            freeze_gc()
            search(desk, connection)
        except GoneError:
            raise
        except Exception as error:
            say(connection, Failed.of(error))


def search(desk: Desk, connection: Connection) -> None:
    """Whatever comes joins what is under way."""
    inbox: SimpleQueue[Portion | None] = SimpleQueue()
    # a thread, so that both ends can speak at a time and neither waits for the other to listen
    threading.Thread(target=listen, args=(connection, inbox), daemon=True).start()
    waiting: dict[str, int] = {}
    while True:
        while not waiting or not inbox.empty():
            portion = inbox.get()
            if portion is None:
                raise GoneError
            names = desk.open_all([writing for _, writing in portion])
            waiting.update(zip(names, (place for place, _ in portion), strict=True))
        found = desk.some_results(waiting)
        if found:
            say(connection, [(place, update.hypotheses) for place, update in found])


def listen(connection: Connection, inbox: SimpleQueue[Portion | None]) -> None:
    """Portions, and None at the end of the connection."""
    try:
        while True:
            inbox.put(connection.recv())
    except (EOFError, OSError):
        inbox.put(None)


def say(connection: Connection, told: list[Found] | Failed) -> None:
    try:
        connection.send(told)
    except OSError:
        raise GoneError from None
