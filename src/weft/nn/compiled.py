"""Whole layers in one call: x_1ND -> y_1ND, by native/csrc/layer.cpp.

Only what nearly every step of the engine is made of: packed rows over pages, grouped heads, plain
or gated feed-forward, packed float32 weights on the CPU, no bias on scores. Anything else, and a
hook anywhere in the layers, goes part by part through the modules, which give the same bits. At one
token a sequence the modules take three times as long as the arithmetic, and even one call a layer a
third of it: the weights that stream through the processor's caches push Python out of them.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from contextlib import suppress
from ctypes import c_void_p
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.native.kernels import is_inference_float32
from weft.native.library import Native, native
from weft.native.structs import LayerAtStruct, LayerPassStruct, LayerStruct
from weft.nn.attention.base import AttentionContext
from weft.nn.attention.layer import Attention
from weft.nn.compiled_block import BlockReader, NotCompiledError, Watch
from weft.nn.compiled_pass import CompiledPass, LayerSize, layouts_of, source_of


@dataclass(frozen=True)
class Calls:
    """Where the rows of each layer lie: the same from pass to pass, while a cache's pages stay."""

    storage: weakref.ref[Any] | None
    """What holds the pages; None: they are those of one pass."""
    structs: Any
    """A LayerAtStruct for each layer."""
    groups: list[tuple[Attention, Attention | None]]
    """One layer of each group that shares mask, positions and layouts."""

    def is_for(self, cache: Any) -> bool:
        storage = None if self.storage is None else self.storage()
        return storage is not None and storage is storage_of(cache)

    @classmethod
    def of(cls, layers: Sequence[LayerStruct], attentions: Attentions, cache: Any) -> Calls | None:
        """None where the cache has no pages for a layer to read."""
        structs, groups = (LayerAtStruct * len(layers))(), dict[Any, int]()
        members: list[tuple[Attention, Attention | None]] = []
        for struct, layer, (own, cross) in zip(structs, layers, attentions, strict=True):
            layouts = layouts_of(cache, own, cross)
            if layouts[0] is None:
                return None
            key = own.is_full, *map(id, layouts)
            if key not in groups:
                groups[key] = len(groups)
                members.append((own, cross))
            struct.layer, struct.group = ctypes.addressof(layer), groups[key]
            rows, _ = cache.write_slots(own.slot.kv_index, own.spec)
            struct.k, struct.v = rows["k"].data_ptr(), rows["v"].data_ptr()
            if cross is not None:
                rows = source_of(cache, cross)
                struct.cross_k, struct.cross_v = rows["k"].data_ptr(), rows["v"].data_ptr()
        storage = storage_of(cache)
        return cls(None if storage is None else weakref.ref(storage), structs, members)


class Read:
    """Blocks as they were read. A thread can go on with it while another one reads them anew:
    nothing of it changes but `last_calls`, which is exchanged as a whole."""

    def __init__(self, blocks: Sequence[Any]) -> None:
        self.watch, reader = Watch(blocks), BlockReader()
        self.layers: list[LayerStruct] = []
        """None of them where the library does not know all blocks."""
        with suppress(NotCompiledError):
            self.layers = [reader.read(block) for block in blocks]
        self.attentions: Attentions = [(block.attention, block.cross) for block in blocks]
        self.size = LayerSize.of(self.layers) if self.layers else LayerSize(0, 0)
        self.last_calls: Calls | None = None

    def calls(self, cache: Any) -> Calls | None:
        found = self.last_calls
        if found is None or not found.is_for(cache):
            found = self.last_calls = Calls.of(self.layers, self.attentions, cache)
        return found


class Compiled:
    """The way of some blocks into the library: made at their first use, and again when a part or a
    weight is another. A copy makes its own, for addresses are not copied."""

    def __init__(self) -> None:
        self.read: Read | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Compiled, ()

    def run(self, blocks: Sequence[nn.Module], passes: Passes, x_1ND: Tensor) -> Tensor | None:
        """x behind all blocks; None where modules have to do some of it."""
        if not is_inference_float32(x_1ND) or x_1ND.shape[0] != 1:
            return None
        ready = self.ready(blocks, passes, x_1ND.shape[1])
        return None if ready is None else ready.run(x_1ND.contiguous())

    def ready(self, blocks: Sequence[nn.Module], passes: Passes, rows: int) -> Ready | None:
        """All that the library is told of these blocks in a pass of `rows` tokens; None where
        modules have to do some of it."""
        library = native()
        if library is None or not hasattr(passes[0].cache, "write_slots"):
            return None
        read = self.read
        if read is None or not read.watch.is_same(blocks):
            read = self.read = Read(blocks)
        if not read.layers or read.watch.is_looked_at():
            return None
        return Ready.of(library, read, passes, rows)


@dataclass(frozen=True)
class Ready:
    """Layers and a pass as the library reads them."""

    library: Native
    read: Read
    calls: Calls
    given: list[LayerPassStruct]
    """Of each group of layers."""
    passes: Passes
    """They keep alive what the structures point at."""

    @classmethod
    def of(cls, library: Native, read: Read, passes: Passes, rows: int) -> Ready | None:
        """None where a pass asks for what the library does not know."""
        calls, given = read.calls(passes[0].cache), []
        if calls is None:
            return None
        for own, cross in calls.groups:
            of_pass = CompiledPass.of(passes[own.is_full], own.is_full, rows)
            struct = of_pass.struct(own, cross, read.size)
            if struct is None:
                return None
            given.append(struct)
        return cls(library, read, calls, given, passes)

    def addresses(self) -> Any:
        """Of the structures of all groups."""
        return (c_void_p * len(self.given))(*map(ctypes.addressof, self.given))

    def run(self, x_1ND: Tensor) -> Tensor:
        """All layers."""
        y_1ND, other_1ND = torch.empty_like(x_1ND), torch.empty_like(x_1ND)
        self.library.layers(
            *(ctypes.addressof(self.calls.structs), len(self.read.layers)),
            self.addresses(),
            *(x.data_ptr() for x in (x_1ND, y_1ND, other_1ND)),
        )
        return y_1ND


def storage_of(cache: Any) -> Any:
    """What holds a cache's pages for longer than a pass; None: nothing does."""
    return getattr(cache, "storage", None)


Attentions = Sequence[tuple[Attention, Attention | None]]
Passes = tuple[AttentionContext, AttentionContext]
"""For layers with the model's pattern, and for those that see all keys."""
