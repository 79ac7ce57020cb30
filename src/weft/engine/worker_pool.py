"""Worker pool: beam searches in several processes, each with its own engine.

    with WorkerPool("runs/en-de", size=2) as workers:
        loaded.translate(texts, beam=5, workers=workers)

For small models, whose steps take as long in Python as in arithmetic: one engine leaves the other
cores idle, and threads would wait for the GIL. Each worker loads the model and has its own KV
cache, so a pool pays off for long files. Requests are assigned in chunks that become smaller, so a
slower core gets fewer. Results are bit-identical to those of one engine.
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
from multiprocessing.context import SpawnProcess
from pathlib import Path
from queue import SimpleQueue
from typing import cast

import torch

from weft.core.errors import DataError, EngineError, UsageError, WeftError
from weft.engine.async_engine import Submission
from weft.engine.client import EngineClient
from weft.engine.config import EngineConfig
from weft.engine.loaded_model import load
from weft.engine.request import GenerationRequest, RequestOutput

EXIT_TIMEOUT = 5.0
"""Seconds that a worker has to exit by itself."""

MIN_CHUNK = 8
"""Smallest number of requests that is assigned at once, if there are as many."""

SearchResult = tuple[int, RequestOutput]
"""Index of a request, and its last output: hypotheses, best first, or an error."""
Assignment = list[tuple[int, GenerationRequest]]
"""Requests with their indices."""


@dataclass(frozen=True)
class WorkerFailure:
    """An exception of a worker, as it is sent to the parent process."""

    message: str
    error: type[Exception]

    @classmethod
    def of(cls, error: Exception) -> WorkerFailure:
        if isinstance(error, WeftError):
            return cls(str(error), UsageError if isinstance(error, UsageError) else DataError)
        return cls(f"a worker failed with {type(error).__name__}: {error}", EngineError)


@dataclass(frozen=True)
class WorkerConfig:
    """What each worker is started with."""

    model: str | Path
    device: str
    engine: EngineConfig
    threads: int


class DisconnectedError(Exception):
    """The parent process has closed the connection."""


class WorkerPool(AbstractContextManager["WorkerPool"]):
    """`size` processes that run beam searches in parallel, each with its share of the cores."""

    def __init__(
        self,
        model: str | Path,
        size: int,
        device: str = "auto",
        engine: EngineConfig | None = None,
    ) -> None:
        """`engine`: the settings of each worker, including the size of its own KV cache."""
        if size < 1:
            raise UsageError(f"the pool has {size} workers: it needs at least 1. Use 1 or more.")
        threads = max(1, torch.get_num_threads() // size)
        config = WorkerConfig(model, device, engine or EngineConfig(), threads)
        context = multiprocessing.get_context("spawn")
        self.workers: dict[Connection, SpawnProcess] = {}
        self.is_idle = True
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=run_worker, args=(theirs, config), daemon=True)
            start_process(process)
            theirs.close()  # otherwise the parent would not see the end of the connection
            self.workers[ours] = process

    def search(self, requests: Sequence[GenerationRequest]) -> Iterator[SearchResult]:
        """The results of all requests, as they finish."""
        if not self.workers or not self.is_idle:
            state = "was left in the middle of a search" if self.workers else "is closed"
            raise UsageError(f"the worker pool {state}. Create another one.")
        self.is_idle = False
        # long sources first, so that the last chunks are short
        lengths = [len(request.source or ()) for request in requests]
        queue = deque(sorted(range(len(requests)), key=lambda index: -lengths[index]))
        even_share = -(-len(queue) // len(self.workers))
        assigned = dict.fromkeys(self.workers, 0)
        for worker in self.workers:
            assigned[worker] += self.assign(worker, queue, requests, even_share)
        while busy := [worker for worker, number in assigned.items() if number]:
            for worker in cast(list[Connection], wait(busy)):
                results = self.receive(worker)
                assigned[worker] -= len(results)
                if assigned[worker] <= self.chunk_size(len(queue), even_share):
                    assigned[worker] += self.assign(worker, queue, requests, even_share)
                yield from results
        self.is_idle = True

    def chunk_size(self, num_unassigned: int, even_share: int) -> int:
        """Half of an even share of the unassigned requests, because workers get the next chunk
        before they finish the last one; at least MIN_CHUNK, so that they run in batches."""
        half = -(-num_unassigned // (2 * len(self.workers)))
        return min(num_unassigned, max(half, min(even_share, MIN_CHUNK)))

    def assign(
        self,
        worker: Connection,
        queue: deque[int],
        requests: Sequence[GenerationRequest],
        even_share: int,
    ) -> int:
        """Send the next chunk to a worker; returns its size."""
        size = self.chunk_size(len(queue), even_share)
        if size:
            indices = [queue.popleft() for _ in range(size)]
            self.send(worker, [(index, requests[index]) for index in indices])
        return size

    def send(self, worker: Connection, chunk: Assignment) -> None:
        try:
            worker.send(chunk)
        except OSError:
            while True:  # the worker may have sent the reason before it exited
                self.receive(worker)

    def receive(self, worker: Connection) -> list[SearchResult]:
        """The next results of a worker; raises its error here."""
        try:
            message: list[SearchResult] | WorkerFailure = worker.recv()
        except (EOFError, OSError):
            raise self.exit_error(worker) from None
        if isinstance(message, WorkerFailure):
            raise message.error(message.message)
        return message

    def exit_error(self, worker: Connection) -> EngineError:
        process = self.workers[worker]
        process.join(EXIT_TIMEOUT)
        code = process.exitcode
        hint = "It may have run out of memory: use" if code == -signal.SIGKILL else "Use"
        return EngineError(
            f"one of {len(self.workers)} workers exited with code {code}. {hint} fewer of them."
        )

    def close(self) -> None:
        """Stop all workers; those in the middle of a search are killed."""
        for worker in self.workers:
            worker.close()
        for process in self.workers.values():
            process.join(EXIT_TIMEOUT if self.is_idle else 0)
            if process.exitcode is None:
                process.kill()
                process.join()
        self.workers = {}

    def __exit__(self, *error: object) -> None:
        self.close()


def freeze_gc() -> None:
    """Exempt everything that exists now from garbage collection, and collect less often.

    For processes that only run an engine: workers and commands. An engine creates and drops
    thousands of small objects per step, and every collection they trigger would traverse torch and
    the model, which is a twentieth of the time of a small model.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def start_process(process: SpawnProcess) -> None:
    """Start a process that ignores SIGINT: the parent handles Ctrl-C. A child inherits the
    disposition at the time of its start."""
    if threading.current_thread() is not threading.main_thread():
        process.start()
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, before)


def run_worker(connection: Connection, config: WorkerConfig) -> None:
    """Main function of a worker: chunks in, results out, until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(config.threads)
    with suppress(DisconnectedError):
        try:
            client = load(config.model, config.device, engine=config.engine).client
            freeze_gc()
            serve(client, connection)
        except DisconnectedError:
            raise
        except Exception as error:
            send_to_parent(connection, WorkerFailure.of(error))


def serve(client: EngineClient, connection: Connection) -> None:
    """Run searches; a new chunk joins those that are running."""
    events: SimpleQueue[Assignment | RequestOutput | None] = SimpleQueue()
    # receive in a thread: otherwise both sides could block in send, each waiting for the other
    threading.Thread(target=receive_chunks, args=(connection, events), daemon=True).start()
    indices: dict[str, int] = {}
    while True:
        results: list[SearchResult] = []
        event = events.get()
        while True:
            if event is None:
                raise DisconnectedError
            if isinstance(event, RequestOutput):
                results.append((indices.pop(event.request_id), event))
            else:
                prepared = [(client.engine.prepare(request), index) for index, request in event]
                indices |= {request.id: index for request, index in prepared}
                client.async_engine.submit_all([Submission(one, events.put) for one, _ in prepared])
            if events.empty():
                break
            event = events.get()
        if results:
            send_to_parent(connection, results)


def receive_chunks(
    connection: Connection, events: SimpleQueue[Assignment | RequestOutput | None]
) -> None:
    """Put received chunks into a queue, and None when the connection is closed."""
    try:
        while True:
            events.put(connection.recv())
    except (EOFError, OSError):
        events.put(None)


def send_to_parent(connection: Connection, message: list[SearchResult] | WorkerFailure) -> None:
    try:
        connection.send(message)
    except OSError:
        raise DisconnectedError from None
