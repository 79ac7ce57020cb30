"""`TemplateSandbox`: template and variables -> text, rendered in a helper process with limits.

jinja2's sandbox keeps a template from reaching Python, but not from using all memory or time. The
helper (`template_renderer`) limits its address space; this side limits the wall clock of a request.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from weft.core.errors import WeftError

RENDERER = Path(__file__).with_name("template_renderer.py")
START_SECONDS = 30.0
MAX_REPLY = 8 << 20
"""Bytes of a reply, beside four times the bytes of its request."""
OUT_OF_MEMORY = 3
"""Exit code of the helper at its memory limit."""
INHERITED = ("TZ", "LANG", "LC_ALL", "LC_TIME", "LD_LIBRARY_PATH")
"""Environment variables of the helper; others may be secrets."""


class TemplateSandbox:
    """One helper process, started by the first request and after a failure; threads take turns."""

    def __init__(self, seconds: float = 1.0, megabytes: int = 480) -> None:
        self.seconds, self.megabytes = seconds, megabytes
        self.lock = threading.Lock()
        self.process: subprocess.Popen[bytes] | None = None
        self.connection: socket.socket

    def render(self, source: str, variables: Mapping[str, Any] | None) -> tuple[str, str]:
        """("text", the text), or ("invalid" | "failed" | "refused", the reason). Without variables
        the template is compiled, and the text is the names of those that it reads."""
        request = {"source": source, "variables": variables}
        payload = json.dumps(request, ensure_ascii=False).encode("utf-8", "surrogatepass")
        with self.lock:
            if self.process is None or self.process.poll() is not None:
                self.start()
            try:
                self.connection.sendall(len(payload).to_bytes(8, "big") + payload)
                ((kind, text),) = self.receive(MAX_REPLY + 4 * len(payload)).items()
                return kind, text
            except (OSError, EOFError, OverflowError) as error:
                return "failed", self.stop(error)
            except BaseException as error:  # Ctrl-C: the next request must not receive this reply
                self.stop(error)
                raise

    def start(self) -> None:
        self.stop()  # one that was killed from outside
        specs = [find_spec(name) for name in ("jinja2", "markupsafe")]
        folders = [str(Path(spec.origin).parents[1]) for spec in specs if spec and spec.origin]
        limits = [str(self.megabytes), str(self.seconds)]
        self.connection, theirs = socket.socketpair()
        self.connection.settimeout(START_SECONDS)
        try:
            with theirs:
                self.process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(RENDERER), *limits, *folders],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                    env={name: os.environ[name] for name in INHERITED if name in os.environ},
                    start_new_session=True,  # a terminal sends Ctrl-C to its whole process group
                )
            self.receive(MAX_REPLY)
        except BaseException as error:
            reason = self.stop(error)
            self.connection.close()  # the process may not exist
            if not isinstance(error, (OSError, EOFError)):
                raise
            raise WeftError(
                f"chat templates need a helper process, which did not start: {reason}. "
                f"Check that {sys.executable} can import jinja2."
            ) from None
        self.connection.settimeout(self.seconds)

    def receive(self, limit: int) -> dict[str, str]:
        with self.connection.makefile("rb") as replies:
            header = replies.read(8)
            length = int.from_bytes(header, "big")
            if length > limit:
                raise OverflowError(f"its result has more than {limit} bytes")
            payload = replies.read(length)
        if len(header) < 8 or len(payload) < length:
            raise EOFError("the helper process closed its connection")
        reply: dict[str, str] = json.loads(payload)
        return reply

    def stop(self, error: BaseException | None = None) -> str:
        """End the helper, if there is one. Returns what `error` says about the template."""
        process, self.process = self.process, None
        if process is None:
            return str(error)
        limit = self.connection.gettimeout()
        self.connection.close()
        has_ended = isinstance(error, (EOFError, ConnectionError))
        try:
            code = process.wait(timeout=1.0 if has_ended else 0.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            is_late = isinstance(error, TimeoutError)
            return f"it takes more than {limit:g} s" if is_late else str(error)
        if code == OUT_OF_MEMORY:
            return f"it needs more than {self.megabytes} MB of memory"
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return f"the helper process was ended {how}"

    def forget(self) -> None:
        """In a forked child: the helper belongs to the parent, which uses it and waits for it."""
        self.lock = threading.Lock()
        if self.process is not None:
            self.connection.close()
            self.process.returncode = 0
            self.process = None


SANDBOX = TemplateSandbox()
"""The one of this process."""
atexit.register(SANDBOX.stop)
os.register_at_fork(after_in_child=SANDBOX.forget)
