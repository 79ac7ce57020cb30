"""Names and shapes of the tensors in files of `torch.save`, without torch, whose import takes
longer than `weft info` may.

    zip      since torch 1.6: one pickle, and a record for each storage
    legacy   pickles of a magic number, a version, the system, the state_dict and the keys of its
             storages, followed by the number of elements and the data of each storage

Pickles are read by Python's unpickler with a table of substitutes for the globals that a file may
name: a tensor becomes its shape, a storage its size. Files with other globals, or sizes that do not
match, are left to torch (pickle_files.py), which loads them or reports the error.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable, Collection
from math import prod
from pathlib import Path
from typing import IO, Any, ClassVar, NamedTuple

from weft.checkpoint.safetensors_header import read_weight_map
from weft.checkpoint.weight_rules import Shape

BIN_FILE, BIN_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
MAX_PICKLE_BYTES = 64 << 20
"""Names and shapes of a hundred thousand tensors; torch reads larger ones."""
ITEM_BYTES = {
    **{"DoubleStorage": 8, "FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2},
    **{"LongStorage": 8, "IntStorage": 4, "ShortStorage": 2, "CharStorage": 1},
    **{"ByteStorage": 1, "BoolStorage": 1},
}
"""Bytes of a number by the name of its storage."""


ZIP_MAGIC = b"PK\x03\x04"
LEGACY_MAGIC, LEGACY_VERSION = 0x1950A86A20F9469CFC6C, 1001


class Placeholder:
    """Stands for an object of another package. Constructor arguments and state are dropped."""

    def __new__(cls, *args: object) -> Placeholder:
        return super().__new__(cls)

    def __init__(self, *args: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        pass


class StorageSize(NamedTuple):
    """A storage of the file."""

    numbers: int
    item_bytes: int


class TensorSize(NamedTuple):
    """A tensor of the file."""

    shape: Shape


# the C implementation allocates a memo as large as the file claims; this one has a dictionary
class HeaderUnpickler(pickle._Unpickler):
    """Reads a pickle into dictionaries, TensorSize and StorageSize. Classes of `packages` become
    placeholders."""

    dispatch: ClassVar[dict[int, Callable[..., None]]] = {**pickle._Unpickler.dispatch}

    def __init__(self, file: IO[bytes], packages: Collection[str] = ()) -> None:
        super().__init__(file)
        self.packages = packages
        self.storages: dict[str, StorageSize] = {}
        """By key."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and name in ITEM_BYTES:
            return name
        allowed: dict[str, Callable[..., Any]] = {
            "collections.OrderedDict": OrderedDict,
            "torch._utils._rebuild_tensor_v2": rebuild_tensor,
            "torch._utils._rebuild_parameter": rebuild_parameter,
        }
        if self.packages:
            # numpy's scalars are made from bytes, which protocol 2 writes as text
            allowed |= {"argparse.Namespace": Namespace, "_codecs.encode": Placeholder}
        if module.partition(".")[0] in self.packages:
            return Placeholder
        return allowed[f"{module}.{name}"]

    def persistent_load(self, pid: Any) -> StorageSize:
        kind, name, key, _, numbers, *view = pid
        is_storage = kind == "storage" and type(key) is str and type(numbers) is int
        if not is_storage or view not in ([], [None]):
            raise pickle.UnpicklingError("not a storage of its own")
        size = StorageSize(numbers, ITEM_BYTES[name])
        if self.storages.setdefault(key, size) != size:
            raise pickle.UnpicklingError("a storage has two sizes")
        return size

    def load_build(self) -> None:
        """Set the state of an object; the functions and classes of the table have none."""
        if type(self.stack[-2]) not in (OrderedDict, Namespace, Placeholder):  # type: ignore[attr-defined]
            raise pickle.UnpicklingError("state for something else than an object")
        super().load_build()  # type: ignore[misc]

    dispatch[pickle.BUILD[0]] = load_build


def rebuild_tensor(
    storage: StorageSize, offset: int, shape: Shape, strides: Shape, *_: object
) -> TensorSize:
    """A tensor that is inside of its storage and not larger."""
    is_valid = isinstance(storage, StorageSize) and len(shape) == len(strides)
    if not is_valid or any(type(n) is not int or n < 0 for n in (offset, *shape, *strides)):
        raise pickle.UnpicklingError("a tensor has other sizes than numbers")
    last = offset + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if prod(shape) > storage.numbers or (min(shape, default=1) and last >= storage.numbers):
        raise pickle.UnpicklingError("a tensor is larger than its storage")
    return TensorSize(tuple(shape))


def rebuild_parameter(data: TensorSize, *_: object) -> TensorSize:
    return data


def read_pickle_shapes(folder: Path) -> tuple[dict[str, Shape], Path] | None:
    """Shapes by name of pytorch_model.bin, or of the shards in its index, and the file for
    messages; None: torch is needed to read them."""
    if not (folder / BIN_INDEX).is_file():
        path = folder / BIN_FILE
        found = shapes_of(path) if path.is_file() else None
        return None if found is None else (found, path)
    shapes: dict[str, Shape] = {}
    for file, names in read_weight_map(folder / BIN_INDEX).items():
        shard = shapes_of(folder / file)
        if shard is None or not names <= shard.keys():
            return None
        shapes |= {name: shard[name] for name in names}
    return shapes, folder / BIN_INDEX


def shapes_of(path: Path) -> dict[str, Shape] | None:
    """Shapes by name of one file; None if it is not a plain state_dict."""
    values = read_values(path)
    if not isinstance(values, dict) or not values:
        return None
    if not all(type(n) is str and type(size) is TensorSize for n, size in values.items()):
        return None
    return {name: size.shape for name, size in values.items()}


def read_values(path: Path, packages: Collection[str] = ()) -> Any | None:
    """The value in a file with TensorSize for tensors; None: torch is needed to read it."""
    try:
        with path.open("rb") as file:
            is_zip = file.read(len(ZIP_MAGIC)) == ZIP_MAGIC
            file.seek(0)
            return read_zip(file, packages) if is_zip else read_legacy(file, packages)
    except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, RuntimeError, struct.error):
        return None
    # a damaged pickle can raise any of these, as it calls what is in the table above
    except (pickle.UnpicklingError, ArithmeticError, AttributeError, LookupError, StopIteration):
        return None
    except (TypeError, ValueError, MemoryError):
        return None


def read_zip(file: IO[bytes], packages: Collection[str]) -> Any:
    """The value in a zip file; an UnpicklingError if a storage is not as large as its record."""
    with zipfile.ZipFile(file) as archive:
        members = {member.filename: member for member in archive.infolist()}
        name = next(name for name in members if name.endswith("/data.pkl"))
        if any(member.compress_type != zipfile.ZIP_STORED for member in members.values()):
            raise pickle.UnpicklingError("a record is compressed")
        if members[name].file_size > MAX_PICKLE_BYTES:
            raise pickle.UnpicklingError("the pickle is very large")
        unpickler = HeaderUnpickler(io.BytesIO(archive.read(name)), packages)
        values = unpickler.load()
    folder = f"{name.removesuffix('data.pkl')}data/"
    for key, size in unpickler.storages.items():
        if members[folder + key].file_size != size.numbers * size.item_bytes:
            raise pickle.UnpicklingError("a storage is not as large as its record")
    return values


def read_legacy(file: IO[bytes], packages: Collection[str]) -> Any:
    """The value in a legacy file; an UnpicklingError if its storages are not those in the file."""
    header = io.BytesIO(file.read(MAX_PICKLE_BYTES))
    magic, version, system = (pickle_at(header) for _ in range(3))
    if (magic, version) != (LEGACY_MAGIC, LEGACY_VERSION) or not system["little_endian"]:
        raise pickle.UnpicklingError("not a legacy file")
    unpickler = HeaderUnpickler(header, packages)
    values = unpickler.load()
    keys = pickle_at(header)
    if sorted(keys) != sorted(unpickler.storages):
        raise pickle.UnpicklingError("other storages than those of the tensors")
    position, end = header.tell(), file.seek(0, io.SEEK_END)
    for key in keys:
        size = unpickler.storages[key]
        file.seek(position)
        if struct.unpack("<q", file.read(8)) != (size.numbers,):
            raise pickle.UnpicklingError("a storage is not as large as its tensors say")
        position += 8 + size.numbers * size.item_bytes
    if position > end:
        raise EOFError("the file ends early")
    return values


def pickle_at(header: IO[bytes]) -> Any:
    """The next pickle of a legacy file."""
    return HeaderUnpickler(header).load()
