"""`weft doctor`: machine and installation, for bug reports.

A value that cannot be determined is printed with the reason; no error ends the command.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer

from weft import __version__
from weft.cli.output import print_json

Section = dict[str, str]

PACKAGES = (
    *("torch", "numpy", "tokenizers", "safetensors", "pydantic", "typer", "cffi"),
    *("jinja2", "llguidance", "gguf", "huggingface_hub"),
)
VARIABLES = ("WEFT_", "OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "TORCH_", "HF_HOME")
"""Prefixes of the environment variables that change how Weft computes."""
SECRET = re.compile("TOKEN|KEY|SECRET|PASSW")


def command(
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Print processor, kernels, threads, limits, folders and versions, for a bug report.

    \b
    Example:
      weft doctor
      weft doctor --json > doctor.json
      WEFT_WAIT=spin weft doctor --threads 1
    """
    sections = {name: collect() for name, collect in SECTIONS.items()}
    if json:
        print_json(sections)
        return
    width = max(len(key) for section in sections.values() for key in section)
    for name, section in sections.items():
        print(f"{name}:")
        for key, value in section.items():
            print(f"  {key:<{width}}  {value}")


def versions() -> Section:
    return {
        "weft": f"{__version__}, {Path(__file__).parents[1]}",
        "python": f"{platform.python_version()}, {sys.executable}",
        "system": platform.platform(),
        **{name: package_version(name) for name in PACKAGES},
    }


def package_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"


def processor() -> Section:
    from weft.core.cpu_limits import affinity, available_cpus, cpu_quota
    from weft.native.compiler import VARIANTS, processor_features
    from weft.native.compiler import processor as cpuinfo

    model = (line.partition(":")[2].strip() for line in cpuinfo().splitlines() if "name" in line)
    wanted = sorted({one for variant in VARIANTS for one in variant.features})
    has = processor_features()
    quota = cpu_quota()
    return {
        "model": next(model, platform.machine()),
        "features": " ".join(one for one in wanted if one in has) or "none that kernels use",
        "CPUs": f"{os.cpu_count()}, of which {len(affinity())} are allowed (affinity)",
        "cgroup quota": "none" if quota is None else f"{quota:g} CPUs",
        "CPUs to use": str(available_cpus()),
        "load": load_average(),
    }


def load_average() -> str:
    try:
        return " ".join(f"{load:.2f}" for load in os.getloadavg())
    except (OSError, AttributeError):
        return "not known"


def memory() -> Section:
    """Memory that is left below each limit: of the machine, of cgroups, of ulimit -v."""
    from weft.core.memory import memory_limits

    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = {limit.name: f"{size(limit.available)} left" for limit in memory_limits()}
    return {"machine": size(total), **limits}


def size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:,.1f} GiB"


def kernels() -> Section:
    """The native library; compiles it if that has not been done yet."""
    from weft.core.errors import UsageError
    from weft.native.compiler import BuildError, forced_variant, is_disabled, library_path
    from weft.native.library import native

    try:
        if is_disabled():
            return {"native": "off (WEFT_NATIVE=0): torch computes, many times slower"}
        path, forced, library = library_path(), forced_variant(), native()
    except (BuildError, UsageError, OSError) as error:
        return {"native": f"not available: {error}"}
    if library is None:
        return {"native": f"not available: {path} cannot be loaded"}
    is_prebuilt = path.parent.name == "prebuilt"
    variant = path.stem.removeprefix("weft-").rpartition("-")[0] if is_prebuilt else "native"
    return {
        "native": "prebuilt" if is_prebuilt else "compiled on this machine",
        "instruction set": forced.name if forced else variant,
        "panel width": str(library.panel_width),
        "library": str(path),
    }


def threads() -> Section:
    import torch

    from weft.core.openmp import WAIT_VARIABLES, wait_policy
    from weft.native.library import openmp_libraries

    libraries = openmp_libraries()
    note = "" if len(libraries) < 2 else " (more than one: their threads compete)"
    return {
        "threads": str(torch.get_num_threads()),
        "WEFT_WAIT": wait_policy(),
        **{name: os.environ.get(name, "not set") for name in WAIT_VARIABLES},
        "OpenMP": (", ".join(libraries) or "not found") + note,
        "device": "cuda" if torch.cuda.is_available() else "cpu",
    }


def folders() -> Section:
    from weft.checkpoint.pulled_models import cache_folder, pulled_names

    cache = cache_folder()
    return {
        "cache": folder_state(cache),
        "models": ", ".join(pulled_names()) or "none",
        "native kernels": folder_state(cache / "native"),
        "working folder": folder_state(Path.cwd()),
    }


def folder_state(path: Path) -> str:
    """The path, whether it can be written, and the free space of its disk."""
    existing = next((p for p in (path, *path.parents) if p.exists()), path)
    state = "" if path.exists() else ", does not exist yet"
    if not os.access(existing, os.W_OK):
        state += ", not writable"
    try:
        return f"{path}{state}, {size(shutil.disk_usage(existing).free)} free"
    except OSError as error:
        return f"{path}{state}, {error.strerror}"


def environment() -> Section:
    names = sorted(name for name in os.environ if name.startswith(VARIABLES))
    return {name: os.environ[name] for name in names if not SECRET.search(name)}


SECTIONS: dict[str, Callable[[], Section]] = {
    "versions": versions,
    "processor": processor,
    "memory": memory,
    "kernels": kernels,
    "threads": threads,
    "folders": folders,
    "environment": environment,
}
