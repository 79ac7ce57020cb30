"""torch's .pt and .bin files -> nested plain values with tensors, without running what they say.

    zip (since torch 1.6)   NAME/data.pkl, and the numbers of each tensor in NAME/data/KEY
    old                     five pickles in a row, then the numbers one after the other

The file is mapped and tensors are views of it: reading one is what brings it into memory. Every
size is compared with the file before it is used. Differs from torch.load, which runs the pickle.
"""

from __future__ import annotations

import io
import mmap
import struct
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import torch
from torch import Tensor

from weft.checkpoint.pickle_machine import Record
from weft.checkpoint.pickle_makers import Makers, Storage, View
from weft.checkpoint.tensor_source import InMemorySource
from weft.core.errors import DataError

MAGIC = 0x1950A86A20F9469CFC6C
MAX_DEPTH, MAX_VALUES = 100, 10_000_000


def open_pickle(path: Path) -> InMemorySource:
    """The tensors of a file that holds nothing else: {name: tensor}."""
    values = read_pickle(path)
    names = values if isinstance(values, dict) else {}
    if not names or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in names.items()
    ):
        raise DataError("is not a table of tensors by name: Weft reads no other .bin.", path)
    return InMemorySource(names, path)


def read_pickle(path: Path) -> Any:
    """Dicts, lists, tuples, scalars, Records and mapped tensors."""
    try:
        with path.open("rb") as file:
            if not path.stat().st_size:
                raise DataError("is empty. Copy it again.", path)
            # a private copy: torch warns of memory that cannot be written
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be opened ({error}).", path) from None
    if mapped[:4] == b"PK\x03\x04":
        value, places = read_zip(path, mapped)
    else:
        value, places = read_old(path, mapped)
    return Plain(path, mapped, places).convert(value)[0]


Places = dict[str, tuple[int, int]]
"""First byte and number of bytes of each storage."""


def read_zip(path: Path, mapped: mmap.mmap) -> tuple[Any, Places]:
    """The pickle of a zip, and where its storages lie."""
    places: Places = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                places[info.filename] = member(info, mapped, path)
    except DataError:
        raise
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error, EOFError, OSError):
        raise DataError("is not a whole zip file. Copy it again.", path) from None
    pickled = [name for name in places if name.endswith("/data.pkl") and name.count("/") == 1]
    if len(pickled) != 1:
        raise DataError("has no data.pkl in it: it is no file of torch.save.", path)
    folder = pickled[0].removesuffix("data.pkl")
    if slice_of(mapped, places.get(f"{folder}byteorder", (0, 0))).strip() == b"big":
        raise DataError("was written on a big-endian machine, which Weft does not read.", path)
    value = Makers(path).run(io.BytesIO(slice_of(mapped, places[pickled[0]])))
    before = f"{folder}data/"
    return value, {n.removeprefix(before): p for n, p in places.items() if n.startswith(before)}


def slice_of(mapped: mmap.mmap, place: tuple[int, int]) -> bytes:
    return mapped[place[0] : place[0] + place[1]]


def member(info: zipfile.ZipInfo, mapped: mmap.mmap, path: Path) -> tuple[int, int]:
    """Where a member's bytes lie; they must be stored as they are, inside the file."""
    header, size = info.header_offset, info.file_size
    # torch never compresses; what is compressed may be any number of times its size
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != size:
        raise DataError(f"{info.filename[:80]!r} in it is compressed: torch writes none so.", path)
    lengths = mapped[header + 26 : header + 30] if header >= 0 else b""
    if len(lengths) == 4:
        start = header + 30 + sum(struct.unpack("<HH", lengths))
        if size >= 0 and start + size <= len(mapped):
            return start, size
    raise DataError(f"{info.filename[:80]!r} in it ends beyond the file. Copy it again.", path)


def read_old(path: Path, mapped: mmap.mmap) -> tuple[Any, Places]:
    """magic, version, machine, value, keys; then (count, numbers) of each key."""
    file, makers = cast(IO[bytes], mapped), Makers(path)
    if mapped[:1] != b"\x80" or makers.run(file) != MAGIC:
        raise DataError("is neither a zip nor a pickle of torch.save.", path)
    _, machine, value, keys = (makers.run(file) for _ in range(4))
    if isinstance(machine, dict) and machine.get("little_endian") is False:
        raise DataError("was written on a big-endian machine, which Weft does not read.", path)
    places: Places = {}
    for key in keys if isinstance(keys, list) else makers.refuse("names no storages"):
        storage = makers.storages.get(key) if isinstance(key, str) else None
        count = mapped.read(8)
        if storage is None or key in places or count != struct.pack("<q", storage.numel):
            makers.refuse("has storages of other sizes than its tensors")
        start, size = mapped.tell(), storage.numel * storage.dtype.itemsize
        if start + size > len(mapped):
            makers.refuse(f"ends inside storage {key!r}")
        places[key] = (start, size)
        mapped.seek(start + size)
    return value, places


@dataclass
class Plain:
    """Copies values into plain containers, with tensors where their descriptions stood."""

    path: Path
    mapped: mmap.mmap
    places: Places
    done: dict[int, tuple[Any, int, int]] = field(default_factory=dict)
    """Value, depth and expanded size by id: what is shared is converted once, and stays shared."""

    def convert(self, value: Any, depth: int = 0) -> tuple[Any, int, int]:
        if value is None or isinstance(value, str | bytes | int | float):
            return value, 0, 1
        if id(value) not in self.done:
            self.limit(depth, 0)
            self.done[id(value)] = (None, MAX_DEPTH, 1)  # met again inside itself: endless
            self.done[id(value)] = self.fresh(value, depth + 1)
        return self.done[id(value)]

    def limit(self, depth: int, size: int) -> None:
        if depth >= MAX_DEPTH or size > MAX_VALUES:
            raise DataError(
                f"nests values {MAX_DEPTH} deep or repeats them more than {MAX_VALUES} times, as "
                "no checkpoint does.",
                self.path,
            )

    def fresh(self, value: Any, depth: int) -> tuple[Any, int, int]:
        if isinstance(value, View):
            return self.tensor(value), 0, 1
        if isinstance(value, Storage):
            return Record("torch.Storage"), 0, 1
        whole = [value.args, value.state, value.items] if isinstance(value, Record) else value
        parts = list(whole.values() if isinstance(whole, dict) else whole)
        found = [self.convert(part, depth) for part in parts]
        below = 1 + max((part[1] for part in found), default=0)
        size = 1 + sum(part[2] for part in found)
        self.limit(below, size)
        return self.rebuilt(value, [part[0] for part in found]), below, size

    def rebuilt(self, value: Any, parts: list[Any]) -> Any:
        if isinstance(value, Record):
            return Record(value.name, *parts)
        if isinstance(value, dict):
            return dict(zip(value, parts, strict=True))
        return tuple(parts) if isinstance(value, tuple) else parts

    def tensor(self, view: View) -> Tensor:
        """A view of the file, after its sizes were compared with it."""
        storage, shape, stride = view.storage, view.shape, view.stride
        start, size = self.places.get(storage.key, (0, -1))
        if size != storage.numel * storage.dtype.itemsize:
            self.misfit(f"storage {storage.key[:80]!r} has another size than its tensor says")
        numel, last = 1, view.offset
        for length, step in zip(shape, stride, strict=True):
            numel, last = numel * length, last + max(0, length - 1) * step
        if numel == 0:
            return torch.empty(shape, dtype=storage.dtype)
        # a stride of 0 can claim any size: a tensor is never larger than what is stored
        if last >= storage.numel or numel > storage.numel:
            self.misfit(f"a tensor of sizes {shape} reaches beyond its storage")
        flat = self.numbers(storage, start)
        return flat.as_strided(shape, stride, view.offset)

    def numbers(self, storage: Storage, start: int) -> Tensor:
        """One storage; copied where the file did not align it."""
        if start % storage.dtype.itemsize == 0:
            return torch.frombuffer(
                self.mapped, dtype=storage.dtype, count=storage.numel, offset=start
            )
        size = storage.numel * storage.dtype.itemsize
        return torch.frombuffer(
            bytearray(slice_of(self.mapped, (start, size))), dtype=storage.dtype
        )

    def misfit(self, why: str) -> NoReturn:
        raise DataError(f"{why}. Copy the file again.", self.path)
