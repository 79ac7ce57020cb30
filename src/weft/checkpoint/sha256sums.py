"""SHA-256 of every file of a folder, in a file that `sha256sum -c SHA256SUMS` reads too.

A model folder, a Hugging Face folder, a pulled model and a checkpoint of a run are written together
with their SHA256SUMS. `weft info --verify` (verification.py) compares them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from weft.core.errors import DataError, shown

SUMS_FILE = "SHA256SUMS"
LINE = re.compile(r"([0-9a-f]{64})  (.+)")


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_sums(folder: Path, stated: Mapping[str, str] | None = None) -> None:
    """Write SHA256SUMS for all files below a folder that is not yet seen by others. `stated`:
    {file: SHA-256} of files that were compared with it."""
    lines = []
    for file in files_of(folder):
        name = file.relative_to(folder).as_posix()
        lines.append(f"{(stated or {}).get(name) or file_sha256(file)}  {name}\n")
    text = "".join(lines)
    (folder / SUMS_FILE).write_text(text, encoding="utf-8")


def files_of(folder: Path) -> Iterator[Path]:
    """The files below a folder, except hidden ones and SHA256SUMS."""
    for path in sorted(folder.rglob("*")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not is_hidden and path.name != SUMS_FILE:
            yield path


def read_sums(folder: Path) -> Mapping[str, str]:
    """{file: SHA-256} as recorded in a folder; empty if nothing is."""
    file = folder / SUMS_FILE
    if not file.is_file():
        return {}
    sums = {}
    for number, line in enumerate(file.read_text("utf-8", "replace").splitlines(), 1):
        match = LINE.fullmatch(line)
        if match is None:
            raise DataError("is not a line of sha256sum. Copy the file again.", file, number)
        if match[2].startswith("/") or ".." in match[2].split("/"):
            raise DataError(
                f"names {shown(match[2])}, which is not in this folder. Copy the file again.",
                file,
                number,
            )
        sums[match[2]] = match[1]
    return sums
