"""Headers of safetensors files: names, shapes and number formats, without torch.

One file, or shards with an index. The `safetensors` library checks the headers; its errors become
DataErrors here. safetensors_files.py reads the tensors.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from stat import S_ISDIR, S_ISREG
from typing import Any

from safetensors import SafetensorError, safe_open

from weft.core.config import read_settings
from weft.core.errors import MAX_SHOWN, DataError, UnreadableError, shortened, shown

WEIGHTS_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
MAX_FILE_NAME = 255


class SafetensorsHeader:
    """Names, shapes and number formats of the tensors of one or more files."""

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
        """Number formats as named in the header: F32, BF16, ..."""
        return {
            name: str(self.files[file].get_slice(name).get_dtype())
            for name, file in self.file_of.items()
        }


def open_safetensors_header(folder: Path) -> SafetensorsHeader | None:
    """The headers of the files of a folder; None if it has no safetensors file."""
    if (folder / INDEX_FILE).is_file():
        return SafetensorsHeader(folder / INDEX_FILE, open_shards(folder))
    path = folder / WEIGHTS_FILE
    return SafetensorsHeader(path, {path: open_file(path)}) if path.is_file() else None


def open_file(path: Path) -> Any:
    """A `safe_open` object, whose header is valid. It reads no data: the framework only says
    which library would be imported for that."""
    with readable(path):
        try:
            return safe_open(path, framework="np")
        except SafetensorError as error:
            raise DataError(
                f"is not a complete safetensors file ({shortened(error)}). Copy it again.", path
            ) from None


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """A DataError for a file that is missing, and an UnreadableError for one that cannot be read,
    here or in the block. The library calls whatever it cannot open a missing file."""
    try:
        check_is_file(path)
        with path.open("rb"):
            pass
        yield
    except FileNotFoundError as error:
        if error.errno != errno.ENOENT:  # of the library
            raise UnreadableError("it could be opened once, but not again", path) from error
        raise DataError("there is no such file. Copy the whole model folder.", path) from None
    except IsADirectoryError:
        raise DataError("is a folder, not a file. Copy the whole model folder.", path) from None
    except OSError as error:
        raise UnreadableError(error.strerror or shortened(error), path) from error


def check_is_file(path: Path) -> None:
    """A DataError for a pipe or a device, which would be waited for without end."""
    mode = path.stat().st_mode
    if not (S_ISREG(mode) or S_ISDIR(mode)):
        raise DataError("is a pipe or a device, not a file. Copy the whole model folder.", path)


def is_cut_off(path: Path) -> bool:
    """Whether a file has a valid header and ends before its data does, as when its write was
    interrupted."""
    with readable(path), path.open("rb") as file:
        length, size = int.from_bytes(file.read(8), "little"), path.stat().st_size
        if length > size - 8:
            return False
        try:
            tensors = json.loads(file.read(length))
            tensors.pop("__metadata__", None)
            end = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
            return bool(size < 8 + length + end)
        except (ValueError, TypeError, LookupError, AttributeError):
            return False


def open_shards(folder: Path) -> dict[Path, Any]:
    """The files of an index, each of which must contain exactly the tensors assigned to it."""
    shards = read_weight_map(folder / INDEX_FILE)
    opened = {folder / file: open_file(folder / file) for file in sorted(shards)}
    for path, file in opened.items():
        wrong = sorted(set(file.keys()) ^ shards[path.name])
        if wrong:
            raise DataError(
                f"and {INDEX_FILE} differ in {wrong[0][:MAX_SHOWN]} and {len(wrong) - 1} more. "
                "Use the files of one model.",
                path,
            )
    return opened


def read_weight_map(index: Path) -> dict[str, set[str]]:
    """{file: names of its tensors} from an index. Files must be in the folder of the index."""
    weight_map = read_settings(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise DataError("has no weight_map. Copy the whole model folder.", index)
    shards: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or len(file) > MAX_FILE_NAME:
            raise DataError(
                f"assigns {name[:MAX_SHOWN]} to {shown(file)}: it must be a file in the same "
                "folder.",
                index,
            )
        shards.setdefault(file, set()).add(name)
    return shards
