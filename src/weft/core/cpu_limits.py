"""CPUs that this process may use, as affinity and cgroups limit them.

    available_cpus()        2, where `docker run --cpus 1.5` runs on a machine with 16 CPUs

Reads cgroups of version 1, version 2 and both at once. A cgroup limits the ones below it, so the
lowest value on the path to the root counts. On systems without cgroups or affinity the numbers are
those of the machine. Standard library only: it is used before torch is imported.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")
"""Tests pass a folder with their own proc and sys."""


def available_cpus(root: Path = ROOT) -> int:
    """Number of CPUs that this process can use at a time, at least 1. A quota is rounded up."""
    quota = cpu_quota(root)
    cpus = len(affinity())
    return cpus if quota is None else max(1, min(cpus, math.ceil(quota)))


def affinity() -> list[int]:
    """The CPUs on which this process may run."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPU seconds per second of the process's cgroups, such as 1.5; None: no limit."""
    folders = cgroup_folders("cpu", root)
    return min((q for folder in folders if (q := folder_quota(folder)) is not None), default=None)


def folder_quota(folder: Path) -> float | None:
    """The quota of one cgroup: cpu.max of version 2 ("50000 100000"), or the files of version 1."""
    quota, _, period = read_word(folder / "cpu.max").partition(" ")
    if not quota:
        quota = read_word(folder / "cpu.cfs_quota_us")
        period = read_word(folder / "cpu.cfs_period_us")
    if not (quota.isdigit() and period.isdigit()) or int(period) == 0:
        return None  # "max" in version 2, -1 in version 1, or no such file
    return int(quota) / int(period)


def cgroup_folders(controller: str, root: Path = ROOT) -> Iterator[Path]:
    """The folders of the process's cgroup for a controller and of those above it."""
    for line in read_lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        for mount in mount_points(controllers, controller, root):
            # inside a container the path may be that of the host, of which only the end of the
            # list, the mount point itself, exists here
            inner = Path(path.lstrip("/"))
            yield from (mount / part for part in (inner, *inner.parents))


def mount_points(controllers: str, controller: str, root: Path) -> list[Path]:
    """Where a hierarchy may be mounted; version 2 has no names of controllers."""
    base = root / "sys/fs/cgroup"
    if not controllers:
        return [base, base / "unified"]
    return [base / name for name in dict.fromkeys((controllers, controller))]


def read_word(path: Path) -> str:
    """The content of a small file without white space at its ends; "" if there is none."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def read_lines(path: Path) -> list[str]:
    return read_word(path).splitlines()
