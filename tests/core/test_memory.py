"""Memory limits are read from the files of Linux; the lowest of them holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from weft.core.memory import CGROUPS, MemoryLimit, available_memory, memory_limits

MIB = 1 << 20


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def system(tmp_path: Path) -> tuple[Path, Path]:
    write(
        tmp_path,
        {
            "proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    8000 kB\nHugePages_Total: 0\n",
            "proc/self/status": "Name:\tx\nVmSize:\t  100 kB\n",
        },
    )
    return tmp_path / "proc", tmp_path / "cgroup"


def test_without_control_groups_the_machine_limits(system: tuple[Path, Path]) -> None:
    limit = available_memory(*system)
    assert limit == MemoryLimit(8000 << 10, "the machine's available memory")


@pytest.mark.parametrize("root", ["", "unified/"])
def test_the_second_version_with_a_limit_above_the_own_group(
    system: tuple[Path, Path], root: str
) -> None:
    proc, groups = system
    write(proc, {"self/cgroup": "1:name=systemd:/\n0::/a/b\n"})
    write(
        groups,
        {
            f"{root}a/b/memory.max": "max\n",
            f"{root}a/b/memory.current": "5\n",
            f"{root}a/memory.max": str(4 * MIB),
            f"{root}a/memory.current": str(3 * MIB),
            f"{root}a/memory.stat": f"anon 5\ninactive_file {MIB}\nactive_file 7\n",
        },
    )
    limit = available_memory(proc, groups)
    assert limit == MemoryLimit(2 * MIB, f"the memory limit of {groups / root / 'a'}")


def test_a_container_sees_its_own_group_as_the_root(system: tuple[Path, Path]) -> None:
    proc, groups = system
    write(proc, {"self/cgroup": "0::/docker/0123\n"})
    write(groups, {"memory.max": str(3 * MIB), "memory.current": str(MIB)})
    limit = available_memory(proc, groups)
    assert limit is not None and limit.available == 2 * MIB


def test_the_first_version(system: tuple[Path, Path]) -> None:
    proc, groups = system
    write(proc, {"self/cgroup": "4:cpu,memory:/x\n1:cpu:/\n0::/\n"})
    write(
        groups,
        {
            "memory/x/memory.limit_in_bytes": str(4 * MIB),
            "memory/x/memory.usage_in_bytes": str(9 * MIB),
            "memory/x/memory.stat": "inactive_file 1\ntotal_inactive_file 0\n",
            "memory/memory.limit_in_bytes": "9223372036854771712",
            "memory/memory.usage_in_bytes": "1",
        },
    )
    assert [limit.available for limit in memory_limits(proc, groups)] == [8000 << 10, 0]


def test_where_nothing_is_known_there_is_no_limit(tmp_path: Path) -> None:
    assert available_memory(tmp_path / "proc", tmp_path / "cgroup") is None


def test_the_limit_of_the_address_space() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "from weft.core.memory import available_memory; print(available_memory())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "the address space limit (ulimit -v)" in told.stdout


@pytest.mark.skipif(not CGROUPS.is_dir(), reason="needs Linux")
def test_the_real_files_can_be_read() -> None:
    limit = available_memory()
    assert limit is not None and MIB < limit.available < 1 << 60
