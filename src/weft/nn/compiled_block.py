"""A block -> the structure that native/layer.cpp reads, and a watch over what it was made of."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from weft.nn.attention.heads import GroupedAttention
from weft.nn.feedforward import EXACT, Gated, Plain
from weft.nn.linear import Linear
from weft.nn.native.activation import COMPILED
from weft.nn.native.packed import PackedWeight
from weft.nn.native.structs import HeadsStruct, LayerStruct, NormStruct, PathStruct, ProductStruct
from weft.nn.norm import LayerNorm, RMSNorm

PLACEMENTS = {"before": 0, "after": 1, "both": 2}
FORMS = attrgetter("forms")


class NotCompiledError(Exception):
    """A part of the layer that only its module can compute."""


class Watch:
    """Parts and weights that structures were made from. Every token asks whether they are still the
    same: hence no loops in Python, which would take three times as long."""

    def __init__(self) -> None:
        self.weights: list[Linear] = []
        self.hollow: list[Tensor] = []
        self.numbers: list[Tensor] = []
        """Tensors that the library reads where they lie."""
        self.parts: list[dict[str, Any]] = []
        """Modules and parameters by their names."""
        self.hooks: list[dict[int, Any]] = []

    def add(self, block: nn.Module) -> None:
        for part in block.modules():
            self.hooks += [part._forward_hooks, part._forward_pre_hooks]
            named: tuple[dict[str, Any], ...] = (part._modules, part._parameters)
            self.parts += [names for names in named if names]

    def begin(self) -> None:
        """What is there now is what must stay."""
        self.forms: list[Mapping[str, PackedWeight]] = list(map(FORMS, self.weights))
        self.strides = list(map(Tensor.stride, self.hollow))
        """Of hollow weights; those of a weight with numbers are others."""
        self.places = list(map(Tensor.data_ptr, self.numbers))
        self.ids = self.part_ids()
        # held, so that no id is given to another
        self.kept = [list(names.values()) for names in self.parts]

    def is_same(self) -> bool:
        return (
            list(map(FORMS, self.weights)) == self.forms
            and list(map(Tensor.stride, self.hollow)) == self.strides
            and list(map(Tensor.data_ptr, self.numbers)) == self.places
            and self.part_ids() == self.ids
        )

    def part_ids(self) -> list[int]:
        return list(map(id, chain.from_iterable(map(dict.values, self.parts))))


class BlockReader:
    """Reads blocks; a NotCompiledError where one has a part that the library does not know."""

    def __init__(self) -> None:
        self.watch = Watch()

    def read(self, block: Any) -> LayerStruct:
        own, cross, feedforward = block.attention, block.cross, block.feedforward
        paths = (block.attention_path, block.cross_path, block.feedforward_path)
        if type(feedforward) not in (Plain, Gated):
            raise NotCompiledError
        self.watch.add(block)
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
        norm_out = self.norm(path.norm_out) if has_out else NormStruct()
        return PathStruct(self.norm(path.norm), norm_out)

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

    def norm(self, norm: nn.Module) -> NormStruct:
        struct = norm.struct() if isinstance(norm, LayerNorm | RMSNorm) else None
        if struct is None:
            raise NotCompiledError
        self.watch.numbers += norm.parameters()
        return struct

    def product(self, layer: nn.Module) -> ProductStruct:
        packed = layer.current() if isinstance(layer, Linear) else None
        if not isinstance(layer, Linear) or packed is None or not packed.is_native:
            raise NotCompiledError
        self.watch.weights.append(layer)
        self.watch.hollow.append(layer.weight)
        if layer.bias is None:
            return ProductStruct(packed.address, None)
        self.watch.numbers.append(layer.bias)
        return ProductStruct(packed.address, layer.bias.data_ptr())
