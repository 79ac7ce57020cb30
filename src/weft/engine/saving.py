"""An engine's caches -> one file that outlives the process, and back.

    rows      the pages of every cached prompt and source, one tensor a place and name of a row
    index     which tokens and which source each page belongs to, and how recently they were used
    key       what the rows depend on: weights, number format, page size, layout, arithmetic

Rows of another model would be read without complaint and give wrong answers; so a file is used only
if its whole key is that of the engine and every checksum is right. Whatever is wrong is found
before the caches are touched: they stay empty, and valid. Written beside its place and renamed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from weft.cache.kv_cache_manager import KVCacheManager
from weft.cache.kv_groups import KVCacheLayout
from weft.cache.kv_store import KVStore
from weft.cache.prefix_cache import CachedRun, NoPrefixCache
from weft.cache.snapshot import CacheSnapshot, SavedSource, restore, take_snapshot
from weft.checkpoint.atomic import new_file
from weft.core.errors import DataError, UsageError
from weft.models.build import Model
from weft.native.compiler import library_path
from weft.native.library import native
from weft.nn.packed_modules import uses_int8_activations

FORMAT, INDEX = 1, "index"
Key = Mapping[str, str]


@dataclass(frozen=True)
class Carried:
    """What went into a file, or came out of it."""

    num_pages: int
    num_tokens: int
    """Of cached prompts; beginnings that prompts share are counted once."""
    num_sources: int
    num_left_out: int = 0
    """Pages of the file that the pool had no room for: those used longest ago."""

    def __str__(self) -> str:
        held = f"{self.num_tokens} tokens of prompts and {self.num_sources} sources"
        if not self.num_left_out:
            return f"{self.num_pages} pages: {held}"
        total = self.num_pages + self.num_left_out
        return (
            f"{self.num_pages} of {total} pages, those used last: {held}. The cache has no room "
            "for more; raise cache_gib to have all"
        )


def cache_key(model: Model, layout: KVCacheLayout, store: KVStore) -> dict[str, str]:
    """What must be the same for rows to be read again, each part in words."""
    shapes = {name: list(rows.shape[2:]) for name, rows in store.rows[0].items()}
    groups = [list(asdict(group).values()) for group in layout.groups]
    kernels = "torch's kernels" if native() is None else library_path().stem
    return {
        "format": str(FORMAT),
        "weights": fingerprint(model),
        "dtype": str(store.dtype),
        "activations": "int8" if uses_int8_activations(model) else "float32",
        "page_size": str(store.page_size),
        "layout": json.dumps([shapes, groups]),
        # another processor or version rounds differently: answers would change in their last bits
        "arithmetic": f"{store.device.type}, torch {torch.__version__}, {kernels}",
    }


def fingerprint(model: Model) -> str:
    """A hash of the model's settings and of all its numbers."""
    found = sha256(json.dumps(model.config.to_dict(), sort_keys=True).encode())
    for name, tensor in weights(model):
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(content(tensor))
    return found.hexdigest()


def weights(model: Model) -> Iterator[tuple[str, Tensor]]:
    """The numbers of every layer, one layer at a time."""
    for name, layer in model.named_modules():
        # what `state_dict` calls on each layer: a packed one makes its weight whole for the moment,
        # and all of them together would be the model a second time
        own: dict[str, Tensor] = {}
        layer._save_to_state_dict(own, f"{name}.", False)
        yield from own.items()


def content(tensor: Tensor) -> memoryview:
    """The bytes of a tensor."""
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


def save_cache(path: Path, key: Key, kv_cache: KVCacheManager, store: KVStore) -> Carried:
    """Write all that the caches hold, or leave the file as it was."""
    held = take_snapshot(kv_cache)
    pages = held.pages
    tensors = {
        f"{place}.{name}": rows.cpu().contiguous()
        for place, part in enumerate(store.read_pages(pages))
        for name, rows in part.items()
    }
    tensors[INDEX] = packed_index(held, pages)
    sums = {name: zlib.crc32(content(rows)) for name, rows in tensors.items()}
    metadata = {**key, "sums": json.dumps(sums)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as temporary:
            temporary.touch(mode=0o600)  # it holds what people have asked
            save_file(tensors, temporary, metadata=metadata)
    except (OSError, SafetensorError) as error:
        raise DataError(f"cannot be written ({error}). Name another file.", path) from None
    return carried(kv_cache, len(pages))


def packed_index(held: CacheSnapshot, pages: list[int]) -> Tensor:
    """Runs and sources as bytes; page n of the file is its n-th row, counted from 1. Compressed, as
    each run repeats the beginning that it shares with others."""
    numbered = held.renumbered({page: number for number, page in enumerate(pages, 1)})
    text = json.dumps({"runs": numbered.runs, "sources": numbered.sources})
    return torch.frombuffer(bytearray(zlib.compress(text.encode(), level=1)), dtype=torch.uint8)


def unpacked_index(index: Tensor) -> CacheSnapshot:
    values = json.loads(zlib.decompress(content(index)))
    return CacheSnapshot(
        [CachedRun(*run) for run in values["runs"]],
        [SavedSource(*source) for source in values["sources"]],
    )


def load_cache(path: Path, key: Key, kv_cache: KVCacheManager, store: KVStore) -> Carried:
    """Hold what a file holds, as far as the pool has room. A DataError, and nothing changed, for a
    file that is damaged or belongs to another model or other settings."""
    num_held = kv_cache.pool.num_usable - kv_cache.pool.num_free
    if num_held:
        raise UsageError(
            f"the cache holds {num_held} pages already: a file can only be loaded into an empty "
            "one. Load it before the first request."
        )
    tensors = read_file(path, key)
    held = unpacked_index(tensors[INDEX])
    if isinstance(kv_cache.prefix_cache, NoPrefixCache):
        held = CacheSnapshot([], held.sources)
    pages = held.pages
    moved = restore(kv_cache, held)
    saved = [page for page in pages if page in moved]
    rows = torch.tensor([page - 1 for page in saved], dtype=torch.long)
    places = [
        {name: tensors[f"{place}.{name}"][rows] for name in part}
        for place, part in enumerate(store.rows)
    ]
    store.write_pages([moved[page] for page in saved], places)
    return carried(kv_cache, len(moved), len(pages) - len(moved))


def read_file(path: Path, key: Key) -> dict[str, Tensor]:
    """The tensors of a file that was found whole and right."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            check_key(path, metadata, key)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise DataError("there is no such file. Save a cache there first.", path) from None
    except (OSError, SafetensorError) as error:
        raise damaged(path, str(error)) from None
    expected = json.loads(metadata["sums"])
    for name, tensor in tensors.items():
        found = zlib.crc32(content(tensor))
        if found != expected.get(name):
            raise damaged(path, f"{name} has checksum {found}, not {expected.get(name)}")
    return tensors


def check_key(path: Path, metadata: Mapping[str, str], key: Key) -> None:
    """A DataError that names the first part of the key that differs, with both values."""
    for name, ours in key.items():
        theirs = metadata.get(name, "none")
        if theirs != ours:
            raise DataError(
                f"was saved with {name} {short(theirs)}, but this engine has {short(ours)}: its "
                "rows cannot be used here. Load it with the model and the settings that saved it, "
                "or begin with an empty cache.",
                path,
            )


def short(value: str) -> str:
    return value if len(value) <= 60 else f"{value[:12]}..."


def damaged(path: Path, reason: str) -> DataError:
    return DataError(
        f"is not a whole cache file ({reason}). Delete it: the cache fills again by itself.", path
    )


def carried(kv_cache: KVCacheManager, num_pages: int, num_left_out: int = 0) -> Carried:
    num_blocks = sum(1 for _ in kv_cache.prefix_cache.block_pages())
    return Carried(
        num_pages,
        num_blocks * kv_cache.pool.page_size,
        len(kv_cache.encoder_cache.sources),
        num_left_out,
    )
