"""What the pickles of torch are made of: what they say of a tensor -> a `View` of a `Storage`, both
only described, with every size checked to be one. Reading the numbers is pickles.py's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

import torch

from weft.checkpoint.pickle_machine import Attributes, Machine, Ordered, Record, is_key
from weft.core.errors import DataError

MAX_DIMENSIONS = 16
DTYPES = {
    "torch.FloatStorage": torch.float32,
    "torch.DoubleStorage": torch.float64,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
}


@dataclass(frozen=True)
class Storage:
    """A run of numbers in the file, by its key."""

    dtype: torch.dtype
    key: str
    numel: int


@dataclass(frozen=True)
class View:
    """A tensor: where in a storage its numbers stand."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass
class Makers:
    """What the pickles of torch are made of; `storages` are those that came up."""

    path: Path
    storages: dict[str, Storage] = field(default_factory=dict)

    @property
    def known(self) -> Mapping[str, Callable[[tuple[Any, ...]], Any]]:
        return {
            "collections.OrderedDict": self.ordered,
            "argparse.Namespace": lambda args: Attributes(),
            "torch._utils._rebuild_tensor": self.view,
            "torch._utils._rebuild_tensor_v2": self.view,
            "torch._utils._rebuild_parameter": self.first,
            "torch._utils._rebuild_parameter_with_state": self.first,
            "torch.Size": self.first,
        }

    def run(self, file: IO[bytes]) -> Any:
        return Machine(self.path, self.known, self.storage).run(file)

    def refuse(self, why: str) -> NoReturn:
        raise DataError(f"{why}. Copy the file again, or use safetensors.", self.path)

    def storage(self, given: Any) -> Storage:
        """What a persistent id says: ('storage', class, key, device, count[, view])."""
        is_whole = isinstance(given, tuple) and 5 <= len(given) <= 6
        whole: tuple[Any, ...] = given if is_whole else (None,) * 5
        tag, kind, key, _, numel, *view = whole
        dtype = DTYPES.get(kind.name) if isinstance(kind, Record) else None
        if tag != "storage" or dtype is None or not isinstance(key, str) or any(view):
            self.refuse("has a tensor whose kind of numbers is not known")
        found = Storage(dtype, key, numel if is_count(numel) else self.refuse("has no sizes"))
        if self.storages.setdefault(key, found) != found:
            self.refuse(f"gives storage {key!r} two sizes")
        return found

    def view(self, args: tuple[Any, ...]) -> View:
        whole: tuple[Any, ...] = (*args, None, None, None, None)
        storage, offset, shape, stride, *_ = whole
        sizes = (shape, stride)
        if (
            not isinstance(storage, Storage)
            or not is_count(offset)
            or not all(isinstance(s, tuple) and all(map(is_count, s)) for s in sizes)
            or len(shape) != len(stride)
            or len(shape) > MAX_DIMENSIONS
        ):
            self.refuse("has a tensor that is not described by its sizes")
        return View(storage, offset, shape, stride)

    def first(self, args: tuple[Any, ...]) -> Any:
        """A parameter is its tensor, a Size its tuple."""
        return args[0] if args else self.refuse("has a parameter without a tensor")

    def ordered(self, args: tuple[Any, ...]) -> Ordered:
        pairs = args[0] if args else []
        if not isinstance(pairs, list) or not all(
            isinstance(pair, list | tuple) and len(pair) == 2 and is_key(pair[0]) for pair in pairs
        ):
            self.refuse("has an OrderedDict that is not made of pairs")
        return Ordered(pairs)


def is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**48
