"""A whole layer in one call: x_1ND -> y_1ND, by native/layer.cpp.

Only what nearly every step of the engine is made of: packed rows over pages, grouped heads, plain
or gated feed-forward, packed float32 weights on the CPU, no bias on scores. Anything else, and a
hook anywhere in the layer, goes part by part through the modules, which give the same bits. At one
token a sequence the modules take three times as long as the arithmetic.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from weft.nn.attention.heads import GroupedAttention
from weft.nn.attention.layer import Pass
from weft.nn.compiled_pass import CompiledPass, LayerSize
from weft.nn.feedforward import EXACT, Gated, Plain
from weft.nn.linear import Linear
from weft.nn.native.activation import COMPILED
from weft.nn.native.packed import PackedWeight
from weft.nn.native.structs import (
    HeadsStruct,
    LayerStruct,
    NormStruct,
    PathStruct,
    ProductStruct,
)
from weft.nn.norm import LayerNorm, RMSNorm
from weft.nn.product import is_plain

PLACEMENTS = {"before": 0, "after": 1, "both": 2}


class NotCompiledError(Exception):
    """A part of the layer that only its module can compute."""


class Compiled:
    """A block's way into the library: made at its first use, and again when its parts or weights
    are others. A copy of the block makes its own, for addresses are not copied."""

    def __init__(self) -> None:
        self.struct: LayerStruct | None = None
        self.size = LayerSize(0, 0)
        self.weights: list[Linear] = []
        self.packed: list[PackedWeight] = []
        self.numbers: list[Tensor] = []
        """Tensors that the library reads where they lie."""
        self.places: list[int] = []
        self.parts: list[dict[str, Any]] = []
        """Modules and parameters of all parts, by their names."""
        self.found: list[Any] = []
        self.ids: list[int] = []
        self.hooks: list[dict[int, Any]] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return Compiled, ()

    def run(self, block: nn.Module, x_1ND: Tensor, given: Pass) -> Tensor | None:
        """y_1ND; None where the modules have to do it."""
        if not hasattr(given.cache, "target") or not is_plain(x_1ND) or x_1ND.shape[0] != 1:
            return None
        if not self.is_current():
            self.make(block)
        if self.struct is None or any(self.hooks):
            return None
        own, cross = block._modules["attention"], block._modules.get("cross")
        assert isinstance(own, GroupedAttention), "another kind of heads was compiled"
        assert cross is None or isinstance(cross, GroupedAttention), "the same of a source"
        passing = CompiledPass.of(given, own.is_full, x_1ND.shape[1])
        return passing.run(self.struct, self.size, own, cross, x_1ND)

    def is_current(self) -> bool:
        """Whether all parts and weights are those that the structure was made from. Lists, because
        each layer asks this for each token."""
        return (
            self.struct is not None
            and [layer.current() for layer in self.weights] == self.packed
            and [tensor.data_ptr() for tensor in self.numbers] == self.places
            and [id(part) for named in self.parts for part in named.values()] == self.ids
        )

    def make(self, block: nn.Module) -> None:
        """Read the block; there is no structure if it has a part that the library does not know."""
        self.__dict__ = Compiled().__dict__
        try:
            self.struct = self.read(block)
        except NotCompiledError:
            return
        self.size = LayerSize.of(self.struct)
        self.places = [tensor.data_ptr() for tensor in self.numbers]
        for part in block.modules():
            self.hooks += [part._forward_hooks, part._forward_pre_hooks]
            self.parts += [named for named in (part._modules, part._parameters) if named]
        self.found = [part for named in self.parts for part in named.values()]
        self.ids = [id(part) for part in self.found]

    def read(self, block: Any) -> LayerStruct:
        own, cross, feedforward = block.attention, block.cross, block.feedforward
        paths = (block.attention_path, block.cross_path, block.feedforward_path)
        if type(feedforward) not in (Plain, Gated):
            raise NotCompiledError
        return LayerStruct(
            *(feedforward.width, PLACEMENTS[paths[0].placement], cross is not None),
            *(PathStruct() if path is None else self.path(path) for path in paths),
            *(self.heads(own), HeadsStruct() if cross is None else self.heads(cross)),
            *self.feedforward(feedforward),
        )

    def feedforward(self, layer: Any) -> tuple[ProductStruct, ProductStruct, int, bool, int]:
        is_gated = type(layer) is Gated
        up, down = self.product(layer.gate_up if is_gated else layer.up), self.product(layer.down)
        return up, down, layer.down.in_features, is_gated, COMPILED[EXACT[layer.kind]]

    def path(self, path: Any) -> PathStruct:
        has_out = path.placement == "both"
        return PathStruct(
            self.norm(path.norm), self.norm(path.norm_out) if has_out else NormStruct()
        )

    def heads(self, layer: Any) -> HeadsStruct:
        if type(layer) is not GroupedAttention:
            raise NotCompiledError
        has_norms = layer.config.qk_norm
        norms = (self.norm(norm) for norm in (layer.query_norm, layer.key_norm) if has_norms)
        return HeadsStruct(
            *(self.product(layer.qkv), self.product(layer.out)),
            *(norms if has_norms else (NormStruct(), NormStruct())),
            *(has_norms, layer.num_heads, layer.num_kv_heads, layer.head_size, layer.head_size),
        )

    def norm(self, norm: nn.Module | None) -> NormStruct:
        struct = norm.struct() if isinstance(norm, LayerNorm | RMSNorm) else None
        if norm is None or struct is None:
            raise NotCompiledError
        self.numbers += norm.parameters()
        return struct

    def product(self, layer: nn.Module) -> ProductStruct:
        """A packed weight, which is watched from now on."""
        packed = layer.current() if isinstance(layer, Linear) else None
        if not isinstance(layer, Linear) or packed is None or not packed.is_native:
            raise NotCompiledError
        self.weights.append(layer)
        self.packed.append(packed)
        if layer.bias is None:
            return ProductStruct(packed.address, None)
        self.numbers.append(layer.bias)
        return ProductStruct(packed.address, layer.bias.data_ptr())
