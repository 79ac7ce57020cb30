"""A scenario -> its crash points, and what is wrong after a crash or an error at each of them.

    prepare     the folder before the operation
    record      the operation once under strace: crash points and the expected result
    crashes     the trees that a crash leaves, for all points and loss models, without repetitions
    check_*     one crash, one injected error or one real kill: a list of problems

A recovery is run once per distinct tree, also if different crashes or errors lead to it.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import TypeVar

from weft.checkpoint.atomic import PREFIX

from .comparison import differences, is_leftover, with_common_names
from .filesystem import Loss, ModelFileSystem, Tree, Write, hash_tree, read_tree, replay, write_tree
from .recorder import CrashPoint, FaultLocation, Recording, location_of, record
from .scenarios import Command, Scenario
from .server import Result, Server
from .tracer import run_traced

ERRORS = {"ENOSPC": "No space left on device", "EIO": "Input/output error"}
MAX_TRIES = 5
"""Runs until a fault meets the intended call."""
REMOVALS = ("unlink", "unlinkat", "rmdir")
Item = TypeVar("Item")


class ServerPool:
    """Servers that run at the same time, each for one command."""

    def __init__(self, num_servers: int = 1) -> None:
        self.servers = [Server() for _ in range(num_servers)]
        self.free: SimpleQueue[Server] = SimpleQueue()
        for server in self.servers:
            self.free.put(server)

    @contextmanager
    def one(self) -> Iterator[Server]:
        server = self.free.get()
        try:
            yield server
        finally:
            self.free.put(server)

    def preload(self, modules: Sequence[str]) -> None:
        for server in self.servers:
            server.preload(modules)

    def map(
        self, function: Callable[[Item], list[str]], items: Sequence[Item]
    ) -> list[tuple[Item, list[str]]]:
        """Call a function that uses one server at a time for all items; results in their order."""
        with ThreadPoolExecutor(len(self.servers)) as threads:
            futures: list[Future[list[str]]] = [threads.submit(function, item) for item in items]
            return [(item, f.result()) for item, f in zip(items, futures, strict=True)]

    def close(self) -> None:
        for server in self.servers:
            server.close()


@dataclass(frozen=True)
class Crash:
    """A moment and a loss model; `before` is the index of the call that was not made."""

    before: int
    loss: Loss
    is_torn: bool = False
    """Half of the call `before`, a write, was made."""

    def __str__(self) -> str:
        return f"{self.before}{'t' if self.is_torn else ''}:{self.loss.value}"

    @classmethod
    def parse(cls, text: str) -> Crash:
        place, _, loss = text.partition(":")
        return cls(int(place.removesuffix("t")), Loss(loss), place.endswith("t"))


@dataclass(frozen=True)
class CrashedTree:
    """What one or several crashes leave."""

    tree: Tree
    crashes: list[Crash] = field(default_factory=list)


@dataclass
class Harness:
    """One scenario."""

    scenario: Scenario
    pool: ServerPool
    work: Path
    """An empty folder for everything that the harness writes."""

    def __post_init__(self) -> None:
        self.recoveries: dict[str, list[str]] = {}
        self.descriptions: dict[str, Result] = {}
        self.num_missed = 0
        """Runs in which an injected fault met another call; they were repeated."""

    # -- the operation without faults

    @cached_property
    def initial(self) -> Tree:
        with self.folder({}) as root:
            for command in self.scenario.prepare:
                result = self.run(command, root)
                assert result.code == 0, f"{command} failed: {result.error}"
            return read_tree(root)

    @cached_property
    def recording(self) -> Recording:
        """The operation, run after a first run whose imports the servers take over: later runs
        then make the same calls, however many there were before."""
        with self.folder(self.initial) as root:
            result = self.run(self.scenario.command, root)
            assert result.code == 0, f"{self.scenario.command} failed: {result.error}"
        self.pool.preload(result.modules)
        with self.folder(self.initial) as root, self.pool.one() as server:
            function, *args = self.scenario.command
            traced = run_traced(server, function, args, root, self.new_log())
            assert traced.result.code == 0, traced.result.error
            self.expected = read_tree(root)
            recording = record(self.initial, root, traced.calls)
        recording.check_final(self.expected)
        return recording

    @property
    def points(self) -> list[CrashPoint]:
        return self.recording.points

    @cached_property
    def phases(self) -> list[str]:
        return self.scenario.phases(self.points)

    # -- crashes

    def all_crashes(self) -> Iterator[tuple[Crash, Tree]]:
        """Every moment with every loss model; the last moment is after the last call."""
        file_system = ModelFileSystem(self.initial)
        for index, point in enumerate([*self.points, None]):
            for loss in Loss:
                yield Crash(index, loss), file_system.tree(loss)
            if point is None:
                return
            if point.is_torn:
                assert isinstance(point.operation, Write)
                file = file_system.file(point.operation.node)
                content = file.current
                file_system.apply(point.operation.torn)
                for loss in Loss:
                    yield Crash(index, loss, is_torn=True), file_system.tree(loss)
                file.current = content
            file_system.apply(point.operation)

    @cached_property
    def crashed_trees(self) -> list[CrashedTree]:
        """The distinct results of all crashes, in the order of the first crash with that result."""
        distinct: dict[str, CrashedTree] = {}
        for crash, tree in self.all_crashes():
            distinct.setdefault(hash_tree(tree), CrashedTree(tree)).crashes.append(crash)
        return list(distinct.values())

    def check_crash(self, crashed: CrashedTree) -> list[str]:
        """What is wrong before and after the command is repeated on what a crash left."""
        return self.check_readable(crashed.tree) + self.check_recovery(crashed.tree)

    def check_durable(self, loss: Loss) -> list[str]:
        """What the command has written survives whatever happens after it has ended."""
        operations = [point.operation for point in self.points]
        return differences(self.expected, replay(self.initial, operations).tree(loss))

    def check_readable(self, tree: Tree) -> list[str]:
        """The result is the old one or the new one, before anything is repeated."""
        if self.scenario.describe is None:
            return []
        result = self.describe(tree)
        for right in (self.describe(self.initial), self.describe(self.expected)):
            if (result.code, result.output) == (right.code, right.output):
                return check_sentence(result)
        text = " ".join(f"{result.output} {result.error}".split())
        return [f"neither the old result nor the new one is read: {text}"]

    def describe(self, tree: Tree) -> Result:
        """What a reader prints."""
        key = hash_tree(tree)
        if key not in self.descriptions:
            assert self.scenario.describe is not None
            with self.folder(tree) as root:
                self.descriptions[key] = self.run(self.scenario.describe, root)
        return self.descriptions[key]

    def check_recovery(self, tree: Tree) -> list[str]:
        """The repeated command gives the same result as without the crash."""
        key = hash_tree(tree)
        if key not in self.recoveries:
            with self.folder(tree) as root:
                result = self.run(self.scenario.command, root)
                self.recoveries[key] = self.compare_recovered(result, read_tree(root))
        return self.recoveries[key]

    def compare_recovered(self, result: Result, tree: Tree) -> list[str]:
        wrong = differences(self.expected, tree)
        is_refused = self.scenario.refuses_existing and "already exists" in result.error
        if result.code != 0 and not (is_refused and not wrong):
            wrong.insert(0, f"the repeated command ended with {result.code}: {last(result.error)}")
        return wrong

    # -- errors and kills of the real process

    def check_error(self, case: tuple[int, str]) -> list[str]:
        """A call that fails: one sentence, nothing lost, nothing left, and the repeated command
        succeeds."""
        index, error = case
        point = self.points[index]
        result, tree = self.inject(point, f"error={error}", is_repeated=error == "ENOSPC")
        if result.code == 0 and not differences(self.expected, tree):
            return []  # what failed was not needed, such as the owner in a lock file
        problems = self.check_message(result, ERRORS[error])
        leftovers = [path for path in tree if is_leftover(path) and path not in self.initial]
        if point.call.name not in REMOVALS:  # what cannot be removed stays until the next run
            problems += [f"{path} is left over after the error" for path in leftovers]
        return problems + self.check_readable(tree) + self.check_recovery(tree)

    def check_message(self, result: Result, reason: str) -> list[str]:
        message = last(result.error)
        if result.code == 0:
            return [f"the exit code is 0, the last message: {message}"]
        problems = check_sentence(result)
        if reason.lower() not in message.lower():
            problems.append(f"the message does not say {reason!r}: {message}")
        if PREFIX in message:
            problems.append(f"the message names a temporary file: {message}")
        return problems

    def check_kill(self, index: int) -> list[str]:
        """A real kill before a call leaves what the model file system says."""
        point, file_system = self.points[index], ModelFileSystem(self.initial)
        for earlier in self.points[:index]:
            file_system.apply(earlier.operation)
        result, tree = self.inject(point, "signal=SIGKILL")
        expected = with_common_names(file_system.tree(Loss.KILL))
        problems = [] if result.code == -9 else [f"it was not killed, but ended with {result.code}"]
        if with_common_names(tree) != expected:
            problems.append("the killed process left something else than the model file system")
        return problems

    def inject(
        self, point: CrashPoint, what: str, is_repeated: bool = False
    ) -> tuple[Result, Tree]:
        """Run the command with a fault at one call: how it ended, and what it left. `is_repeated`:
        the later writes fail too, as on a full disk. strace counts the calls of a name; if the
        process made more or fewer outside of the folder than when it was recorded, the fault meets
        another call, and the calls are counted again."""
        call, index = point.call, self.points.index(point)
        assert call.thread == self.recording.calls[0].thread, f"{point.label}: in another thread"
        intended = location_of(call, index, self.recording.root)
        more = "+" if is_repeated and call.name == "write" else ""
        ordinal = call.ordinal
        for _ in range(MAX_TRIES):
            fault = f"{call.name}:{what}:when={ordinal}{more}"
            result, tree, location = self.run_injected(fault)
            if location is not None and location.is_at(intended):
                return result, tree
            self.num_missed += 1
            ordinal = self.ordinal_now(index)
        raise AssertionError(f"{point.label}: the fault did not meet this call, but {location}")

    def run_injected(self, fault: str) -> tuple[Result, Tree, FaultLocation | None]:
        """One run with a fault, and where it was injected; None: nowhere."""
        function, *args = self.scenario.command
        with self.folder(self.initial) as root, self.pool.one() as server:
            traced = run_traced(server, function, args, root, self.new_log(), fault)
            calls, tree = traced.calls, read_tree(root)
            first = next((n for n, call in enumerate(calls) if call.is_injected), len(calls))
            recording = record(self.initial, root, calls[:first])
        num_before = len(recording.points)
        if first < len(calls):
            return traced.result, tree, location_of(calls[first], num_before, recording.root)
        is_killed = traced.result.code < 0
        return traced.result, tree, FaultLocation(num_before, None) if is_killed else None

    def ordinal_now(self, index: int) -> int:
        """The ordinal of the call of a crash point in a new run without a fault."""
        function, *args = self.scenario.command
        with self.folder(self.initial) as root, self.pool.one() as server:
            traced = run_traced(server, function, args, root, self.new_log())
            return record(self.initial, root, traced.calls).points[index].call.ordinal

    # -- folders and processes

    @contextmanager
    def folder(self, tree: Tree) -> Iterator[Path]:
        """A new folder with the tree, removed afterwards."""
        root = Path(tempfile.mkdtemp(dir=self.work))
        try:
            write_tree(root, tree)
            yield root
        finally:
            shutil.rmtree(root, ignore_errors=True)

    def new_log(self) -> Path:
        handle, name = tempfile.mkstemp(suffix=".strace", dir=self.work)
        Path(name).unlink()
        return Path(name)

    def run(self, command: Command, root: Path) -> Result:
        function, *args = command
        with self.pool.one() as server:
            return server.run(function, args, root)

    def reproducer(self, option: str) -> str:
        return f'python -m tests.faults "{self.scenario.name}" {option}'


def check_sentence(result: Result) -> list[str]:
    """An error is one sentence for users; code 0 needs none."""
    message = last(result.error)
    if result.code and ("Traceback" in result.error or message.startswith("Weft failed with")):
        return [f"the message is not a sentence for users: {message}"]
    return []


def last(text: str) -> str:
    """The last line that is not empty."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "(no message)")
