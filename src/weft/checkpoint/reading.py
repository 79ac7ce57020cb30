"""Bytes of a file -> memory of our own.

Files are read, not mapped: mapped pages count as memory of ours, beside the weights that are made
of them, and a file cut short by someone else would end the process.
"""

from __future__ import annotations

import os
import weakref
from pathlib import Path

import torch
from torch import Tensor

from weft.core.errors import DataError


class FileReader:
    """A file that is open for reading until this goes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self.close = weakref.finalize(self, os.close, self.handle)

    def read(self, start: int, count: int, name: str) -> Tensor:
        """`count` bytes from `start` on; a DataError names the tensor in which the file ends."""
        found = torch.empty(count, dtype=torch.uint8)
        view = memoryview(found.numpy().data)
        done = 0
        while done < count:
            got = os.preadv(self.handle, [view[done:]], start + done)
            if got == 0:
                raise DataError(f"ends inside tensor {name}. Copy the file again.", self.path)
            done += got
        return found
