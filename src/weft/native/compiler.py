"""C++ sources -> the path of a shared library for this processor: prebuilt, or compiled once.

Wheels contain a library for each of VARIANTS (hatch_build.py). Where none is present or fits, the
sources are compiled for this machine at first use, into the cache folder. $WEFT_ISA forces a
variant. This module uses the standard library only: the build hook of the wheel loads it by path.

The name of a file contains a hash of everything its content depends on, so that another version of
Weft or another machine on the same disk compiles its own. A file ends with a checksum of its
content: loading a truncated library would end the process with SIGBUS. Files are written under a
temporary name and renamed, so that two processes may compile at once.

A library does not link OpenMP: its symbols are resolved from the OpenMP library that `import torch`
has loaded, so that there is one thread pool.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)

SOURCE_FOLDER = Path(__file__).parent / "csrc"
PREBUILT_FOLDER = Path(__file__).parent / "prebuilt"
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fopenmp", "-fvisibility=hidden"),
    "-Wno-psabi",  # vectors wider than the baseline's registers are passed inside one file only
    # a product is fused into a sum where the source says so, never by the compiler's choice
    "-ffp-contract=off",
)
CHECKSUM_MAGIC = b"weft-sha256:"
BUILD_BYTES = 8 << 20
"""More than the object files and the library take, 1 MB."""


class BuildError(Exception):
    """There is no library: the compiler is missing or failed."""

    remedy = "Install g++, or a wheel of Weft with prebuilt libraries."


class CacheFolderError(BuildError):
    """The library cannot be written to the cache folder."""

    remedy = "Free some space there, or set WEFT_CACHE to a folder that can be written."


class VariableError(BuildError):
    """$WEFT_NATIVE has an unknown value, or $WEFT_ISA names a variant that does not exist or that
    this processor cannot run."""


@dataclass(frozen=True)
class Variant:
    """A set of instructions that a library is compiled for."""

    name: str
    flags: tuple[str, ...]
    features: frozenset[str] = frozenset()
    """What the processor must have, as /proc/cpuinfo calls it."""

    def missing_features(self) -> list[str]:
        """Features that this processor lacks; empty: it can run this variant."""
        return sorted(self.features - processor_features())


V3_FEATURES = frozenset(("avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"))
V4_FEATURES = V3_FEATURES | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
VARIANTS = (
    Variant("x86-64-v4-vnni", ("-march=x86-64-v4", "-mavx512vnni"), V4_FEATURES | {"avx512_vnni"}),
    Variant("x86-64-v4", ("-march=x86-64-v4",), V4_FEATURES),
    Variant("x86-64-v3", ("-march=x86-64-v3",), V3_FEATURES),
    Variant("x86-64", ("-march=x86-64",)),
)
"""Those of wheels, best first."""
NATIVE = Variant("native", ("-march=native",))
SANITIZED = Variant(
    "sanitize",
    ("-march=native", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
)
"""For `make test-native`: the process must preload the run-time libraries of both sanitizers."""
CHOICES = {variant.name: variant for variant in (*VARIANTS, NATIVE, SANITIZED)}


def library_path() -> Path:
    """The library for this machine: prebuilt if one fits, else from the cache, else compiled."""
    path = prebuilt_library()
    if path is not None:
        return path
    variant, compiler = forced_variant() or NATIVE, find_compiler()
    if compiler is None:
        raise BuildError("g++ was not found")
    path = cache_folder() / f"weft-{fingerprint(compiler, variant)}.so"
    if not is_intact(path):
        log.warning("compiling the native kernels for this machine (once, about 15 s): %s", path)
        begin = time.monotonic()
        compile_library(compiler, variant, path)
        log.warning("compiled the native kernels in %.0f s", time.monotonic() - begin)
    return path


def prebuilt_library() -> Path | None:
    """The best library of a wheel that this processor can run."""
    forced = forced_variant()
    candidates = (forced,) if forced else VARIANTS
    for variant in candidates if is_x86() else ():
        if not variant.missing_features() and (path := prebuilt_path(variant)) is not None:
            return path
    return None


def find_compiler() -> str | None:
    return os.environ.get("CXX") or shutil.which("g++")


def is_disabled() -> bool:
    """Whether $WEFT_NATIVE switches the kernels off; a VariableError for an unknown value."""
    value = os.environ.get("WEFT_NATIVE", "")
    if value not in ("", "0", "1"):
        raise VariableError(
            f"WEFT_NATIVE is {value!r}: it must be 0 (torch computes) or 1 (native kernels, the "
            "default). Unset it."
        )
    return value == "0"


def has_library() -> bool:
    """Whether there is a library or a compiler for one, and it is not switched off. Compiles
    nothing."""
    try:
        if is_disabled():
            return False
    except VariableError:  # reported where the library is loaded
        return True
    return find_compiler() is not None or prebuilt_library() is not None


def forced_variant() -> Variant | None:
    """The variant that $WEFT_ISA names, if any."""
    name = os.environ.get("WEFT_ISA")
    if not name:
        return None
    if name not in CHOICES:
        raise VariableError(f"WEFT_ISA is '{name}'. Choose one of: {', '.join(CHOICES)}.")
    variant = CHOICES[name]
    if missing := variant.missing_features():
        raise VariableError(
            f"WEFT_ISA is '{name}', but this processor lacks {', '.join(missing)}. Unset WEFT_ISA."
        )
    return variant


def prebuilt_path(variant: Variant) -> Path | None:
    """The library of a wheel, unless it is damaged."""
    for path in PREBUILT_FOLDER.glob(f"weft-{variant.name}-*.so"):
        # "x86-64" is the beginning of other names; a hash has no hyphen
        if path.stem.rpartition("-")[0] != f"weft-{variant.name}":
            continue
        if is_intact(path):
            return path
        log.warning("a prebuilt native library is damaged and not used: %s", path)
    return None


def cache_folder() -> Path:
    """Beside the pulled models: $WEFT_CACHE, or ~/.cache/weft."""
    cache = Path(os.environ.get("WEFT_CACHE") or Path.home() / ".cache" / "weft")
    return cache / "native"


def fingerprint(compiler: str, variant: Variant) -> str:
    """Hash of everything that the content of a library depends on."""
    digest = hashlib.sha256()
    for path in sorted((*SOURCE_FOLDER.glob("*.cpp"), *SOURCE_FOLDER.glob("*.h"))):
        digest.update(path.name.encode() + path.read_bytes())
    parts = [*FLAGS, *variant.flags, run([compiler, "--version"])]
    if "-march=native" in variant.flags:
        parts.append(processor())
    digest.update("\n".join(parts).encode())
    return digest.hexdigest()[:20]


def processor() -> str:
    """What -march=native depends on: the name and the features of the processor."""
    wanted = ("model name", "flags", "Features", "CPU part")
    lines = {line for line in cpuinfo() if line.startswith(wanted)}
    return "\n".join(sorted(lines)) or platform.processor()


def processor_features() -> frozenset[str]:
    flags = (line for line in cpuinfo() if line.startswith("flags"))
    return frozenset(next(flags, "").split())


def cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


def is_x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")


def compile_library(compiler: str, variant: Variant, path: Path) -> None:
    """Compile the sources in parallel and link them. `path` is complete or not there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CacheFolderError(f"{path.parent}: {error.strerror}") from None
    free = shutil.disk_usage(path.parent).free
    if free < BUILD_BYTES:
        raise CacheFolderError(
            f"{path.parent} has {free >> 10} kB of free space, compiling needs {BUILD_BYTES >> 10}"
        )
    with build_folder(path.parent) as folder:
        sources = sorted(SOURCE_FOLDER.glob("*.cpp"))
        objects = [str(Path(folder) / f"{source.stem}.o") for source in sources]
        common = [compiler, *FLAGS, *variant.flags, "-c"]
        commands = [[*common, str(s), "-o", o] for s, o in zip(sources, objects, strict=True)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(run, commands))
        new = Path(folder) / path.name
        # without -fopenmp: see the module docstring
        sanitizers = [flag for flag in variant.flags if flag.startswith("-fsanitize")]
        run([compiler, "-shared", *sanitizers, *objects, "-o", str(new)])
        append_checksum(new)
        new.replace(path)


@contextmanager
def build_folder(parent: Path) -> Iterator[str]:
    """A temporary folder; a CacheFolderError if the disk takes no folder or no file."""
    try:
        with tempfile.TemporaryDirectory(dir=parent) as folder:
            yield folder
    except OSError as error:
        raise CacheFolderError(f"{parent}: {error.strerror}") from None


def append_checksum(path: Path) -> None:
    """Bytes after the end of an ELF file are ignored by the loader."""
    digest = hashlib.sha256(path.read_bytes()).digest()
    with path.open("ab") as file:
        file.write(CHECKSUM_MAGIC + digest)


def is_intact(path: Path) -> bool:
    """Whether the file is there and ends with the checksum of what precedes it."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    body, magic, digest = content.rpartition(CHECKSUM_MAGIC)
    return magic == CHECKSUM_MAGIC and digest == hashlib.sha256(body).digest()


def run(command: list[str]) -> str:
    """The output of a command; BuildError with its last line if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be started: {error.strerror}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise BuildError(f"{command[0]} failed: {lines[-1]}")
    return done.stdout
