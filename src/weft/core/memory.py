"""Memory that this process may still use -> bytes, and which limit they come from.

    machine          MemAvailable of /proc/meminfo
    control groups   memory.max (v2) or memory.limit_in_bytes (v1) of each group that the process is
                     in; a process that exceeds one of them is killed without a message
    RLIMIT_AS        ulimit -v: address space, of which a process uses more than memory; the threads
                     that are started later need THREAD_BYTES each

File contents that a control group has cached count as available, because the kernel drops them
before it kills a process. Where nothing is known, as outside of Linux, there is no limit.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from weft.core.cpu_limits import available_cpus

PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")
UNLIMITED = 1 << 60
"""Version 1 has no word for 'no limit', but a number larger than any memory."""


THREAD_BYTES = 72 << 20
"""Address space of a thread: its stack of 8 MiB, and the 64 MiB that malloc reserves for it."""
THREADS_PER_CPU = 2
"""Those of the matrix products and those of the tokenizers."""


@dataclass(frozen=True)
class MemoryLimit:
    """One limit: bytes that are left, and where they are limited."""

    available: int
    name: str


def available_memory(proc: Path = PROC, cgroups: Path = CGROUPS) -> MemoryLimit | None:
    """The lowest limit; None if nothing is known."""
    return min(memory_limits(proc, cgroups), key=lambda limit: limit.available, default=None)


def memory_limits(proc: Path = PROC, cgroups: Path = CGROUPS) -> Iterator[MemoryLimit]:
    """All limits that hold for this process."""
    machine = read_fields(proc / "meminfo").get("MemAvailable")
    if machine is not None:
        yield MemoryLimit(machine, "the machine's available memory")
    yield from group_limits(proc, cgroups)
    used, (limit, _) = read_fields(proc / "self" / "status"), resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and "VmSize" in used:
        used_later = THREAD_BYTES * THREADS_PER_CPU * available_cpus()
        left = limit - used["VmSize"] - used_later
        yield MemoryLimit(max(0, left), "the address space limit (ulimit -v)")


def group_limits(proc: Path, cgroups: Path) -> Iterator[MemoryLimit]:
    """The memory limits of the control groups of this process, and of the groups above them."""
    for line in read_lines(proc / "self" / "cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0":
            # the second version alone, or beside the first one
            for root in (cgroups, cgroups / "unified"):
                for folder in with_parents(root, path):
                    yield from limit_of(folder, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            for folder in with_parents(cgroups / "memory", path):
                yield from limit_of(folder, *names)


def with_parents(root: Path, path: str) -> list[Path]:
    """The folder of a group and those above it. In a container the path may be that of the host,
    and the group's own folder is the root."""
    inner = PurePosixPath(path.lstrip("/"))
    return [root / inner, *(root / parent for parent in inner.parents)]


def limit_of(folder: Path, limit: str, used: str, reclaimable: str) -> Iterator[MemoryLimit]:
    maximum, current = read_number(folder / limit), read_number(folder / used)
    if maximum is None or current is None or maximum >= UNLIMITED:
        return
    fields = dict(line.split(" ", 1) for line in read_lines(folder / "memory.stat") if " " in line)
    available = maximum - current + int(fields.get(reclaimable, 0))
    yield MemoryLimit(max(0, min(available, maximum)), f"the memory limit of {folder}")


def read_number(path: Path) -> int | None:
    """The number in a file; None for 'max', or if there is no such file."""
    text = "".join(read_lines(path)[:1])
    return int(text) if text.isdecimal() else None


def read_fields(path: Path) -> dict[str, int]:
    """Lines such as 'MemAvailable:  23199 kB' -> bytes by name."""
    parts = (line.split() for line in read_lines(path))
    return {one[0].rstrip(":"): int(one[1]) << 10 for one in parts if one[2:] == ["kB"]}


def read_lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
