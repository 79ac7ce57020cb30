"""OpenMP threads: how many there are, and how they wait for each other.

    WEFT_WAIT=adaptive   (default) spin for SPIN_COUNT iterations at a barrier, then sleep
    WEFT_WAIT=spin       spin for milliseconds, as libgomp does by default
    WEFT_WAIT=passive    sleep at once

A thread that spins holds the CPU on which the thread it waits for could run. With other processes
on the machine, each barrier then costs a time slice of the scheduler. Sleeping at once costs a
system call and the wakeup of an idle CPU at each barrier, about a third of the speed of decoding
where nothing else runs. Spinning as long as a barrier normally takes, and sleeping after that,
avoids both.

libgomp reads its variables once, when torch is imported: `import weft` calls `prepare_openmp`. What
the user has set is not changed. A child process inherits the variables; MARK names those that Weft
has set, so that a Weft process started with another WEFT_WAIT replaces them, and `user_environment`
removes them for programs other than Weft.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path

from weft.core.cpu_limits import ROOT, affinity, available_cpus
from weft.core.errors import UsageError

SPIN_COUNT = 10_000
"""Iterations at a barrier before a thread sleeps, 250 us. While other processes use the CPUs there
are 100 of them (native/contention.py), so that this number matters on an idle machine only."""

POLICIES: dict[str, dict[str, str]] = {
    "adaptive": {"GOMP_SPINCOUNT": str(SPIN_COUNT)},
    "spin": {},
    "passive": {"OMP_WAIT_POLICY": "passive"},
}
"""WEFT_WAIT -> variables of libgomp."""

WAIT_VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
COUNT_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")
"""Threads of torch and the native kernels; of torch's matrix products; of the tokenizers."""
MARK = "WEFT_OPENMP"
"""The environment variable with the names that Weft has set, separated by commas."""


def prepare_openmp(environ: MutableMapping[str, str] = os.environ, root: Path = ROOT) -> None:
    """Set the variables of libgomp, and OMP_NUM_THREADS if a cgroup allows fewer CPUs than there
    are. An unknown WEFT_WAIT counts as adaptive; `check_wait_policy` reports it."""
    for name in environ.pop(MARK, "").split(","):
        environ.pop(name, None)
    chosen: dict[str, str] = {}
    if not any(name in environ for name in WAIT_VARIABLES):
        chosen |= POLICIES.get(wait_policy(environ), POLICIES["adaptive"])
    cpus = available_cpus(root)
    # without a quota, torch's own default is better: it knows which CPUs share a core
    if "OMP_NUM_THREADS" not in environ and cpus < len(affinity()):
        chosen["OMP_NUM_THREADS"] = str(cpus)
    if chosen:
        environ.update({**chosen, MARK: ",".join(chosen)})


def wait_policy(environ: Mapping[str, str] = os.environ) -> str:
    """The value of WEFT_WAIT."""
    return environ.get("WEFT_WAIT") or "adaptive"


def check_wait_policy(environ: Mapping[str, str] = os.environ) -> None:
    """Raise a UsageError for an unknown WEFT_WAIT."""
    if wait_policy(environ) not in POLICIES:
        raise UsageError(
            f"WEFT_WAIT is '{wait_policy(environ)}': allowed are {', '.join(POLICIES)}. "
            "Unset it for the default, adaptive."
        )


def user_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment without what Weft has set: for programs other than Weft."""
    set_by_weft = {MARK, *environ.get(MARK, "").split(",")}
    return {name: value for name, value in environ.items() if name not in set_by_weft}


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Compute with `count` threads, in child processes too; None: as it is. Before torch is
    imported this is a matter of the environment, afterwards of torch's setting."""
    if count is None:
        yield
        return
    # MKL would otherwise use at most one thread per core, and torch does what MKL does
    values = {**dict.fromkeys(COUNT_VARIABLES, str(count)), "MKL_DYNAMIC": "FALSE"}
    names = (*values, MARK)
    before = {name: os.environ[name] for name in names if name in os.environ}
    marked = [name for name in before.get(MARK, "").split(",") if name not in COUNT_VARIABLES]
    os.environ |= {**values, MARK: ",".join(marked)}
    torch = sys.modules.get("torch")
    threads_before = None if torch is None else torch.get_num_threads()
    if torch is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        for name in names:
            os.environ.pop(name, None)
        os.environ |= before
        if torch is not None:
            torch.set_num_threads(threads_before)
