"""Files of a Hugging Face repository: their list with hashes, and downloads that can be continued.

    a file in Git LFS      the hub states its SHA-256
    any other file         the hub states the SHA-1 of its Git blob
    NAME.part              an incomplete file; the next download appends to it

huggingface_hub provides the URLs and the user's token. Differs from its snapshot_download, which
starts an interrupted file again and verifies no hashes.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from weft.checkpoint.atomic import publish
from weft.core.errors import DataError

PATTERNS = ("*.safetensors", "*.json", "*.model", "*.txt", "*.spm", "*.jinja", "*.gguf")
"""Files of a repository that are downloaded: no pickles."""
PART = ".part"
BLOCK = 1 << 20
MAX_ATTEMPTS = 5
"""Requests in a row that bring nothing of a file."""
RETRY_SECONDS = 1.0
"""Before the first repetition of such a request; twice as long before each further one."""
Count = Callable[[int], None]
"""Receives the number of bytes that have arrived; negative if some have to come again."""


@dataclass(frozen=True)
class RepositoryFile:
    """One file, as the hub describes it."""

    name: str
    size: int
    sha256: str | None
    blob_id: str | None


@dataclass(frozen=True)
class Repository:
    """The files of a repository at one commit."""

    name: str
    commit: str
    files: tuple[RepositoryFile, ...]

    @property
    def num_bytes(self) -> int:
        return sum(file.size for file in self.files)


def read_repository(name: str, revision: str | None) -> Repository:
    """The files that PATTERNS name, at a branch, tag or commit (None: the main branch)."""
    from huggingface_hub import HfApi

    info = HfApi().model_info(name, revision=revision, files_metadata=True)
    files = tuple(
        RepositoryFile(
            one.rfilename, one.size or 0, one.lfs.sha256 if one.lfs else None, one.blob_id
        )
        for one in info.siblings or ()
        if any(fnmatch(one.rfilename, pattern) for pattern in PATTERNS)
    )
    for file in files:
        check_name(file.name)
    if not files:
        raise DataError(f"this repository has no files such as {', '.join(PATTERNS)}.", name)
    return Repository(name, info.sha or "", files)


def check_name(name: str) -> None:
    """A DataError for a file that would be written outside of the folder, or hidden in it."""
    if any(part.startswith(".") or not part for part in name.split("/")) or "\\" in name:
        raise DataError("this repository has a file of this name, which is not safe.", name)


def download_file(repository: Repository, file: RepositoryFile, folder: Path, count: Count) -> None:
    """Download a file into a folder unless it is there, complete; a DataError if it has another
    hash than the hub states. What an interrupted download has written is kept, and continued."""
    target = folder / file.name
    if target.is_file():
        if is_as_stated(target, file):
            count(file.size)
            return
        target.unlink()  # a power failure may leave a name without all of its data
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + PART)
    count(part_size(part))
    failures = 0
    while part_size(part) < file.size or not part.exists():
        before = part_size(part)
        problem: Exception = DataError("the server ends this file before its end.", file.name)
        try:
            for block in file_blocks(repository, file, part, count):
                count(block)
        except retried_errors() as error:
            problem = error
        failures = failures + 1 if part_size(part) <= before else 0
        if failures == MAX_ATTEMPTS:
            raise problem
        time.sleep(RETRY_SECONDS * 2 ** (failures - 1) if failures else 0.0)
    check_hash(part, file, count)
    publish(part, target)


def part_size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def file_blocks(
    repository: Repository, file: RepositoryFile, part: Path, count: Count
) -> Iterator[int]:
    """Append what is missing to `part`; yields the size of each block that is written."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        get_session,
        hf_raise_for_status,
    )

    begin = part_size(part)
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if begin:
        headers["Range"] = f"bytes={begin}-"
    url = hf_hub_url(repository.name, file.name, revision=repository.commit)
    with get_session().stream("GET", url, headers=headers, follow_redirects=True) as response:
        hf_raise_for_status(response)
        if begin and response.status_code != 206:  # this server always sends the whole file
            count(-begin)
            begin = 0
        with part.open("ab" if begin else "wb") as out:
            for block in response.iter_bytes():  # of a given size, the last would be lost
                out.write(block)
                out.flush()
                yield len(block)


def retried_errors() -> tuple[type[Exception], ...]:
    """A connection that is lost or silent. The library of HTTP is that of huggingface_hub."""
    from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

    client: Any = type(get_session())
    module = __import__(client.__module__.partition(".")[0])
    return (module.TransportError,)


def check_hash(part: Path, file: RepositoryFile, count: Count) -> None:
    """A DataError unless a complete file has the hash that the hub states; it is removed then."""
    digest, wanted = hash_of(part, file), hub_hash(file)
    if digest != wanted:
        count(-part_size(part))
        part.unlink()
        raise DataError(
            f"what was downloaded has the hash {digest}, but the hub states {wanted}: it was "
            "damaged on the way, and is removed. Try again.",
            file.name,
        )


def is_as_stated(path: Path, file: RepositoryFile) -> bool:
    """Whether a file has the hash that the hub states, or the size if it states none."""
    digest = hash_of(path, file)
    return part_size(path) == file.size if digest is None else digest == hub_hash(file)


def hub_hash(file: RepositoryFile) -> str | None:
    return file.sha256 or file.blob_id


def hash_of(path: Path, file: RepositoryFile) -> str | None:
    """The hash of a file, of the kind that the hub states; None if it states none."""
    if file.sha256:
        digest = hashlib.sha256()
    elif file.blob_id:
        digest = hashlib.sha1(f"blob {part_size(path)}\0".encode())
    else:
        return None
    with path.open("rb") as content:
        while block := content.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
