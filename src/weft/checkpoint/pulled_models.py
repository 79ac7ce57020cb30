"""Pulled models: their folders below the cache, found by name, listed and removed.

    CACHE/models/smollm2/             a model of the catalog
    CACHE/models/org--model/          a repository of the Hugging Face hub
    CACHE/models/.partial-org--model/ the files of an interrupted download, which continues there

CACHE is $WEFT_CACHE, or ~/.cache/weft. A folder has its name only while it is complete. It has
SHA256SUMS and PULL_FILE: name, revision, family and the bytes of its files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from weft.checkpoint.atomic import remove_folder
from weft.checkpoint.disk_space import folder_bytes
from weft.checkpoint.model_catalog import CATALOG
from weft.checkpoint.sha256sums import SUMS_FILE, files_of
from weft.checkpoint.writer_lock import lock_owner, lock_path, remove_stale, writer_lock
from weft.core.errors import DataError
from weft.core.registry import nearest

NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
PULL_FILE = "pull.json"
PARTIAL = ".partial-"
State = Literal["complete", "damaged", "incomplete"]


@dataclass(frozen=True)
class PullRecord:
    """Contents of PULL_FILE: name, revision, family and file sizes of a pulled model."""

    name: str
    revision: str
    """The version of a wheel, or the commit of a repository."""
    family: str | None
    sizes: dict[str, int]
    """Bytes of each file."""

    @classmethod
    def read(cls, folder: Path) -> PullRecord | None:
        """Read the record of a folder; None: it was pulled by an earlier version, or the file is
        damaged."""
        try:
            return cls(**json.loads((folder / PULL_FILE).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, folder: Path) -> None:
        text = json.dumps(asdict(self), ensure_ascii=False)
        (folder / PULL_FILE).write_text(text + "\n", encoding="utf-8")


@dataclass(frozen=True)
class PulledModel:
    """One row of `weft list`."""

    name: str
    family: str | None
    num_bytes: int
    revision: str | None
    state: State
    """damaged: a file is missing or its size has changed; incomplete: the download was
    interrupted."""
    path: Path

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path)}


def cache_folder() -> Path:
    """Folder of pulled models and other cached files."""
    return Path(os.environ.get("WEFT_CACHE") or Path.home() / ".cache" / "weft")


def models_folder() -> Path:
    return cache_folder() / "models"


def pulled_folder(name: str) -> Path:
    """The folder for a name, whether it exists or not."""
    return models_folder() / name.replace("/", "--")


def partial_folder(name: str) -> Path:
    """Where the files of a repository are downloaded to."""
    folder = pulled_folder(name)
    return folder.with_name(PARTIAL + folder.name)


def name_of(folder_name: str) -> str:
    """The name of a model whose folder has no record."""
    return folder_name if folder_name in CATALOG else folder_name.replace("--", "/", 1)


def resolve(model: str | Path) -> Path:
    """An existing path unchanged; otherwise the pulled model of that name, if there is one."""
    path, name = Path(model), str(model)
    try:
        exists = path.exists()
    except OSError as error:  # such as a name that is too long
        raise DataError(f"cannot be opened ({error.strerror}). Check the path.", path) from None
    if exists or not NAME.fullmatch(name):
        return path
    folder = pulled_folder(name)
    if not folder.is_dir():
        return path
    return main_path(name, folder)


def main_path(name: str, folder: Path) -> Path:
    """The path to load: the folder, or its .gguf file if the folder has no other format."""
    if name in CATALOG:
        return folder / CATALOG[name].main_file
    files = list(folder.glob("*.gguf"))
    return files[0] if len(files) == 1 and not (folder / "config.json").exists() else folder


def pulled_names() -> list[str]:
    """Names of the models that are complete, without reading more than their records."""
    return [name for name, _ in pulled_folders()]


def pulled_folders() -> Iterator[tuple[str, Path]]:
    """(name, folder) of each model, in order."""
    folder = models_folder()
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_dir() and not path.name.startswith("."):
            record = PullRecord.read(path)
            yield (record.name if record else name_of(path.name)), path


def pulled_models() -> list[PulledModel]:
    """All pulled models, then interrupted downloads."""
    complete = [describe_pulled(name, path) for name, path in pulled_folders()]
    return complete + [
        PulledModel(partial_name(path), None, folder_bytes(path), None, "incomplete", path)
        for path in partial_folders()
    ]


def partial_folders() -> list[Path]:
    """The folders of interrupted downloads, in order."""
    folder = models_folder()
    return sorted(folder.glob(f"{PARTIAL}*")) if folder.is_dir() else []


def partial_name(partial: Path) -> str:
    """The model of an interrupted download."""
    return name_of(partial.name.removeprefix(PARTIAL))


def describe_pulled(name: str, folder: Path) -> PulledModel:
    record, num_bytes = PullRecord.read(folder), folder_bytes(folder)
    if record is None:
        revision = CATALOG[name].revision if name in CATALOG else None
        return PulledModel(name, None, num_bytes, revision, "complete", folder)
    state: State = "complete" if file_sizes(folder) == record.sizes else "damaged"
    return PulledModel(name, record.family, num_bytes, record.revision, state, folder)


def file_sizes(folder: Path) -> dict[str, int]:
    """Bytes of the files of a model, except those that describe them."""
    return {
        file.relative_to(folder).as_posix(): file.stat().st_size
        for file in files_of(folder)
        if file.name not in (PULL_FILE, SUMS_FILE)
    }


def remove_model(name: str) -> int:
    """Remove a pulled model, or what an interrupted download of it left; returns the bytes. A
    DataError for a name that is not pulled."""
    folder, partial = pulled_folder(name), partial_folder(name)
    clean_up()
    if not NAME.fullmatch(name) or not (folder.is_dir() or partial.is_dir()):
        raise DataError(f"no model of that name is pulled. {pulled_sentence(name)}", name)
    num_bytes = sum(folder_bytes(path) for path in (folder, partial) if path.is_dir())
    with writer_lock(folder, lock_path(folder)):
        if partial.is_dir():
            shutil.rmtree(partial)
        if folder.is_dir():
            remove_folder(folder)
    return num_bytes


def pulled_sentence(name: str) -> str:
    """A sentence that lists the pulled models, for an error message."""
    names = [model.name for model in pulled_models()]
    guess = nearest(name, names)
    hint = f"Did you mean '{guess}'? " if guess else ""
    return hint + (f"Pulled are {', '.join(names)}." if names else "None is pulled yet.")


def clean_up() -> None:
    """Remove temporary files of killed processes, of all models."""
    folder = models_folder()
    for lock in sorted(folder.glob(".*.lock")) if folder.is_dir() else ():
        if lock_owner(lock) is None:
            remove_stale(folder / lock.name.removeprefix(".").removesuffix(".lock"))


def pull_hint(name: str) -> str:
    """The command that would install a model of this name; empty if none is known."""
    if name in CATALOG:
        return f"`weft pull {name}` installs it. "
    if "." not in name and (guess := nearest(name, {*CATALOG, *pulled_names()})):
        is_pulled = pulled_folder(guess).is_dir()
        return f"Did you mean '{guess}'{', which is pulled' * is_pulled}? " + (
            "" if is_pulled else f"`weft pull {guess}` installs it. "
        )
    if "/" in name and NAME.fullmatch(name) and not Path(name).parent.exists():
        return f"If it is a repository of the Hugging Face hub, `weft pull {name}` installs it. "
    return ""
