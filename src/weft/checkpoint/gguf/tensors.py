"""Tensors of a GGUF file, one at a time: `GGUFSource` under the file's names, `GGUFAsHFSource`
under Hugging Face's names, in its shapes and row order.

Each tensor is read and dequantized in chunks that fit the processor's cache, directly into its
final memory, so that nothing but the result and a few chunks are allocated. The chunks run on
threads of our own: torch's wait for each other after every one of many short operations, which on a
busy machine takes ten times as long as the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import torch
from torch import Tensor

from weft.checkpoint.gguf.dequantize import READABLE_TYPES, DequantizeFn, dequantize_fn
from weft.checkpoint.gguf.header import GGUFHeader, TensorInfo
from weft.checkpoint.gguf.hf_names import HFTensorNames
from weft.checkpoint.gguf.quantized_blocks import (
    REPACK,
    block_range,
    blocks_as_rows,
    empty_blocks,
)
from weft.checkpoint.tensor_source import FileReader
from weft.core.errors import DataError
from weft.core.quantized import QuantizedMatrix

ConsumeBlocks = Callable[[int, int, Tensor], None]
"""Receives blocks start..end of those requested, as bytes [end - start, block_bytes]."""

CHUNK_NUMBERS = 1 << 20
"""Numbers dequantized at once (4 MB); fewer cost calls, more the cache."""
MIN_THREADED_NUMBERS = 1 << 15
"""Smaller tensors are not worth a thread; torch does not split them either."""
MAX_THREADS = 8
"""More would wait for memory."""


class GGUFSource:
    """Implements `QuantizedSource` under the names of the file, which stays open."""

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
        """Threads in which torch starts no others (the setting is per thread)."""
        return ThreadPoolExecutor(self.num_threads, "gguf", torch.set_num_threads, (1,))

    def read(self, name: str) -> Tensor:
        """A tensor as float32 in memory of its own; a DataError for an unsupported type."""
        info = self.header.tensors[name]
        return self.read_blocks(info, 0, info.num_blocks).view(info.shape)

    def read_part(self, name: str, index: int) -> Tensor:
        """One index of a tensor's first dimension: one expert of a stack."""
        info = self.header.tensors[name]
        count = info.num_blocks // info.shape[0]
        return self.read_blocks(info, index * count, count).view(info.shape[1:])

    def read_quantized(self, name: str) -> QuantizedMatrix | None:
        """A quantized matrix; None if it has another type."""
        info = self.header.tensors[name]
        return self.read_rows(info, 0, info.shape[0]) if len(info.shape) == 2 else None

    def read_quantized_part(self, name: str, index: int) -> QuantizedMatrix | None:
        """One quantized matrix of a stack."""
        info = self.header.tensors[name]
        count = info.shape[1]
        return self.read_rows(info, index * count, count) if len(info.shape) == 3 else None

    def read_rows(self, info: TensorInfo, first: int, count: int) -> QuantizedMatrix | None:
        """`count` rows from `first` on as a quantized matrix."""
        repack = REPACK.get(info.type.name)
        if repack is None:
            return None
        blocks_per_row = info.shape[-1] // info.type.block_len
        out = empty_blocks(info.type.name, count * blocks_per_row)

        def consume(start: int, end: int, data: Tensor) -> None:
            repack(data, block_range(out, start, end))

        self.each_chunk(info, first * blocks_per_row, count * blocks_per_row, consume)
        return blocks_as_rows(out, count)

    def read_blocks(self, info: TensorInfo, first: int, count: int) -> Tensor:
        """`count` blocks from `first` on, dequantized: [count, block_len]."""
        dequantize = self.dequantize_fn(info)
        out = torch.empty(count, info.type.block_len)

        def consume(start: int, end: int, data: Tensor) -> None:
            dequantize(data, out[start:end])

        self.each_chunk(info, first, count, consume)
        return out

    def each_chunk(self, info: TensorInfo, first: int, count: int, consume: ConsumeBlocks) -> None:
        """Read `count` blocks from `first` on in chunks, on the threads of the pool."""
        if count * info.type.block_len <= MIN_THREADED_NUMBERS:
            return self.one_chunk(info, first, 0, count, consume)
        step = max(1, min(CHUNK_NUMBERS // info.type.block_len, -(-count // self.num_threads)))
        futures = [
            self.pool.submit(self.one_chunk, info, first, start, min(start + step, count), consume)
            for start in range(0, count, step)
        ]
        for future in futures:
            future.result()

    def one_chunk(
        self, info: TensorInfo, first: int, start: int, end: int, consume: ConsumeBlocks
    ) -> None:
        size = info.type.block_bytes
        offset = info.start + (first + start) * size
        data = self.file.read(offset, (end - start) * size, info.name)
        consume(start, end, data.view(-1, size))

    def dequantize_fn(self, info: TensorInfo) -> DequantizeFn:
        if info.type.name not in READABLE_TYPES:
            raise DataError(
                f"tensor {info.name} is of type {info.type.name}: Weft reads "
                f"{', '.join(READABLE_TYPES)}. Use a file with one of these.",
                self.path,
            )
        return dequantize_fn(info.type)


class GGUFAsHFSource:
    """Implements `QuantizedSource` under Hugging Face names."""

    is_mapped = False

    def __init__(self, source: GGUFSource, names: HFTensorNames) -> None:
        self.source, self.path, self.shapes = source, source.path, names.shapes
        self.rules, self.parts = names.rules, names.parts

    def read(self, name: str) -> Tensor:
        """A tensor as float32 in memory of its own."""
        if name in self.parts:
            return self.source.read_part(*self.parts[name])
        rule = self.rules.get(name)
        if rule is None:
            return self.source.read(name)
        parts = [self.source.read(part) for part in rule.file_names]
        return self.source.pool.submit(rule.join, parts).result()

    def read_quantized(self, name: str) -> QuantizedMatrix | None:
        """A quantized matrix; None if the file or the rule has no such form."""
        if name in self.parts:
            return self.source.read_quantized_part(*self.parts[name])
        rule = self.rules.get(name)
        return (
            rule.join_quantized(map(self.source.read_quantized, rule.file_names)) if rule else None
        )
