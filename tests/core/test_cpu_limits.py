"""CPUs as affinity and cgroups limit them, read from folders like /proc and /sys."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from weft.core import cpu_limits
from weft.core.cpu_limits import affinity, available_cpus, cpu_quota

CGROUP_2 = "0::/user/job\n"
CGROUP_1 = "4:memory:/job\n2:cpu,cpuacct:/job\n1:name=systemd:/\n"
HYBRID = "4:memory:/job\n1:cpu:/\n0::/\n"


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """A folder with /proc/self/cgroup and files below /sys/fs/cgroup."""
    for name, text in {
        "proc/self/cgroup": cgroup,
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "quota"),
    [
        (CGROUP_2, {"user/job/cpu.max": "150000 100000\n"}, 1.5),
        (CGROUP_2, {"user/job/cpu.max": "max 100000\n"}, None),
        (CGROUP_2, {"user/job/cpu.max": "max 100000\n", "user/cpu.max": "50000 100000\n"}, 0.5),
        (CGROUP_2, {"cpu.max": "200000 100000\n"}, 2.0),  # the path is that of the host
        (CGROUP_2, {}, None),
        (
            CGROUP_1,
            {
                "cpu,cpuacct/job/cpu.cfs_quota_us": "250000\n",
                "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            },
            2.5,
        ),
        (CGROUP_1, {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        (CGROUP_1, {"cpu/cpu.cfs_quota_us": "9000\n", "cpu/cpu.cfs_period_us": "0\n"}, None),
        (HYBRID, {"cpu/cpu.cfs_quota_us": "10000", "cpu/cpu.cfs_period_us": "100000"}, 0.1),
        (HYBRID, {"unified/cpu.max": "300000 100000"}, 3.0),
        ("", {"cpu.max": "100000 100000"}, None),
    ],
)
def test_the_lowest_quota_on_the_path_counts(
    tmp_path: Path, cgroup: str, files: dict[str, str], quota: float | None
) -> None:
    assert cpu_quota(machine(tmp_path, cgroup, files)) == quota


@pytest.mark.parametrize(
    ("quota", "allowed", "cpus"),
    [(None, 6, 6), (1.5, 6, 2), (0.2, 6, 1), (8.0, 6, 6), (3.0, 2, 2), (4.0, 6, 4)],
)
def test_cpus_are_those_of_quota_and_affinity(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: float | None, allowed: int, cpus: int
) -> None:
    word = "max" if quota is None else str(int(quota * 100000))
    root = machine(tmp_path, "0::/\n", {"cpu.max": f"{word} 100000\n"})
    monkeypatch.setattr(cpu_limits, "affinity", lambda: list(range(allowed)))
    assert available_cpus(root) == cpus


def test_affinity_is_that_of_the_process() -> None:
    assert affinity() == sorted(os.sched_getaffinity(0))
    one = affinity()[-1]
    code = (
        f"import os; os.sched_setaffinity(0, [{one}])\n"
        "from weft.core.cpu_limits import available_cpus\nprint(available_cpus())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
