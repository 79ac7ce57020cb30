"""Prefix cache and encoder cache of an engine <-> one safetensors file.

    rows      pages of all cached prefixes and sources, one tensor per layer and kind of row
    index     the tokens or the source that each page belongs to, and when it was last used
              (cache_index.py)
    key       what the rows depend on: weights, dtype, page size, layout, arithmetic

Rows of another model would give wrong results without an error. So a file is used only if its whole
key equals that of the engine, all checksums are right, and tensors and index fit the engine's
pages. All of this is checked before the caches are changed: after an error they are still empty and
valid. Rows are copied before anything is cached, so that an interrupted load leaves no page without
its rows. The file is written under a temporary name and renamed, by one process at a time; only a
regular file is replaced.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.kv_groups import KVCacheLayout
from weft.cache.kv_store import KVStore
from weft.cache.prefix_cache import NoPrefixCache
from weft.cache.snapshot import CacheSnapshot, restore, take_snapshot
from weft.checkpoint.atomic import make_folder, publish, temporary_folder
from weft.checkpoint.writer_lock import lock_path, writer_lock
from weft.core.errors import DataError, UsageError
from weft.engine.arithmetic import arithmetic
from weft.engine.cache_index import CacheIndexError, IndexLayout, pack_index, unpack_index
from weft.models.build import AnyModel

FORMAT, INDEX = 1, "index"
MIN_INDEX_BYTES = 64 << 20
"""Size that any index may have; one may be as much larger as the rows of its file."""
LOCK_SECONDS = 10.0
"""How long a save waits for that of another process."""
Key = Mapping[str, str]


@dataclass(frozen=True)
class CacheFileSummary:
    """What was saved to a file or loaded from it."""

    num_pages: int
    num_tokens: int
    """Tokens of cached prefixes; shared prefixes count once."""
    num_sources: int
    num_left_out: int = 0
    """Pages of the file that did not fit into the pool: the least recently used."""

    def __str__(self) -> str:
        content = f"{self.num_tokens} prompt tokens and {self.num_sources} sources"
        if not self.num_left_out:
            return f"{self.num_pages} pages: {content}"
        total = self.num_pages + self.num_left_out
        return (
            f"{self.num_pages} of {total} pages, the most recently used: {content}. The others do "
            "not fit into the cache; raise cache_gib to load all"
        )


def cache_key(model: AnyModel, layout: KVCacheLayout, store: KVStore) -> dict[str, str]:
    """Everything that must be equal for rows to be valid, by name."""
    shapes = {name: list(rows.shape[2:]) for name, rows in store.rows[0].items()}
    groups = [list(asdict(group).values()) for group in layout.groups]
    return {
        "format": str(FORMAT),
        "weights": fingerprint(model),
        "dtype": str(store.dtype),
        "page_size": str(store.page_size),
        "layout": json.dumps([shapes, groups]),
        # another processor or version rounds differently: results would change in their last bits
        **arithmetic(model, store.device),
    }


def fingerprint(model: AnyModel) -> str:
    """A hash of the model's settings and all its weights."""
    digest = sha256(json.dumps(model.config.to_dict(), sort_keys=True).encode())
    for name, tensor in weights(model):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def weights(model: AnyModel) -> Iterator[tuple[str, Tensor]]:
    """The weights of all modules, one module at a time."""
    for name, layer in model.named_modules():
        # what `state_dict` calls on each module: a packed one unpacks its weight for the moment,
        # and all of them at once would be a second copy of the model
        tensors: dict[str, Tensor] = {}
        layer._save_to_state_dict(tensors, f"{name}.", False)
        yield from tensors.items()


def tensor_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


def save_cache(path: Path, key: Key, kv_cache: KVCacheManager, store: KVStore) -> CacheFileSummary:
    """Write everything that the caches hold; on an error the file stays as it was."""
    check_cache_path(path)
    contents = take_snapshot(kv_cache)
    pages = contents.pages
    tensors = {
        f"{place}.{name}": rows.cpu().contiguous()
        for place, part in enumerate(store.read_pages(pages))
        for name, rows in part.items()
    }
    tensors[INDEX] = pack_index(contents, pages)
    sums = {name: zlib.crc32(tensor_bytes(rows)) for name, rows in tensors.items()}
    metadata = {**key, "sums": json.dumps(sums)}
    try:
        make_folder(path.parent)
        with writer_lock(path, lock_path(path), LOCK_SECONDS), temporary_folder(path) as folder:
            temporary = folder / "cache"  # in a folder: the library makes temporary files beside it
            temporary.touch(mode=0o600)  # it contains prompts
            save_file(tensors, temporary, metadata=metadata)
            publish(temporary, path)
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise DataError(f"cannot be written ({reason}). Name another file.", path) from None
    return summary(kv_cache, len(pages))


def check_cache_path(path: Path) -> None:
    """A DataError for what must not be replaced by a cache: a link, a device or a folder."""
    if path.is_symlink():
        kind = "a symbolic link"
    elif path.is_dir():
        kind = "a folder"
    elif path.exists() and not path.is_file():
        kind = "a device, a pipe or a socket"
    else:
        return
    raise DataError(
        f"is {kind}: a cache is saved to a regular file or a new one. Name another file.", path
    )


def load_cache(path: Path, key: Key, kv_cache: KVCacheManager, store: KVStore) -> CacheFileSummary:
    """Load a file into an empty cache, as far as it fits. Raises a DataError, and changes nothing,
    for a file that is damaged or belongs to another model or other settings."""
    num_used = kv_cache.pool.num_usable - kv_cache.pool.num_free
    if num_used:
        raise UsageError(
            f"the cache already holds {num_used} pages: a file can only be loaded into an empty "
            "cache. Load it before the first request."
        )
    tensors = read_file(path, key, store)
    contents = read_index(path, tensors, kv_cache)
    if isinstance(kv_cache.prefix_cache, NoPrefixCache):
        contents = CacheSnapshot([], contents.sources)
    moved = restore(kv_cache, contents, lambda new_ids: write_rows(tensors, store, new_ids))
    return summary(kv_cache, len(moved), len(contents.pages) - len(moved))


def write_rows(tensors: Mapping[str, Tensor], store: KVStore, new_ids: Mapping[int, int]) -> None:
    """Copy the rows of the pages of a file to new pages."""
    rows = torch.tensor([page - 1 for page in new_ids], dtype=torch.long)
    places = [
        {name: tensors[f"{place}.{name}"][rows] for name in part}
        for place, part in enumerate(store.rows)
    ]
    store.write_pages(list(new_ids.values()), places)


def read_file(path: Path, key: Key, store: KVStore) -> dict[str, Tensor]:
    """The tensors of a file, after checking its key, their shapes and their checksums."""
    if path.exists() and not path.is_file():
        raise DataError("is not a file. Name a file that save_cache has written.", path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            check_key(path, metadata, key)
            check_shapes_of_rows(path, file, store)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise DataError("there is no such file. Save a cache there first.", path) from None
    except (OSError, SafetensorError) as error:
        raise damaged(path, str(error)) from None
    expected = checksums(path, metadata)
    for name, tensor in tensors.items():
        checksum = zlib.crc32(tensor_bytes(tensor))
        if checksum != expected.get(name):
            raise damaged(path, f"{name} has checksum {checksum}, not {expected.get(name)}")
        dtype = torch.uint8 if name == INDEX else store.dtype
        if tensor.dtype != dtype:
            raise damaged(path, f"{name} is {tensor.dtype}, not {dtype}")
    return tensors


def check_shapes_of_rows(path: Path, file: Any, store: KVStore) -> None:
    """Raise a DataError unless the file has the tensors of this store, all with as many pages."""
    shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    num_pages = shapes.get(f"0.{next(iter(store.rows[0]))}", [0])[0]
    expected = {
        f"{place}.{name}": [num_pages, *rows.shape[1:]]
        for place, part in enumerate(store.rows)
        for name, rows in part.items()
    }
    index_shape = shapes.pop(INDEX, None)
    if shapes != expected or index_shape is None or len(index_shape) != 1:
        raise damaged(path, "its tensors are not those of this model's pages")


def checksums(path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
    try:
        sums = json.loads(metadata.get("sums", ""))
    except (ValueError, RecursionError):
        sums = None
    if not isinstance(sums, dict):
        raise damaged(path, "it has no checksums")
    return sums


def read_index(
    path: Path, tensors: Mapping[str, Tensor], kv_cache: KVCacheManager
) -> CacheSnapshot:
    """The index, checked completely: after this the caches can be changed."""
    rows = [rows for name, rows in tensors.items() if name != INDEX]
    max_bytes = MIN_INDEX_BYTES + sum(part.nbytes for part in rows)
    layout = IndexLayout.of(kv_cache, len(rows[0]), max_bytes)
    try:
        return unpack_index(tensor_bytes(tensors[INDEX]), layout)
    except CacheIndexError as error:
        raise damaged(path, str(error)) from None


def check_key(path: Path, metadata: Mapping[str, str], key: Key) -> None:
    """Raise a DataError that names the first part of the key that differs, with both values."""
    for name, expected in key.items():
        saved = metadata.get(name, "none")
        if saved != expected:
            raise DataError(
                f"was saved with {name} {short(saved)}, but this engine has {short(expected)}: its "
                "rows cannot be used. Load it with the model and settings that saved it, or start "
                "with an empty cache.",
                path,
            )


def short(value: str) -> str:
    return value if len(value) <= 60 else f"{value[:12]}..."


def damaged(path: Path, reason: str) -> DataError:
    return DataError(
        f"is not a complete cache file ({reason}). Delete it and start with an empty cache.", path
    )


def summary(kv_cache: KVCacheManager, num_pages: int, num_left_out: int = 0) -> CacheFileSummary:
    num_blocks = sum(1 for _ in kv_cache.prefix_cache.block_pages())
    return CacheFileSummary(
        num_pages,
        num_blocks * kv_cache.pool.page_size,
        len(kv_cache.encoder_cache.sources),
        num_left_out,
    )
