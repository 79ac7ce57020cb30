"""Weft's end of a measured child: starts it, asks it, and says in one sentence how it died.

The words are those of child.py. A child lives through a whole run, so that all systems can be asked
in turns; its stderr goes to a file, of which only the last line is shown, and only if it dies.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

from weft.core.errors import WeftError

CHILD = Path(__file__).with_name("child.py")
PATIENCE = 20.0
"""Seconds that a child has for ending by itself."""
LIMIT = 1800.0
"""Seconds that a child has for one answer."""


class PeerError(WeftError):
    """A measured program that could not do what was asked; the others go on."""


@dataclass(frozen=True)
class Answer:
    """What a child did."""

    seconds: float
    outputs: list[list[int]]
    version: str
    note: str = ""

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.outputs))


class Peer(AbstractContextManager["Peer"]):
    """One child process. `with` ends it."""

    def __init__(self, name: str, python: Path, file: Path, threads: int) -> None:
        self.name = name
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 it lives as long as the child
        self.process = subprocess.Popen(
            [str(python), str(CHILD), str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            encoding="utf-8",
            env=environment(threads),
        )

    def ask(self, do: str, **settings: Any) -> Answer:
        """One request and its answer; a PeerError where there is none."""
        assert self.process.stdin is not None and self.process.stdout is not None, "no pipes"
        with suppress(BrokenPipeError):  # it has died: reading says so
            self.process.stdin.write(json.dumps({"do": do, **settings}) + "\n")
            self.process.stdin.flush()
        # one that hangs is ended, so that the others' rows are not lost
        timer = Timer(LIMIT, self.process.kill)
        timer.daemon = True
        timer.start()
        try:
            line = self.process.stdout.readline()
            is_late = not timer.is_alive()
        finally:
            timer.cancel()
        if not line and is_late:
            raise PeerError(f"{self.name} gave no answer within {LIMIT:g} s. Its rows are absent.")
        if not line:
            raise PeerError(f"{self.name} {self.how_it_died()} Its rows are absent.")
        answer = json.loads(line)
        if "error" in answer:
            told = answer["error"].rstrip(".")
            raise PeerError(f"{self.name} could not {do}: {told}. Its rows are absent.")
        return Answer(**answer)

    def how_it_died(self) -> str:
        code = self.process.wait()
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        self.log.seek(0)
        lines = self.log.read().decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        return f"ended with {how}; the last it said was: {last.rstrip('.')}."

    def close(self) -> None:
        """The child ends, if need be by force."""
        for pipe in (self.process.stdin, self.process.stdout):
            # what was not written has no reader any more
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()

    def __exit__(self, *error: object) -> None:
        self.close()


def environment(threads: int) -> dict[str, str]:
    """What every child, Weft's own too, finds in its environment."""
    return {
        # a cap, below AMX, which some processors announce and then die of
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16",
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        # vllm.py shall import the library vllm, not itself
        "PYTHONSAFEPATH": "1",
        "HF_HUB_OFFLINE": "1",
    }
