"""Whole layers in one call: x_1ND -> y_1ND, by native/layer.cpp.

Only what nearly every step of the engine is made of: packed rows over pages, grouped heads, plain
or gated feed-forward, packed float32 weights on the CPU, no bias on scores. Anything else, and a
hook anywhere in the layers, goes part by part through the modules, which give the same bits. At one
token a sequence the modules take three times as long as the arithmetic, and even one call a layer a
third of it: the weights that stream through the processor's caches push Python out of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from weft.nn.attention.layer import Attention, Pass
from weft.nn.compiled_block import BlockReader, NotCompiledError, Watch
from weft.nn.compiled_pass import CompiledPass, LayerSize
from weft.nn.native.library import native
from weft.nn.native.structs import LayerAtStruct, LayerStruct
from weft.nn.product import is_plain


@dataclass(frozen=True)
class Read:
    """Blocks as they were read. Never changed, so that a thread can go on with it while another one
    reads them anew."""

    watch: Watch
    layers: list[LayerStruct]
    """None of them where the library does not know all blocks."""
    attentions: list[tuple[Attention, Attention | None]]
    size: LayerSize

    @classmethod
    def of(cls, blocks: Sequence[Any]) -> Read:
        watch, reader = Watch(blocks), BlockReader()
        try:
            layers = [reader.read(block) for block in blocks]
        except NotCompiledError:
            return cls(watch, [], [], LayerSize(0, 0))
        attentions = [(block.attention, block.cross) for block in blocks]
        return cls(watch, layers, attentions, LayerSize.of(layers))

    def calls(self, passes: Passes, pointers: list[int], rows: int) -> Any | None:
        """A structure for each layer; None where a pass asks for what the library does not know."""
        calls = (LayerAtStruct * len(self.layers))()
        kinds = {own.is_full for own, _ in self.attentions}
        known = {kind: CompiledPass.of(passes[kind], kind, rows) for kind in kinds}
        x, even, odd = pointers
        for i, (own, cross) in enumerate(self.attentions):
            call = calls[i]
            if not known[own.is_full].point(call, own, cross, self.size):
                return None
            call.layer = ctypes.addressof(self.layers[i])
            call.x, call.y = x, odd if i % 2 else even
            x = call.y
        return calls


class Compiled:
    """The way of some blocks into the library: made at their first use, and again when a part or a
    weight is another. A copy makes its own, for addresses are not copied."""

    def __init__(self) -> None:
        self.read: Read | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Compiled, ()

    def run(self, blocks: Sequence[nn.Module], passes: Passes, x_1ND: Tensor) -> Tensor | None:
        """x behind all blocks; None where modules have to do some of it."""
        library = native()
        if library is None or not hasattr(passes[0].cache, "target"):
            return None
        if not is_plain(x_1ND) or x_1ND.shape[0] != 1:
            return None
        read = self.read
        if read is None or not read.watch.is_same(blocks):
            read = self.read = Read.of(blocks)
        if not read.layers or read.watch.is_looked_at():
            return None
        x_1ND = x_1ND.contiguous()
        y_1ND, other_1ND = torch.empty_like(x_1ND), torch.empty_like(x_1ND)
        # the last layer writes y, the one before it the other, and so on
        results = (y_1ND, other_1ND) if len(read.layers) % 2 else (other_1ND, y_1ND)
        pointers = [x_1ND.data_ptr(), *(result.data_ptr() for result in results)]
        calls = read.calls(passes, pointers, x_1ND.shape[1])
        if calls is None:
            return None
        library.layers(ctypes.addressof(calls), len(read.layers))
        return y_1ND


Passes = tuple[Pass, Pass]
"""For layers with the model's pattern, and for those that see all keys."""
