"""`GGUFSource`: the tensors of a GGUF file as float32, or in their few bits, one at a time.

Each tensor is read and unpacked in pieces that fit the processor's cache, straight into the memory
it keeps, so that nothing but the result and a few pieces are held. Threads of our own take the
pieces: torch's wait for each other after every one of many short steps, which on a busy machine
takes ten times as long as the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import torch
from torch import Tensor

from weft.checkpoint.gguf.dequantize import READABLE_TYPES, DequantizeFn, dequantize_fn
from weft.checkpoint.gguf.header import GGUFHeader, TensorInfo
from weft.checkpoint.gguf.quantized_blocks import REPACK, as_rows, block_range, empty_blocks
from weft.checkpoint.reading import FileReader
from weft.core.errors import DataError
from weft.core.quantized import QuantizedMatrix

ConsumeBlocks = Callable[[int, int, Tensor], None]
"""Takes blocks start..end of those asked for, as bytes [end - start, block_bytes]."""

PIECE = 1 << 20
"""Numbers that are unpacked at once (4 MB); smaller ones cost calls, larger ones the cache."""
SMALL = 1 << 15
"""Tensors of fewer numbers are not worth a thread; torch itself does not split them either."""

MAX_THREADS = 8
"""More would wait for the memory."""


class GGUFSource:
    """Implements `TensorSource` under the names of the file. Holds the file open until it goes."""

    is_mapped = False

    def __init__(self, header: GGUFHeader) -> None:
        self.header, self.path = header, header.path
        self.shapes: Mapping[str, tuple[int, ...]] = {
            name: info.shape for name, info in header.tensors.items()
        }
        self.file = FileReader(self.path)
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

    def read_quantized(self, name: str) -> QuantizedMatrix | None:
        """A matrix in few bits; None where it has another type."""
        info = self.header.tensors[name]
        return self.few_bits(info, 0, info.shape[0]) if len(info.shape) == 2 else None

    def read_quantized_part(self, name: str, index: int) -> QuantizedMatrix | None:
        """One matrix of a stack in few bits."""
        info = self.header.tensors[name]
        rows = info.shape[1]
        return self.few_bits(info, index * rows, rows) if len(info.shape) == 3 else None

    def few_bits(self, info: TensorInfo, row: int, rows: int) -> QuantizedMatrix | None:
        """Some rows, from `row` on."""
        take = REPACK.get(info.type.name)
        if take is None:
            return None
        each = info.shape[-1] // info.type.block_len
        out = empty_blocks(info.type.name, rows * each)

        def use(start: int, end: int, data: Tensor) -> None:
            take(data, block_range(out, start, end))

        self.each_piece(info, row * each, rows * each, use)
        return as_rows(out, rows)

    def blocks(self, info: TensorInfo, first: int, count: int) -> Tensor:
        """Numbers of `count` blocks, [count, block_len]."""
        unpack = self.dequantize_fn_of(info)
        out = torch.empty(count, info.type.block_len)

        def use(start: int, end: int, data: Tensor) -> None:
            unpack(data, out[start:end])

        self.each_piece(info, first, count, use)
        return out

    def each_piece(self, info: TensorInfo, first: int, count: int, use: ConsumeBlocks) -> None:
        """Read `count` blocks from `first` on, in pieces that threads of ours take."""
        if count * info.type.block_len <= SMALL:
            return self.one_piece(info, first, 0, count, use)
        step = max(1, min(PIECE // info.type.block_len, -(-count // self.num_threads)))
        jobs = [
            self.pool.submit(self.one_piece, info, first, start, min(start + step, count), use)
            for start in range(0, count, step)
        ]
        for job in jobs:
            job.result()

    def one_piece(
        self, info: TensorInfo, first: int, start: int, end: int, use: ConsumeBlocks
    ) -> None:
        size = info.type.block_bytes
        place = info.start + (first + start) * size
        data = self.file.read(place, (end - start) * size, info.name)
        use(start, end, data.view(-1, size))

    def dequantize_fn_of(self, info: TensorInfo) -> DequantizeFn:
        if info.type.name not in READABLE_TYPES:
            raise DataError(
                f"tensor {info.name} is of type {info.type.name}: Weft reads "
                f"{', '.join(READABLE_TYPES)}. Use a file with one of these.",
                self.path,
            )
        return dequantize_fn(info.type)
