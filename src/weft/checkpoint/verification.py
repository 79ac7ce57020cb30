"""`weft info --verify`: files of a model, compared with their recorded SHA-256.

a model folder or a .gguf file    SHA256SUMS in the folder
a pulled model                    SHA256SUMS, or the hashes of the catalog
a training run                    its model, once it is finished, and each of its checkpoints
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from weft.checkpoint.folder_files import MODEL_FILES, RUN_FILE, has_model
from weft.checkpoint.folder_reader import read_consistently
from weft.checkpoint.model_catalog import CATALOG
from weft.checkpoint.pulled_models import pulled_folder, resolve
from weft.checkpoint.run_files import CHECKPOINTS, checkpoint_folder, checkpoint_steps
from weft.checkpoint.run_selection import candidate_steps, split_run_path
from weft.checkpoint.sha256sums import SUMS_FILE, file_sha256, files_of, read_sums
from weft.core.errors import DataError

LOADED_FILES = {
    *(set(MODEL_FILES) - {SUMS_FILE}),
    *("generation_config.json", "model.safetensors.index.json", "pytorch_model.bin.index.json"),
}
WEIGHTS = (".safetensors", ".bin")


@dataclass(frozen=True)
class FileCheck:
    """The result for one file."""

    file: str
    """Relative to the folder of the model."""
    result: Literal["ok", "differs", "missing", "not recorded"]


def verify(model: str | Path) -> list[FileCheck]:
    """The results for all recorded files of a model; a DataError if no hash is recorded."""
    path = resolve(model)
    run_path = split_run_path(path)
    if run_path.which:
        step = candidate_steps(run_path)[0]
        return list(check_checkpoints(run_path.run, only=step))
    if not path.exists():
        raise DataError("there is no such model. Check the path.", path)
    if path.is_dir():
        checks = read_consistently(path, MODEL_FILES, partial(check_whole_folder, model))
    else:
        checks = check_folder(model, path.parent, path.name)
    if (path / RUN_FILE).is_file():
        checks = [*(checks if has_model(path) else []), *check_checkpoints(path)]
    if not any(check.result != "not recorded" for check in checks):
        raise DataError(
            f"has no {SUMS_FILE}: an older version of Weft or another program wrote it, and there "
            "is nothing to compare it with. `weft convert` writes a folder with hashes.",
            path,
        )
    return checks


def recorded_sums(model: str | Path, folder: Path) -> Mapping[str, str]:
    """{file: SHA-256} from SHA256SUMS, otherwise from the catalog."""
    sums = read_sums(folder)
    name = str(model)
    if not sums and name in CATALOG and folder == pulled_folder(name):
        return {file: digest for file, (_, digest) in CATALOG[name].files.items()}
    return sums


def check_whole_folder(model: str | Path, folder: Path) -> list[FileCheck]:
    """`check_folder`, and a DataError for a file that belongs to a model but has no hash among
    those of the others: it was added later, or SHA256SUMS was cut."""
    checks = check_folder(model, folder)
    names = {check.file for check in checks}
    for file in files_of(folder) if names else ():
        name = file.relative_to(folder).as_posix()
        if name not in names and is_model_file(name):
            raise DataError(
                f"has {name}, which {SUMS_FILE} does not name: it was added later, or {SUMS_FILE} "
                "is not complete. Remove the file, or copy the model again.",
                folder,
            )
    return checks


def is_model_file(name: str) -> bool:
    """Whether a file of a folder can change what is loaded from it."""
    return name in LOADED_FILES or ("/" not in name and Path(name).suffix in WEIGHTS)


def check_folder(model: str | Path, folder: Path, only: str | None = None) -> list[FileCheck]:
    return list(check_files(folder, recorded_sums(model, folder), only))


def check_files(folder: Path, sums: Mapping[str, str], only: str | None) -> Iterator[FileCheck]:
    """One result per recorded file, or for `only` one of them."""
    if only is not None and only not in sums:
        yield FileCheck(only, "not recorded")
        return
    for name, digest in sums.items():
        if only not in (None, name):
            continue
        actual = actual_sha256(folder / name)
        if actual is None:
            yield FileCheck(name, "missing")
        else:
            yield FileCheck(name, "ok" if actual == digest else "differs")


def actual_sha256(file: Path) -> str | None:
    """None if there is no such file, or a pipe or a device, whose content does not end."""
    try:
        return file_sha256(file) if file.is_file() else None
    except FileNotFoundError:  # removed meanwhile
        return None


def check_checkpoints(run: Path, only: int | None = None) -> Iterator[FileCheck]:
    """The results of all checkpoints of a run, or of one. One that training removes meanwhile is
    left out."""
    for step in checkpoint_steps(run / CHECKPOINTS):
        if only not in (None, step):
            continue
        folder = checkpoint_folder(run / CHECKPOINTS, step)
        sums = read_sums(folder)
        checks = list(check_files(folder, sums, None))
        if not sums:
            checks = [FileCheck("", "not recorded")]
        if folder.is_dir():
            for check in checks:
                name = (folder / check.file).relative_to(run).as_posix()
                yield FileCheck(name, check.result)
