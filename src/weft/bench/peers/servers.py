"""The servers that can be measured: a name -> a process that has loaded a model and listens.

    with Server("vllm", model, limits, Path(".peers"), report) as server: ...   ready on server.port

`SERVERS` is the table: Weft is an entry like the others. All have the same CPUs, number of threads
and longest request; each is otherwise started as its authors chose. Between its turns a server is
stopped (SIGSTOP), so that what it does while idle costs the others nothing. llama-server reads
GGUF files that its llama-quantize makes, once, below $WEFT_CACHE/bench.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from weft import __version__
from weft.bench.peers.install import python_of
from weft.bench.peers.systems import (
    INT8,
    SHUTDOWN_SECONDS,
    WEFT,
    ModelFormat,
    PeerError,
    Report,
    child_environment,
    copy_path,
    exit_reason,
    model_in_format,
)
from weft.checkpoint.pulled_models import resolve

READY_SECONDS = 600.0
"""Time to load a model. vLLM compiles it."""
POLL_SECONDS = 0.02
CACHE_GIB = 2
"""KV cache of a server whose cache has a size in bytes."""
NAME = "model"
"""Under which all serve the model."""
INT8_Q4_0 = f"{INT8} Q4_0"
"""Weft with the file that llama-server Q4_0 reads."""
QUANTIZER = "llama_server"
"""The peer that has llama-quantize."""


@dataclass(frozen=True)
class ServerLimits:
    """What a server is started for."""

    threads: int
    max_len: int
    """Tokens of the longest request."""
    streams: int
    """Most requests at once."""


@dataclass(frozen=True)
class ServerStart:
    """What a command line is made of."""

    bin: Path
    """Folder of the programs of its environment."""
    model: Path
    port: int
    limits: ServerLimits


def weft_command(start: ServerStart, activations: str) -> list[str]:
    return [
        *(sys.executable, "-m", "weft", "serve", f"{NAME}={start.model}"),
        *("--port", str(start.port), "--threads", str(start.limits.threads)),
        *("--activations", activations, "--cache", str(CACHE_GIB), "--reserve"),
        *("--log-level", "warning"),
    ]


def llama_command(start: ServerStart) -> list[str]:
    """A slot for each stream; each has its part of the context."""
    limits = start.limits
    return [
        *(str(start.bin / "llama-server"), "--model", str(start.model), "--alias", NAME),
        *("--port", str(start.port), "--threads", str(limits.threads)),
        *("--parallel", str(limits.streams), "--no-webui"),
        *("--ctx-size", str(limits.streams * (limits.max_len + 8))),
    ]


def vllm_command(start: ServerStart) -> list[str]:
    return [
        *(str(start.bin / "python"), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(start.model), "--served-model-name", NAME, "--port", str(start.port)),
        *("--dtype", "float32", "--max-model-len", str(start.limits.max_len + 8)),
        "--disable-uvicorn-access-log",
    ]


def vllm_environment(limits: ServerLimits) -> dict[str, str]:
    """By default it may leave a core free for other work."""
    return {
        "VLLM_CPU_KVCACHE_SPACE": str(CACHE_GIB),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, server_cpus(limits.threads))),
    }


def quantized(model: str | Path, kind: str, bin_folder: Path, report: Report) -> Path:
    """A GGUF file with weights of this type, and a head of 8 bits as in Weft's SmolLM2."""
    source = model_in_format(model, "gguf", report)
    copy = copy_path(source, f"-{kind.lower()}.gguf")
    if not copy.exists():
        report(f"writing {copy} (once, by llama-quantize)")
        part = copy.with_suffix(".part")
        head = [f"--{name}-type" for name in ("token-embedding", "output-tensor")]
        command = [str(bin_folder / "llama-quantize"), "--allow-requantize"]
        command += [head[0], "q8_0", head[1], "q8_0", str(source), str(part), kind]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
            raise PeerError(f"llama-quantize could not write {kind}: {lines[-1]}.")
        part.rename(copy)
    return copy


@dataclass(frozen=True)
class ServedSystem:
    """One entry of SERVERS."""

    peer: str | None
    """Its environment; None: Weft's own."""
    command: Callable[[ServerStart], list[str]]
    format: ModelFormat = "any"
    quantization: str | None = None
    ready_path: str = "/health"
    environment: Callable[[ServerLimits], Mapping[str, str]] = field(default=lambda limits: {})
    version_command: tuple[str, ...] = ()
    """A program of its environment and arguments; its output contains the version."""

    def bin(self, folder: Path) -> Path | None:
        """The folder of its programs; None if it is not installed."""
        python = Path(sys.executable) if self.peer is None else python_of(self.peer, folder)
        return None if python is None else python.parent

    def version(self, bin_folder: Path) -> str:
        """As its program tells it."""
        if self.peer is None:
            return __version__
        program, *arguments = self.version_command
        command = [str(bin_folder / program), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        lines = (done.stdout + done.stderr).strip().splitlines() or ["unknown"]
        return lines[0].removeprefix("version: ")

    def model(self, model: str, folder: Path, report: Report) -> Path:
        """The file or folder that it reads."""
        if self.quantization is None:
            return resolve(model_in_format(model, self.format, report)).absolute()
        python = python_of(QUANTIZER, folder)
        if python is None:
            raise PeerError(
                f"a {self.quantization} file needs llama-quantize, which is not installed: the "
                f"rows are absent. `weft bench peers {QUANTIZER}` installs it."
            )
        return quantized(model, self.quantization, python.parent, report)


def weft_server(activations: str, quantization: str | None = None) -> ServedSystem:
    command = partial(weft_command, activations=activations)
    return ServedSystem(None, command, quantization=quantization, ready_path="/ready")


def llama_server(quantization: str) -> ServedSystem:
    version = ("llama-server", "--version")
    return ServedSystem(
        "llama_server", llama_command, "gguf", quantization, version_command=version
    )


VLLM_VERSION = "from importlib.metadata import version; print(version('vllm-cpu'))"


SERVERS = {
    INT8: weft_server("int8"),
    WEFT: weft_server("float32"),
    INT8_Q4_0: weft_server("int8", "Q4_0"),
    "llama-server Q4_0": llama_server("Q4_0"),
    "llama-server Q4_1": llama_server("Q4_1"),
    "vllm": ServedSystem(
        *("vllm", vllm_command, "hf"),
        environment=vllm_environment,
        version_command=("python", "-c", VLLM_VERSION),
    ),
}


def server_cpus(threads: int) -> list[int]:
    """The CPUs of every server: the first ones that this process may use."""
    return sorted(os.sched_getaffinity(0))[:threads]


def generator_cpus(threads: int) -> list[int]:
    """The CPUs of the load generator: those that the servers leave, or all if they leave none."""
    cpus = sorted(os.sched_getaffinity(0))
    return cpus[threads:] or cpus


@contextmanager
def pinned(cpus: Collection[int]) -> Iterator[None]:
    """Processes that are started in the block may use these CPUs only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Server(AbstractContextManager["Server"]):
    """One server process and its children; `with` ends them."""

    def __init__(
        self, name: str, model: str, limits: ServerLimits, folder: Path, report: Report
    ) -> None:
        """Start it and wait until it is ready; a PeerError if it never is."""
        system, self.name, self.port = SERVERS[name], name, free_port()
        bin_folder = system.bin(folder)
        if bin_folder is None:
            raise PeerError(
                f"{name} is not installed: its rows are absent. `weft bench peers {system.peer}` "
                "installs it."
            )
        self.version = system.version(bin_folder)
        start = ServerStart(bin_folder, system.model(model, folder, report), self.port, limits)
        environment = {**child_environment(limits.threads), **system.environment(limits)}
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 it lives as long as the process
        begin = time.perf_counter()
        with pinned(server_cpus(limits.threads)):
            self.process = subprocess.Popen(
                system.command(start),
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        try:
            self.wait_until_ready(system.ready_path)
        except BaseException:
            self.close()
            raise
        self.ready_seconds = time.perf_counter() - begin
        self.wait_until_reserved()

    def wait_until_ready(self, path: str) -> None:
        end = time.perf_counter() + READY_SECONDS
        while time.perf_counter() < end:
            if self.process.poll() is not None:
                reason = exit_reason(self.process, self.log)
                raise PeerError(f"{self.name} {reason} Its rows are absent.")
            if self.answers(path):
                return
            time.sleep(POLL_SECONDS)
        raise PeerError(
            f"{self.name} was not ready within {READY_SECONDS:g} s. Its rows are absent."
        )

    def wait_until_reserved(self) -> None:
        """Weft with --reserve answers before it has the memory of its KV cache."""
        end = time.perf_counter() + READY_SECONDS
        while b'"is_reserving":true' in self.get("/server_info")[1]:
            if time.perf_counter() > end:
                raise PeerError(f"{self.name} had no memory after {READY_SECONDS:g} s.")
            time.sleep(POLL_SECONDS)

    def answers(self, path: str) -> bool:
        return self.get(path)[0] == 200

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and content of a response; 0 if there is none."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def signal(self, number: signal.Signals) -> None:
        """To the server and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Its turn."""
        self.signal(signal.SIGCONT)
        try:
            yield
        finally:
            self.pause()

    def pause(self) -> None:
        """Until its next turn."""
        self.signal(signal.SIGSTOP)

    def close(self) -> None:
        """End it, by force after SHUTDOWN_SECONDS."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(SHUTDOWN_SECONDS)
        self.signal(signal.SIGKILL)  # and what it left
        self.process.wait()
        self.log.close()

    def __exit__(self, *error: object) -> None:
        self.close()
