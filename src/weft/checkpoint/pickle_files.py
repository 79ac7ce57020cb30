"""Checkpoints written by `torch.save` (.pt, .bin) -> tensors, with `torch.load(weights_only=True)`.

    zip      since torch 1.6: mapped, so that a tensor occupies memory only when it is read
    legacy   a sequence of pickles followed by the storages: torch reads it as a whole

Only the globals that torch allows are loaded, so that a file cannot run code. fairseq checkpoints
also contain `argparse.Namespace` (loaded) and classes of numpy, omegaconf and fairseq beside the
weights; each of these becomes a `Placeholder`, without importing or calling anything it names. Any
error of torch becomes a DataError.
"""

from __future__ import annotations

import argparse
import re
import struct
import threading
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.serialization import get_unsafe_globals_in_checkpoint, safe_globals

from weft.checkpoint.pickle_header import BIN_FILE, BIN_INDEX, ZIP_MAGIC, Placeholder
from weft.checkpoint.safetensors_header import check_is_file, read_weight_map
from weft.checkpoint.tensor_source import InMemorySource
from weft.core.errors import DataError

LEGACY_NAMES = (
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar",
    "numpy.dtype",
    "numpy.ndarray",
)
"""Globals of fairseq_header.PACKAGES in legacy files, which torch cannot list before loading."""
SafeGlobal = Callable[..., Any] | tuple[Callable[..., Any], str]
"""A class or function, under its own name or another."""
LOADING = threading.Lock()
"""The allowed globals are process-wide state of torch."""


def open_pickles(folder: Path) -> InMemorySource | None:
    """The tensors of pytorch_model.bin, or of the shards in its index; None if there is neither."""
    if (folder / BIN_INDEX).is_file():
        return open_shards(folder)
    return open_pickle(folder / BIN_FILE) if (folder / BIN_FILE).is_file() else None


def open_shards(folder: Path) -> InMemorySource:
    """The tensors of all files that the index names."""
    tensors: dict[str, Tensor] = {}
    for file, names in read_weight_map(folder / BIN_INDEX).items():
        if not (folder / file).is_file():
            raise DataError(
                f"there is no such file, but {BIN_INDEX} assigns {len(names)} tensors to it. Copy "
                "the whole model folder.",
                folder / file,
            )
        shard = open_pickle(folder / file).tensors
        missing = sorted(names - shard.keys())
        if missing:
            raise DataError(
                f"does not contain {missing[0]}, which {BIN_INDEX} assigns to it. Use the files "
                "of one model.",
                folder / file,
            )
        tensors |= {name: shard[name] for name in names}
    return InMemorySource(tensors, folder / BIN_INDEX)


def open_pickle(path: Path) -> InMemorySource:
    """The tensors of a file that contains a dictionary of tensors and nothing else."""
    values = read_pickle(path)
    tensors = values if isinstance(values, dict) else {}
    if not tensors or not all(
        isinstance(name, str) and is_plain_tensor(value) for name, value in tensors.items()
    ):
        raise DataError(
            "is not a dictionary of tensors by name. Use a file with the model's state_dict.", path
        )
    return InMemorySource(tensors, path)


def is_plain_tensor(value: object) -> bool:
    """Whether a value is a dense CPU tensor that is not larger than its storage: with a stride of
    0, a few bytes can claim any shape."""
    return (
        type(value) in (Tensor, nn.Parameter)
        and isinstance(value, Tensor)
        and value.layout is torch.strided
        and value.device.type == "cpu"
        and not value.is_quantized
        and value.numel() * value.element_size() <= value.untyped_storage().nbytes()
    )


def read_pickle(path: Path, packages: frozenset[str] = frozenset()) -> Any:
    """The value in a file of torch.save. Classes of `packages` become placeholders; a DataError
    says why a file is not loaded."""
    is_zip = check_container(path)
    try:
        with (
            LOADING,
            # about pickle protocols other than 2, which torch then loads or refuses
            warnings.catch_warnings(action="ignore"),
            safe_globals(extra_globals(path, packages, is_zip)),
        ):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except Exception as error:  # a damaged file can raise any error: torch checks little
        raise load_error(error, path) from None


def extra_globals(path: Path, packages: frozenset[str], is_zip: bool) -> list[SafeGlobal]:
    """Namespace, and a placeholder for each global in the file that belongs to `packages`."""
    if not packages:
        return []
    names = get_unsafe_globals_in_checkpoint(path) if is_zip else LEGACY_NAMES
    placeholders = [(Placeholder, name) for name in names if name.partition(".")[0] in packages]
    return [argparse.Namespace, *placeholders]


def check_container(path: Path) -> bool:
    """Whether a file is a zip; a DataError if it cannot be read, is empty or is compressed."""
    try:
        check_is_file(path)
        with path.open("rb") as file:
            start = file.read(len(ZIP_MAGIC))
    except OSError as error:
        raise DataError(f"cannot be opened ({error.strerror}). Check the path.", path) from None
    if not start:
        raise DataError("is empty. Copy the file again.", path)
    if start == ZIP_MAGIC:
        check_uncompressed(path)
    return start == ZIP_MAGIC


def check_uncompressed(path: Path) -> None:
    """torch.save does not compress; a compressed member could expand to any size."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error, EOFError, OSError):
        raise DataError("is not a complete zip file. Copy the file again.", path) from None
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED or member.compress_size != member.file_size:
            raise DataError(
                f"contains the compressed member {member.filename[:80]!r}: files of torch.save "
                "are not compressed. Use the file as torch.save wrote it.",
                path,
            )


def load_error(error: Exception, path: Path) -> DataError:
    """torch's error as one sentence."""
    text = str(error)
    blocked = re.search(r"GLOBAL (\S+) (?:was not an allowed|whose module)", text)
    if blocked:
        return DataError(
            f"contains {blocked[1][:80]!r}, which Weft does not load from a pickle because it "
            "could run code. Use the model's safetensors files.",
            path,
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # torch puts the reason last, before a link to its documentation
    reasons = [line for line in lines if not line.startswith("Check the documentation")]
    reason = reasons[-1][:120] if reasons else "the file ends early"
    return DataError(
        f"cannot be loaded as weights ({type(error).__name__}: {reason}). Copy the file again, or "
        "use the model's safetensors files.",
        path,
    )
