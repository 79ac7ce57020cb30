"""A process that has torch and Weft imported and forks for every command, so that one takes
milliseconds to start; and the client that talks to it.

    client                          server                      forked child
    {"function", "args", "cwd"} ->  fork                        waits for a byte
                                <-  {"pid"}
    (attaches strace)
    {}                          ->  sends the byte          ->  runs the function
                                <-  {"code", "error", ...}  <-  sends its result, ends

The child writes nothing but what the function writes: standard output and error are collected in
memory and sent over a socket at the end, so that the number of `write` calls does not depend on
time, and a full disk does not concern them. For the same reason hash seeds are fixed, and the
contention of CPUs, for which files in /proc are read every 0.1 s, is not measured.
"""

from __future__ import annotations

import io
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
MARKS = "/begin-of-the-operation", "/end-of-the-operation"
"""Folders that do not exist; the child tries to remove them before and after the function, which
shows in the log of strace that nothing was missed."""
TIMEOUT = 120.0


@dataclass(frozen=True)
class Result:
    """How a function ended."""

    code: int
    """Its exit code; negative: the signal that killed it."""
    output: str = ""
    error: str = ""
    modules: tuple[str, ...] = ()
    """Imported by the function."""
    num_writes: int = 0
    """The kernel's count of write calls during the function."""


class Server:
    """A running server; one command at a time."""

    def __init__(self) -> None:
        path = os.pathsep.join(
            [os.environ.get("PYTHONPATH", ""), str(REPOSITORY), str(REPOSITORY / "src")]
        )
        settings = {
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            "PYTHONPATH": path,
            "TOKENIZERS_PARALLELISM": "false",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.server"],
            cwd=REPOSITORY,
            env={**os.environ, **settings},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        function: str,
        args: Sequence[str],
        cwd: Path,
        attach: Callable[[int], None] = lambda pid: None,
    ) -> Result:
        """Run a function of `tests.faults.actions` in a forked child. `attach` gets its process id
        before the function starts."""
        self.send({"function": function, "args": list(args), "cwd": str(cwd)})
        pid = self.receive()["pid"]
        attach(pid)
        timer = threading.Timer(TIMEOUT, os.kill, (pid, signal.SIGKILL))
        timer.start()
        try:
            self.send({})
            values = self.receive()
        finally:
            timer.cancel()
        return Result(**{**values, "modules": tuple(values.get("modules", ()))})

    def preload(self, modules: Sequence[str]) -> None:
        """Import modules in the server, so that later children find them."""
        self.send({"preload": list(modules)})
        self.receive()

    def send(self, values: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(values) + "\n")
        self.process.stdin.flush()

    def receive(self) -> dict:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server ended with exit code {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=10)
        self.process.stdout.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()


def serve() -> None:
    """Answer requests until standard input ends."""
    for module in ("torch", "tests.faults.actions"):
        import_module(module)
    contention = import_module("weft.native.contention")
    contention.METER_SECONDS = math.inf  # type: ignore[attr-defined]
    while line := sys.stdin.readline():
        request = json.loads(line)
        if "preload" in request:
            for module in request["preload"]:
                import_module(module)
            reply({})
        else:
            reply(fork(request))


def reply(values: object) -> None:
    print(json.dumps(values), flush=True)


def fork(request: dict) -> dict:
    """Start a child, report its process id, let it run, and return its result."""
    here, there = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        here.close()
        run_child(request, there)
    there.close()
    here.recv(1)  # strace attaches when the child is prepared: its own chdir is not to be traced
    reply({"pid": pid})
    sys.stdin.readline()
    here.send(b"g")
    with here, here.makefile("rb") as file:
        received = file.read()
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    return {**(json.loads(received) if received else {}), "code": code}


def run_child(request: dict, client: socket.socket) -> None:
    """Never returns. The exit code is the function's."""
    os.chdir(request["cwd"])
    streams = [io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(3)]
    sys.stdout, sys.stderr, sys.stdin = streams
    function = getattr(import_module("tests.faults.actions"), request["function"])
    known = set(sys.modules)
    client.send(b"r")
    client.recv(1)
    mark(MARKS[0])
    before = count_writes()
    try:
        code = function(*request["args"]) or 0
    except BaseException as error:  # an assertion of the function itself
        code = 70
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    num_writes = count_writes() - before
    mark(MARKS[1])
    texts = []
    for stream in streams[:2]:
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    values = {"output": texts[0], "error": texts[1], "num_writes": num_writes}
    values["modules"] = [name for name in sys.modules if name not in known]
    client.sendall(json.dumps(values).encode())
    os._exit(code)


def mark(path: str) -> None:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return


def count_writes() -> int:
    """The number of write calls of this process, of any variant, as the kernel counts them."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("syscw:"))


if __name__ == "__main__":
    serve()
