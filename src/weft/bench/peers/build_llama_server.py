"""Compile llama-server and llama-quantize: the sources in llama-cpp-python's package -> FOLDER/bin.

    python build_llama_server.py FOLDER         options for CMake in CMAKE_ARGS

The package index has llama.cpp only as part of llama-cpp-python, whose own build leaves the
programs out. It runs under the Python of a peer, so it does not import Weft.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

PACKAGE = "llama-cpp-python"
TARGETS = ("llama-server", "llama-quantize")
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",  # would be downloaded
    "-DLLAMA_OPENSSL=OFF",
)


def build(folder: Path) -> None:
    """Download, unpack, compile and copy; what is only needed for that is removed."""
    place = folder / "build"
    shutil.rmtree(place, ignore_errors=True)
    source = unpack(place)
    tools = folder / "bin"
    cmake = [str(tools / "cmake")]
    options = [*OPTIONS, *os.environ.get("CMAKE_ARGS", "").split()]
    ninja = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"]
    run([*cmake, "-S", str(source), "-B", str(place / "objects"), *ninja, *options])
    run([*cmake, "--build", str(place / "objects"), "--target", *TARGETS])
    for name in TARGETS:
        shutil.copy2(place / "objects" / "bin" / name, tools / name)
    shutil.rmtree(place)


def unpack(place: Path) -> Path:
    """The folder of llama.cpp's sources, from the newest package."""
    pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(place)]
    run([*pip, "--no-binary", PACKAGE, PACKAGE])
    archive = next(place.glob("*.tar.gz"))
    with tarfile.open(archive) as files:
        files.extractall(place, filter="data")
    return next(place.glob("*/vendor/llama.cpp"))


def run(command: list[str]) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]).absolute())
