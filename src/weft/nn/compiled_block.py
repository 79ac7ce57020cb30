"""A block -> the structure that native/csrc/layer.cpp reads, and a watch
over what it was made of."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from operator import attrgetter, call, contains, is_, methodcaller
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

from weft.native.kernels import ACTIVATION_IDS
from weft.native.structs import HeadsStruct, LayerStruct, NormStruct, PathStruct, ProductStruct
from weft.nn.attention.grouped_query import GroupedQueryAttention
from weft.nn.feedforward import ACTIVATION_OF
from weft.nn.norm import LayerNorm, RMSNorm
from weft.nn.packed_modules import PackedGated, PackedLinear, PackedModule, PackedPlain

PLACEMENTS = {"before": 0, "after": 1, "both": 2}
FORMS, VALUES = attrgetter("matrices"), methodcaller("values")


class NotCompiledError(Exception):
    """A part of the layer that only its module can compute."""


class Watch:
    """All that some blocks are made of. Every token asks whether it is still the same: hence no
    loops in Python, which would take three times as long. Packed weights are not kept alive."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        parts = [part for block in blocks for part in block.modules()]
        self.hooks = [h for part in parts for h in (part._forward_hooks, part._forward_pre_hooks)]
        names = (named for part in parts for named in (part._modules, part._parameters))
        self.named: list[dict[str, Any]] = [named for named in names if named]
        self.owns = [vars(part) for part in parts]
        self.layers = [part for part in parts if isinstance(part, PackedModule)]
        numbers = (number for part in parts for number in part._parameters.values())
        self.numbers: list[Tensor] = [number for number in numbers if number is not None]
        self.blocks = [weakref.ref(block) for block in blocks]
        forms = chain.from_iterable(map(VALUES, map(FORMS, self.layers)))
        self.packed = [weakref.ref(one) for one in forms]
        self.places = list(map(Tensor.data_ptr, self.numbers))
        self.parts = list(chain.from_iterable(map(VALUES, self.named)))

    def is_same(self, blocks: Sequence[nn.Module]) -> bool:
        return (
            list(map(call, self.blocks)) == list(blocks)
            and list(map(Tensor.data_ptr, self.numbers)) == self.places
            and are_same(self.named, self.parts)
            and are_same(list(map(FORMS, self.layers)), list(map(call, self.packed)))
        )

    def is_looked_at(self) -> bool:
        """Whether a hook sits somewhere, or a part has been given another forward."""
        if any(self.hooks) or _global_forward_hooks or _global_forward_pre_hooks:
            return True
        return any(map(contains, self.owns, repeat("forward")))


def are_same(found: Sequence[Mapping[str, Any]], known: Sequence[Any]) -> bool:
    """Whether the values of these mappings, one behind the other, are these very objects."""
    values = chain.from_iterable(map(VALUES, found))
    return sum(map(len, found)) == len(known) and all(map(is_, values, known))


class BlockReader:
    """Reads blocks; a NotCompiledError where one has a part that the library does not know."""

    def read(self, block: Any) -> LayerStruct:
        own, cross, feedforward = block.attention, block.cross, block.feedforward
        paths = (block.attention_path, block.cross_path, block.feedforward_path)
        if type(feedforward) not in (PackedPlain, PackedGated):
            raise NotCompiledError
        return LayerStruct(
            *(feedforward.width, PLACEMENTS[paths[0].placement], cross is not None),
            *(PathStruct() if path is None else self.path(path) for path in paths),
            *(self.heads(own), HeadsStruct() if cross is None else self.heads(cross)),
            *self.feedforward(feedforward),
        )

    def feedforward(self, layer: Any) -> tuple[ProductStruct, ProductStruct, int, bool, int]:
        is_gated = type(layer) is PackedGated
        up, down = self.product(layer.gate_up if is_gated else layer.up), self.product(layer.down)
        return up, down, layer.down.in_features, is_gated, ACTIVATION_IDS[ACTIVATION_OF[layer.kind]]

    def path(self, path: Any) -> PathStruct:
        has_out = path.placement == "both"
        norm_out = self.norm(path.norm_out) if has_out else NormStruct()
        return PathStruct(self.norm(path.norm), norm_out)

    def heads(self, layer: Any) -> HeadsStruct:
        if type(layer) is not GroupedQueryAttention:
            raise NotCompiledError
        has_norms = layer.config.qk_norm
        norms = (self.norm(norm) for norm in (layer.query_norm, layer.key_norm) if has_norms)
        return HeadsStruct(
            *(self.product(layer.qkv), self.product(layer.out)),
            *(norms if has_norms else (NormStruct(), NormStruct())),
            *(has_norms, layer.num_heads, layer.num_kv_heads, layer.head_size, layer.head_size),
        )

    def norm(self, norm: Any) -> NormStruct:
        # here and below: a class of somebody else's may compute something more
        struct = norm.struct() if type(norm) in (LayerNorm, RMSNorm) else None
        if not isinstance(struct, NormStruct):
            raise NotCompiledError
        return struct

    def product(self, layer: Any) -> ProductStruct:
        packed = layer.matrices["weight"] if type(layer) is PackedLinear else None
        if packed is None or not packed.is_native:
            raise NotCompiledError
        bias = layer._parameters["bias"]
        return ProductStruct(packed.address, None if bias is None else bias.data_ptr())
