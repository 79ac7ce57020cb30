"""Weights -> model.safetensors, or several files and an index where that one would be too large.

    model-00001-of-00002.safetensors    tensors in their order, as many as fit
    model.safetensors.index.json        which tensor is in which file

Names, sizes and the order are those of `transformers`, which reads both forms, as we do
(safetensors.py). A tensor is never cut: one that is larger than a file may be has its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from weft.checkpoint.safetensors_files import INDEX, ONE
from weft.core.errors import UsageError

MAX_BYTES = 5 * 10**9
"""What a file holds at most, where nothing else is asked for."""
UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30}
SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def save_shards(state: Mapping[str, Tensor], folder: Path, max_bytes: int = MAX_BYTES) -> list[str]:
    """Write the files; their names."""
    sizes = {name: tensor.nbytes for name, tensor in state.items()}
    shards = plan_shards(sizes, max_bytes)
    if len(shards) == 1:
        write_shard(state, folder / ONE)
        return [ONE]
    count = len(shards)
    files = {
        f"model-{number:05d}-of-{count:05d}.safetensors": names
        for number, names in enumerate(shards, 1)
    }
    for file, names in files.items():
        write_shard({name: state[name] for name in names}, folder / file)
    weight_map = {name: file for file, names in files.items() for name in names}
    index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return [*files, INDEX]


def write_shard(tensors: Mapping[str, Tensor], path: Path) -> None:
    """One file, which whoever may read the user's other files may read: the library's own are for
    the user alone."""
    path.touch()
    mode = path.stat().st_mode
    save_file(dict(tensors), path, metadata={"format": "pt"})
    path.chmod(mode)


def plan_shards(sizes: Mapping[str, int], max_bytes: int) -> list[list[str]]:
    """Names by file: each file is filled in order until the next tensor does not fit."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > max_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def parse_size(text: str) -> int:
    """'5GB' -> bytes. KB, MB and GB are powers of 1,000, KiB, MiB and GiB of 1,024."""
    match = SIZE.fullmatch(text.strip())
    unit = UNITS.get(match[2].upper()) if match else None
    size = int(float(match[1]) * unit) if match and unit else 0
    if size < 1:
        raise UsageError(f"'{text}' is no size of a file. Write it like 5GB, 500MB or 2GiB.")
    return size
