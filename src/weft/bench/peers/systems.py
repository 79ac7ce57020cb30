"""The systems that can be measured: a name -> a child process that has loaded a model.

`SYSTEMS` is the table; Weft is an entry like the others, and several entries are Weft with other
settings. `Peer` is the parent's end of a child (its messages are described in child.py): a child
runs for the whole benchmark, so that all systems can be measured alternately. `model_in_format`
returns the model in the format of a system; conversions are written once, in float32, below
$WEFT_CACHE/bench, so that all systems compute with the same weights.
"""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import IO, Any, Literal

from weft.bench.peers.install import python_of
from weft.checkpoint.description import format_of
from weft.checkpoint.formats import convert
from weft.checkpoint.pulled_models import cache_folder, resolve
from weft.core.errors import WeftError
from weft.core.openmp import user_environment
from weft.core.registry import pick

Skill = Literal["stream", "batch", "translate"]
"""One prompt at a time; many at once; sources of an encoder-decoder."""
ModelFormat = Literal["any", "gguf", "hf"]
CHECKPOINT_FORMATS = {"gguf": "gguf", "hf": "huggingface"}
"""Names of the formats in weft.checkpoint."""
Report = Callable[[str], None]
"""Receives one line of progress."""

CHILD = Path(__file__).with_name("child.py")
SHUTDOWN_SECONDS = 20.0
"""Time for a child to end by itself."""
RESPONSE_SECONDS = 1800.0
"""Time for one response."""


class PeerError(WeftError):
    """A measured program failed; the others continue."""


@dataclass(frozen=True)
class PeerResponse:
    """The result of one request."""

    seconds: float
    outputs: list[list[int]]
    version: str
    note: str = ""

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.outputs))


class Peer(AbstractContextManager["Peer"]):
    """One child process; its stderr goes to a file, of which the last line is reported if it dies.
    `with` ends it."""

    def __init__(self, name: str, python: Path, file: Path, threads: int) -> None:
        self.name = name
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 it lives as long as the child
        self.process = subprocess.Popen(
            [str(python), str(CHILD), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            encoding="utf-8",
            env=child_environment(threads),
        )

    def request(self, do: str, **settings: Any) -> PeerResponse:
        """Send a request and wait for its response; a PeerError if there is none."""
        return PeerResponse(**self.ask(do, **settings))

    def ask(self, do: str, **settings: Any) -> dict[str, Any]:
        """The same for a child with outputs of another kind: the response as it is."""
        assert self.process.stdin is not None and self.process.stdout is not None, "no pipes"
        with suppress(BrokenPipeError):  # the child has died, which reading reports
            self.process.stdin.write(json.dumps({"do": do, **settings}) + "\n")
            self.process.stdin.flush()
        # a child that hangs is killed, so that the rows of the others are not lost
        timer = Timer(RESPONSE_SECONDS, self.process.kill)
        timer.daemon = True
        timer.start()
        try:
            line = self.process.stdout.readline()
            is_late = not timer.is_alive()
        finally:
            timer.cancel()
        if not line and is_late:
            raise PeerError(
                f"{self.name} gave no response within {RESPONSE_SECONDS:g} s. Its rows are absent."
            )
        if not line:
            raise PeerError(f"{self.name} {self.exit_reason()} Its rows are absent.")
        response = json.loads(line)
        if "error" in response:
            reason = response["error"].rstrip(".")
            raise PeerError(f"{self.name} could not {do}: {reason}. Its rows are absent.")
        assert isinstance(response, dict), "child.py writes objects"
        return response

    def exit_reason(self) -> str:
        return exit_reason(self.process, self.log)

    def close(self) -> None:
        """End the child, by force after SHUTDOWN_SECONDS."""
        for pipe in (self.process.stdin, self.process.stdout):
            # buffered requests have no reader any more
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        try:
            self.process.wait(SHUTDOWN_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def __exit__(self, *error: object) -> None:
        self.close()


def exit_reason(process: subprocess.Popen[Any], log: IO[bytes]) -> str:
    """How a process ended, and the last line of its log, as a sentence without a subject."""
    code = process.wait()
    reason = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    log.seek(0)
    lines = log.read().decode("utf-8", "replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "empty")
    return f"ended with {reason}; the last line of its log: {last.rstrip('.')}."


def child_environment(threads: int) -> dict[str, str]:
    """Environment variables of every child, Weft's included: each waits as its authors chose."""
    return {
        # below AMX, which some processors announce although it traps
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16",
        **user_environment(),
        "OMP_NUM_THREADS": str(threads),
        # vllm.py must import the library vllm, not itself
        "PYTHONSAFEPATH": "1",
        "HF_HUB_OFFLINE": "1",
    }


@dataclass(frozen=True)
class MeasuredSystem:
    """One entry of SYSTEMS."""

    stem: str
    """Name of its file in this folder, and of its environment."""
    format: ModelFormat
    skills: frozenset[Skill]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return Path(__file__).with_name(f"{self.stem}.py")

    @property
    def is_weft(self) -> bool:
        return self.stem == "weft"

    def python(self, folder: Path) -> Path | None:
        """Its Python; None if it is not installed."""
        return Path(sys.executable) if self.is_weft else python_of(self.stem, folder)


WEFT, INT8, WITHOUT_CACHE = "weft", "weft int8", "weft without prefix cache"
ALL: frozenset[Skill] = frozenset(["stream", "batch", "translate"])
GENERATE: frozenset[Skill] = frozenset(["stream", "batch"])

SYSTEMS = {
    WEFT: MeasuredSystem("weft", "any", ALL),
    WITHOUT_CACHE: MeasuredSystem("weft", "any", ALL, {"engine": {"prefix_cache": "none"}}),
    INT8: MeasuredSystem("weft", "any", GENERATE, {"engine": {"activations": "int8"}}),
    "llama.cpp": MeasuredSystem("llama_cpp", "gguf", frozenset(["stream"])),
    "vllm": MeasuredSystem("vllm", "hf", GENERATE),
    "transformers": MeasuredSystem("transformers", "hf", ALL),
    "ctranslate2": MeasuredSystem("ctranslate2", "hf", frozenset(["translate"])),
}


def peers_for(skill: Skill) -> list[str]:
    """Names of the peers that have a skill."""
    return [name for name, one in SYSTEMS.items() if skill in one.skills and not one.is_weft]


@contextmanager
def start_systems(
    names: Sequence[str],
    model: str | Path,
    threads: int,
    max_len: int,
    folder: Path,
    report: Report,
) -> Iterator[dict[str, Peer]]:
    """Children that have loaded the model, by name. A system that is not installed is reported in
    one line."""
    with ExitStack() as stack:
        peers: dict[str, Peer] = {}
        for name in names:
            system = pick(SYSTEMS, name, "system")
            python = system.python(folder)
            if python is None:
                report(
                    f"{name} is not installed: its rows are absent. `make bench-peers` installs it."
                )
                continue
            path = model_in_format(model, system.format, report)
            report(f"loading {name}")
            peer = stack.enter_context(Peer(name, python, system.file, threads))
            settings = {"threads": threads, "max_len": max_len, **system.settings}
            if can_load(peer, report, model=str(path), **settings):
                peers[name] = peer
        yield peers


def can_load(peer: Peer, report: Report, **settings: Any) -> bool:
    """Whether a peer loads the model; a failure is reported, of Weft itself raised."""
    try:
        peer.request("load", **settings)
    except PeerError as error:
        if peer.name == WEFT:
            raise
        report(str(error))
        return False
    return True


def model_in_format(model: str | Path, model_format: ModelFormat, report: Report) -> Path:
    """The model's path if it has this format, otherwise the path of a converted copy."""
    path = resolve(model).absolute()
    if model_format == "any" or format_of(path) == CHECKPOINT_FORMATS[model_format]:
        return path
    copy = copy_path(path, ".gguf" if model_format == "gguf" else "-hf")
    if not copy.exists():
        report(f"writing {copy} (once, in float32)")
        convert(path, copy, model_format)
    return copy


def copy_path(path: Path, suffix: str) -> Path:
    """Where a copy of a model in another format is kept."""
    folder = cache_folder().absolute() / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{path.stem}-{fingerprint(path)}{suffix}"


def fingerprint(path: Path) -> str:
    """Eight letters that change when the model's files do."""
    files = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return hashlib.sha256(repr((str(path), stats)).encode()).hexdigest()[:8]
