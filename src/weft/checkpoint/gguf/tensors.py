"""`GGUFSource`: the tensors of a GGUF file as float32, one at a time.

Each tensor is read and unpacked in pieces that fit the processor's cache, straight into the memory
it keeps, so that nothing but the result and a few pieces are held. The file is read, not mapped:
mapped pages would count as memory of ours, and a file cut short by someone else would end the
process. Threads of our own take the pieces: torch's wait for each other after every one of many
short steps, which on a busy machine takes ten times as long as the work.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import torch
from torch import Tensor

from weft.checkpoint.gguf.dequantise import READABLE, Unpack, unpacker
from weft.checkpoint.gguf.header import Header, TensorInfo
from weft.core.errors import DataError

PIECE = 1 << 20
"""Numbers that are unpacked at once (4 MB); smaller ones cost calls, larger ones the cache."""
SMALL = 1 << 15
"""Tensors of fewer numbers are not worth a thread; torch itself does not split them either."""

MAX_THREADS = 8
"""More would wait for the memory."""


class GGUFSource:
    """Implements `TensorSource` under the names of the file. Holds the file open until it goes."""

    is_mapped = False

    def __init__(self, header: Header) -> None:
        self.header, self.path = header, header.path
        self.shapes: Mapping[str, tuple[int, ...]] = {
            name: info.shape for name, info in header.tensors.items()
        }
        self.handle = os.open(self.path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self.close = weakref.finalize(self, os.close, self.handle)
        self.num_threads = min(MAX_THREADS, torch.get_num_threads())

    @cached_property
    def pool(self) -> ThreadPoolExecutor:
        """Threads in which torch does not start others (the setting is a thread's own)."""
        return ThreadPoolExecutor(self.num_threads, "gguf", torch.set_num_threads, (1,))

    def read(self, name: str) -> Tensor:
        """A tensor as float32 in memory of its own; a DataError for a type without a reader."""
        info = self.header.tensors[name]
        return self.blocks(info, 0, info.num_blocks).view(info.shape)

    def read_part(self, name: str, index: int) -> Tensor:
        """One entry of a tensor's first dimension: an expert of many that are kept together."""
        info = self.header.tensors[name]
        count = info.num_blocks // info.shape[0]
        return self.blocks(info, index * count, count).view(info.shape[1:])

    def blocks(self, info: TensorInfo, first: int, count: int) -> Tensor:
        """Numbers of `count` blocks, [count, block_len]."""
        unpack = self.unpack_of(info)
        out = torch.empty(count, info.type.block_len)
        if out.numel() <= SMALL:
            self.fill(info, first, out, unpack)
            return out
        step = min(PIECE // info.type.block_len, -(-count // self.num_threads))
        pieces = out.split(max(1, step))
        starts = range(first, first + count, max(1, step))
        jobs = [
            self.pool.submit(self.fill, info, start, piece, unpack)
            for start, piece in zip(starts, pieces, strict=True)
        ]
        for job in jobs:
            job.result()
        return out

    def fill(self, info: TensorInfo, first: int, out: Tensor, unpack: Unpack) -> None:
        """Read and unpack the blocks from `first` on that `out` has room for."""
        size = info.type.block_bytes
        data = self.bytes_at(info.start + first * size, len(out) * size, info.name)
        unpack(data.view(len(out), size), out)

    def unpack_of(self, info: TensorInfo) -> Unpack:
        if info.type.name not in READABLE:
            raise DataError(
                f"tensor {info.name} is of type {info.type.name}: Weft reads "
                f"{', '.join(READABLE)}. Use a file with one of these.",
                self.path,
            )
        return unpacker(info.type)

    def bytes_at(self, start: int, count: int, name: str) -> Tensor:
        """Bytes of the file."""
        found = torch.empty(count, dtype=torch.uint8)
        view = memoryview(found.numpy().data)
        done = 0
        while done < count:
            got = os.preadv(self.handle, [view[done:]], start + done)
            if got == 0:
                raise DataError(f"ends inside tensor {name}. Copy the file again.", self.path)
            done += got
        return found
