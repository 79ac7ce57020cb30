"""`weft serve` as a process of its own, with a tiny model."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

START_SECONDS = 90.0
"""Generous: the machine may be busy."""


class ServeProcess:
    """A running server. `with` ends it."""

    def __init__(
        self,
        *arguments: str | Path,
        environ: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-m", "weft"),
    ) -> None:
        """`program`: what Python runs with the arguments of the command."""
        command = [sys.executable, *program, "serve", *map(str, arguments), "--port", "0"]
        self.began_at = time.monotonic()
        self.process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environ or {})},
        )
        self.lines: list[str] = []
        self.has_url = threading.Event()
        self.url = ""
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        assert self.has_url.wait(START_SECONDS) and self.url, self.lines
        self.listened_after = time.monotonic() - self.began_at
        self.client = httpx.Client(base_url=self.url, timeout=60)

    def read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            match = re.match(r"listening on (\S+);", line)
            if match:
                self.url = match[1]
                self.has_url.set()
        self.has_url.set()

    def wait_ready(self) -> None:
        end = time.monotonic() + START_SECONDS
        while self.client.get("/ready").status_code != 200:
            assert time.monotonic() < end and self.process.poll() is None, self.lines
            time.sleep(0.05)

    def stop(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def exit_code(self, seconds: float = 60.0) -> int:
        code = self.process.wait(seconds)
        self.reader.join(10)
        return code

    def __enter__(self) -> ServeProcess:
        return self

    def __exit__(self, *error: object) -> None:
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()
