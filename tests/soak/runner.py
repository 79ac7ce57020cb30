"""Runs a campaign: cases in child processes by batches, with progress and failures in files.

    runs/soak/CAMPAIGN-SEED.json     number of cases done and failures; a campaign that is started
                                     again continues after them
    tests/data/failures/*.json       one file per failure: campaign, seed, case, error; replayed by
                                     tests/soak/test_soak.py

A child process that dies or takes too long fails the case it was running; the next one continues
after it.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.campaigns import CAMPAIGNS, SEED_STEP, Campaign

ROOT = Path(__file__).parents[2]
PROGRESS_FOLDER = ROOT / "runs" / "soak"
FAILURES_FOLDER = ROOT / "tests" / "data" / "failures"
START_SECONDS = 120.0
"""Time that the first case of a child may take in addition, for imports and base files."""
END_SECONDS = 10.0
PATIENCE = 3.0
"""A case is killed after this multiple of its time limit: the machine may be busy."""
REPORT_SECONDS = 10.0

Report = Callable[[str], None]


@dataclass
class Progress:
    """What the progress file contains."""

    campaign: str
    seed: int
    done: int = 0
    """Cases, not units."""
    seconds: float = 0.0
    failures: list[int] = field(default_factory=list)
    """Seeds of the cases that failed."""

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.new")
        temporary.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8")
        temporary.replace(path)

    def sentence(self, campaign: Campaign, num_cases: int) -> str:
        per_case = campaign.units_per_case
        rate = self.done * per_case / self.seconds if self.seconds else 0.0
        return (
            f"{self.campaign}: {self.done * per_case:,} of {num_cases * per_case:,} "
            f"{campaign.unit}, {rate:,.1f} {campaign.unit}/s, {len(self.failures)} failures"
        )


def run_campaign(
    name: str,
    count: int | None = None,
    seed: int = 0,
    folder: Path = PROGRESS_FOLDER,
    failures: Path | None = FAILURES_FOLDER,
    report: Report = lambda text: print(text, file=sys.stderr, flush=True),
) -> Progress:
    """Run `count` units of a campaign (None: all), or what is left of them since the last call.
    Failed cases are written to `failures`."""
    campaign, path = CAMPAIGNS[name], folder / f"{name}-{seed}.json"
    progress = Progress(name, seed)
    if path.is_file():
        progress = Progress(**json.loads(path.read_text(encoding="utf-8")))
    num_cases = -(-(campaign.count if count is None else count) // campaign.units_per_case)
    start, before, last_report = time.monotonic(), progress.seconds, time.monotonic()
    while progress.done < num_cases:
        batch = min(campaign.batch, num_cases - progress.done)
        for line in run_batch(name, seed * SEED_STEP + progress.done, batch):
            progress.done += 1
            progress.seconds = before + time.monotonic() - start
            if line["error"] is not None:
                progress.failures.append(line["seed"])
                report(f"{name}: seed {line['seed']} failed: {last_line(line['error'])}")
                if failures is not None:
                    save_failure(failures, name, line)
            if time.monotonic() - last_report > REPORT_SECONDS:
                report(progress.sentence(campaign, num_cases))
                last_report = time.monotonic()
                progress.save(path)
        progress.save(path)
    report(progress.sentence(campaign, num_cases))
    return progress


def last_line(error: str) -> str:
    return error.strip().splitlines()[-1][:300]


def save_failure(folder: Path, name: str, line: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    values = {"campaign": name, "seed": line["seed"], "case": line.get("case")}
    values["error"] = last_line(line["error"])  # a replay gives the traceback of today's code
    path = folder / f"{name}-{line['seed']}.json"
    path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def run_batch(name: str, first: int, count: int) -> Iterator[dict[str, Any]]:
    """The lines of consecutive cases. If the child ends early, the last line is that of the case
    it was running."""
    campaign = CAMPAIGNS[name]
    with tempfile.TemporaryFile() as printed:
        entry = json.dumps(asdict(campaign))
        arguments = [sys.executable, "-m", "tests.soak.child", entry, str(first), str(count)]
        # a session of its own: the processes of a case end with the child
        child = subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=printed, cwd=ROOT, start_new_session=True
        )
        num_lines, problem, is_ending = 0, None, False
        try:
            for line in lines_in_time(child, campaign):
                num_lines += 1
                yield json.loads(line)
            is_ending = True
        except TimeoutError as error:
            problem = str(error)
        finally:
            end_session(child, is_ending)
        if num_lines < count:
            printed.seek(0)
            text = printed.read().decode("utf-8", "replace")[-4000:]
            problem = problem or f"the process ended with exit code {child.returncode}"
            yield {"seed": first + num_lines, "error": f"{text}\n{problem}", "seconds": None}


def lines_in_time(child: subprocess.Popen[bytes], campaign: Campaign) -> Iterator[bytes]:
    """Lines of the child; a TimeoutError if one takes too long."""
    assert child.stdout is not None
    limit, pending = START_SECONDS + PATIENCE * campaign.seconds, b""
    descriptor = child.stdout.fileno()
    with selectors.DefaultSelector() as selector:
        selector.register(descriptor, selectors.EVENT_READ)
        while True:
            if not selector.select(limit):
                raise TimeoutError(f"no result after {limit:g} s")
            data = os.read(descriptor, 1 << 16)
            if not data:
                return
            *lines, pending = (pending + data).split(b"\n")
            yield from lines
            limit = PATIENCE * campaign.seconds if lines else limit


def end_session(child: subprocess.Popen[bytes], is_ending: bool) -> None:
    """End the child and all of its processes; `is_ending`: it has closed its output."""
    if is_ending:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    assert child.stdout is not None
    child.stdout.close()
