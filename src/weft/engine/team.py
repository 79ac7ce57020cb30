"""A team: processes with an engine each. Searches in, what they found out, as each is done.

    with Team("runs/en-de", size=2) as team:
        loaded.translate(texts, beam=5, team=team)

For small models, whose step takes as long in Python as in arithmetic: one engine leaves the other
cores waiting then, threads would wait for each other's Python, and processes do not. Each loads the
model and has a cache of its own, so a team pays for long files. What is found is the same to the
last bit.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

import torch

from weft.core.errors import DataError, UsageError, WeftError
from weft.core.garbage import keep_what_is_loaded
from weft.engine.beam import Hypothesis
from weft.engine.desk import Desk
from weft.engine.load import load
from weft.engine.settings import EngineConfig
from weft.engine.writing import Writing

PATIENCE = 5.0
"""Seconds that a process has for ending by itself."""

Found = tuple[int, list[Hypothesis]]
"""The place of a request, and what its search has found, best first."""


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
        # long sources to each in turn: all have about the same to do
        order = sorted(range(len(writings)), key=lambda place: -len(writings[place].source or ()))
        places = {}
        for turn, member in enumerate(self.members):
            places[member] = order[turn :: len(self.members)]
            self.tell(member, [writings[place] for place in places[member]])
        while places:
            for member in cast(list[Connection], wait(list(places))):
                told = self.hear(member)
                if told is None:
                    del places[member]
                else:
                    yield places[member][told[0]], told[1]
        self.is_idle = True

    def tell(self, member: Connection, writings: list[Writing]) -> None:
        try:
            member.send(writings)
        except OSError:
            while True:  # it may have said why before it went
                self.hear(member)

    def hear(self, member: Connection) -> Found | None:
        """The next that a process says; its error is raised here."""
        try:
            told: Found | Failed | None = member.recv()
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


def work(connection: Connection, share: Share) -> None:
    """The life of a process: lists of writings in, then each result, then None. It ends with the
    connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(share.threads)
    with suppress(GoneError):
        try:
            desk = load(share.model, share.device, engine=share.engine).desk
        except Exception as error:
            return say(connection, Failed.of(error))
        keep_what_is_loaded()
        while True:
            search(desk, connection)


def search(desk: Desk, connection: Connection) -> None:
    """One list of writings."""
    try:
        writings = connection.recv()
    except (EOFError, OSError):
        raise GoneError from None
    try:
        for found in desk.search(writings):
            say(connection, found)
        say(connection, None)
    except GoneError:
        raise
    except Exception as error:
        say(connection, Failed.of(error))


def say(connection: Connection, told: Found | Failed | None) -> None:
    try:
        connection.send(told)
    except OSError:
        raise GoneError from None
