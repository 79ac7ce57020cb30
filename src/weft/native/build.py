"""C++ sources -> a shared library in the cache folder, compiled at first use.

The file's name holds a hash of all that its content depends on: sources, flags, compiler, processor
and the OpenMP library. So a new version or another machine on the same disk builds its own. It is
written beside its place and renamed: two processes may build at once, and neither sees a part.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

HERE = Path(__file__).parent / "csrc"
SOURCES = (
    *("linear.cpp", "attention.cpp", "activation.cpp", "norm.cpp", "layer.cpp"),
    *("table.cpp", "short.cpp", "dropout.cpp", "agreement.cpp", "best.cpp", "copy.cpp"),
    *("next.cpp", "greedy.cpp"),
)
HEADERS = (
    *("simd.h", "panels.h", "tile.h", "pages.h", "rows.h", "ranked.h", "rounded.h"),
    *("layer.h", "turned.h", "next.h"),
)
FLAGS = (
    *("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-fopenmp"),
    # a product is fused into a sum where the source says so, never by the compiler's choice
    "-ffp-contract=off",
    "-fvisibility=hidden",
)


class BuildError(Exception):
    """Why there is no library: the compiler is missing or did not manage."""


def library_path() -> Path:
    """The library for this machine; builds it unless it is there."""
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if compiler is None:
        raise BuildError("no g++ was found")
    path = cache_folder() / f"weft-{fingerprint(compiler)}.so"
    if not path.exists():
        build(compiler, path)
    return path


def cache_folder() -> Path:
    """Beside the pulled models: $WEFT_CACHE, or ~/.cache/weft."""
    cache = Path(os.environ.get("WEFT_CACHE") or Path.home() / ".cache" / "weft")
    return cache / "native"


def fingerprint(compiler: str) -> str:
    """Changes with anything that the library depends on."""
    found = hashlib.sha256()
    for name in (*SOURCES, *HEADERS):
        found.update((HERE / name).read_bytes())
    parts = (*FLAGS, run([compiler, "--version"]), processor(), *map(str, openmp()))
    found.update("\n".join(parts).encode())
    return found.hexdigest()[:20]


def processor() -> str:
    """What -march=native looks at: the processor's name and abilities."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))


def openmp() -> list[Path]:
    """The OpenMP library that torch brings: with the same one there is one pool of threads."""
    return sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))[:1]


def build(compiler: str, path: Path) -> None:
    """Compile to `path`, which is complete or not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        new = Path(folder) / path.name
        sources = [str(HERE / name) for name in SOURCES]
        # as-needed: torch's OpenMP library serves, and the compiler's own is not linked beside it
        run([compiler, *FLAGS, *sources, "-Wl,--as-needed", *map(str, openmp()), "-o", str(new)])
        new.replace(path)


def run(command: list[str]) -> str:
    """What a command prints; an error with its last line when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be started: {error.strerror}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise BuildError(f"{command[0]} failed: {lines[-1]}")
    return done.stdout
