"""Safetensors files as a `TensorSource`: one file, or the shards that an index names.

The library maps the files and checks their headers; here its errors become sentences, and the
index of a sharded checkpoint may name only files that lie beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from weft.core.config import read_settings
from weft.core.errors import DataError

ONE, INDEX = "model.safetensors", "model.safetensors.index.json"


class SafetensorsSource:
    """Tensors of one or more files. Only headers are read until a tensor is asked for."""

    is_mapped = True

    def __init__(self, path: Path, files: Mapping[Path, Any]) -> None:
        self.path, self.files = path, files
        self.file_of = {name: file for file, opened in files.items() for name in opened.keys()}  # noqa: SIM118

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {
            name: tuple(self.files[file].get_slice(name).get_shape())
            for name, file in self.file_of.items()
        }

    @cached_property
    def dtypes(self) -> dict[str, str]:
        """The stored number formats, as the file names them: F32, BF16, ..."""
        return {
            name: str(self.files[file].get_slice(name).get_dtype())
            for name, file in self.file_of.items()
        }

    def read(self, name: str) -> Tensor:
        file = self.file_of[name]
        try:
            return self.files[file].get_tensor(name)
        except (SafetensorError, TypeError, AttributeError) as error:
            raise DataError(f"{name} cannot be read ({error}). Copy it again.", file) from None


def open_safetensors(folder: Path) -> SafetensorsSource | None:
    """The tensors of a folder; None where it has no such file."""
    if (folder / INDEX).is_file():
        return SafetensorsSource(folder / INDEX, open_shards(folder))
    if (folder / ONE).is_file():
        return SafetensorsSource(folder / ONE, {folder / ONE: open_file(folder / ONE)})
    return None


def open_file(path: Path) -> Any:
    """A mapped file with a checked header."""
    try:
        return safe_open(path, framework="pt")
    except FileNotFoundError:
        raise DataError("there is no such file. Copy the whole model folder.", path) from None
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"is not a whole safetensors file ({error}). Copy it again.", path
        ) from None


def open_shards(folder: Path) -> dict[Path, Any]:
    """The files of an index; each must hold just what the index says of it."""
    index = folder / INDEX
    weight_map = read_settings(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise DataError("has no weight_map: it does not say where tensors are.", index)
    shards: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise DataError(f"puts {name} into {file!r}: it must be a file beside it.", index)
        shards.setdefault(file, set()).add(name)
    opened = {folder / file: open_file(folder / file) for file in sorted(shards)}
    for path, found in opened.items():
        names = set(found.keys())
        wrong = sorted(names ^ shards[path.name])
        if wrong:
            raise DataError(
                f"and {index.name} differ in {wrong[0]} and {len(wrong) - 1} more. "
                "Use the files of one model.",
                path,
            )
    return opened
