"""strace attached to a process of the server: recording its calls, counting them, or injecting an
error or a kill at one of them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .recorder import CHANGES, READS, TRACED, WRITES
from .server import MARKS, Result, Server
from .strace_log import LogError, SystemCall, parse_log

MAX_STRING = 1 << 25
MISSING = "strace is not installed: install it with `apt install strace`, or `dnf install strace`."
BY_DESCRIPTOR = (*WRITES, "ftruncate", "fallocate", "fsync", "fdatasync", "sync_file_range")
"""Calls whose first argument is a descriptor of the changed file."""
OPENED = re.compile(r"O_CREAT|O_TRUNC")
RECORD = (
    *("-y", "-xx", "-s", str(MAX_STRING), "-e", f"trace={','.join(TRACED)}"),
    *("-e", f"raw={','.join(READS)}"),
)


def has_strace() -> bool:
    return shutil.which("strace") is not None


@dataclass(frozen=True)
class TracedRun:
    """A run under strace."""

    result: Result
    calls: list[SystemCall]


@dataclass
class Tracer:
    """Attaches one strace to one process."""

    options: Sequence[str]
    log: Path
    process: subprocess.Popen | None = None

    def attach(self, pid: int) -> None:
        command = ["strace", *self.options, "-o", str(self.log), "-p", str(pid)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        if "attached" not in line:
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"strace cannot trace a process here: {line.strip()}")

    def wait(self) -> None:
        """strace ends by itself when the traced process has ended."""
        assert self.process is not None and self.process.stderr is not None
        self.process.stderr.read()
        self.process.wait(timeout=60)
        self.process.stderr.close()


def run_traced(
    server: Server,
    function: str,
    args: Sequence[str],
    cwd: Path,
    log: Path,
    inject: str | None = None,
) -> TracedRun:
    """Run a function under strace, with all its threads. `inject`: 'write:error=ENOSPC:when=3', for
    example, in the main thread."""
    # `when` counts the calls of each thread, so that a fault concerns only the main thread
    options = ["-e", f"inject={inject}"] if inject else ["-f"]
    tracer = Tracer([*RECORD, *options], log)
    result = server.run(function, args, cwd, tracer.attach)
    tracer.wait()
    with log.open(encoding="ascii") as lines:
        # without -f, lines do not begin with the process
        calls = list(parse_log(lines if inject is None else (f"0 {line}" for line in lines)))
    marks = [call.text(0) for call in calls if call.name == "rmdir" and call.text(0) in MARKS]
    expected = list(MARKS if result.code >= 0 else MARKS[:1])
    if marks != expected:
        raise LogError(f"the log is incomplete: its marks are {marks}")
    return TracedRun(result, calls)


def count_calls(
    server: Server, function: str, args: Sequence[str], cwd: Path, log: Path
) -> tuple[Result, dict[str, int]]:
    """The number of successful calls by name, as `strace -c` counts them: without parsing any."""
    tracer = Tracer(["-f", "-c", "-U", "calls,errors,name", "-e", f"trace={','.join(TRACED)}"], log)
    result = server.run(function, args, cwd, tracer.attach)
    tracer.wait()
    counts = {}
    for line in log.read_text().splitlines()[2:-2]:
        calls, *errors, name = line.split()
        counts[name] = int(calls) - int(errors[0] if errors else 0)
    return result, counts


def count_changes(
    server: Server, function: str, args: Sequence[str], cwd: Path, log: Path
) -> Counter[str]:
    """The number of changes below the folder by the name of the call, from the text of a log with
    plain paths and without data: a path that begins with the folder's, or one that is relative to
    the working directory or to a folder below it."""
    tracer = Tracer(["-f", "-y", "-s", "0", "-e", f"trace={','.join(CHANGES)}"], log)
    server.run(function, args, cwd, tracer.attach)
    tracer.wait()
    root = re.escape(str(cwd.resolve()))
    descriptor = rf"(?:{'|'.join(BY_DESCRIPTOR)})\(\d+<{root}[/>]"
    below = rf"AT_FDCWD(?:<[^>]*>)?, |\d+<{root}(?:/[^>]*)?>, "
    path = rf'(?!{"|".join(BY_DESCRIPTOR)})\w+\((?:{below})?"(?:(?!/)|{root}[/"])'
    pattern = re.compile(rf"\d+ +(?=({descriptor}|{path}|sync\())(\w+)")
    counts: Counter[str] = Counter()
    for line in log.read_text(errors="surrogateescape").splitlines():
        match = pattern.match(line)
        is_opened = match is not None and match[2] in ("open", "openat")
        if match is None or " = -1 " in line or (is_opened and not OPENED.search(line)):
            continue
        counts[match[2]] += 1
    return counts
