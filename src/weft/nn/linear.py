"""Products and tables with a weight that can be packed; and a whole model packed and unpacked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from weft.native.kernels import embedding_rows, is_inference_float32, linear
from weft.native.malloc import trim_malloc
from weft.native.packed import PackedMatrix
from weft.nn.packable import Packable


class Product(Packable):
    """x W^T + bias: x [..., I] -> y [..., O]. Packed, by native/kernels.py; with gradients, other
    dtypes and devices by torch."""

    weight: Tensor
    bias: Any

    def product(self, x: Tensor, outputs: slice | None = None) -> Tensor:
        """All outputs or some."""
        packed = self.current()
        if packed is not None and is_inference_float32(x):
            return linear(x, packed, self.bias, outputs)
        if outputs is None:
            return F.linear(x, self.whole(), self.bias)
        bias = None if self.bias is None else self.bias[outputs]
        return F.linear(x, self.whole()[outputs], bias)


class Linear(Product, nn.Linear):
    """nn.Linear that can be packed."""

    def forward(self, input: Tensor) -> Tensor:
        return self.product(input)


class Table(Packable, nn.Embedding):
    """nn.Embedding whose rows can come from a packed weight: a product's, where they share it."""

    def forward(self, input: Tensor) -> Tensor:
        packed = self.current()
        if packed is None or not packed.is_native:
            return super().forward(input)
        if torch.is_grad_enabled():
            return F.embedding(input, self.whole(), self.padding_idx)
        return embedding_rows(packed, input)


OURS: dict[type[nn.Module], type[Packable]] = {nn.Linear: Linear, nn.Embedding: Table}
"""What layers of torch's become when a model is packed."""


def pack_model(model: nn.Module) -> nn.Module:
    """Pack every product, one after the other, so that no more than one weight is there twice.
    Layers with one weight share its packed form; a table is packed only with a product's."""
    layers = list(packables(model))
    refuse_strangers(model, layers)
    made, freed = dict[int, PackedMatrix](), 0
    for layer, name in each_weight(layers):
        weight = layer.get_parameter(name)
        if not isinstance(layer, Table):
            size = weight.untyped_storage().nbytes()
            made[id(weight)] = layer.pack(made.get(id(weight)), name)
            freed = trim_malloc(freed + size)
    for layer, name in each_weight(layers):
        weight = layer.get_parameter(name)
        if isinstance(layer, Table) and id(weight) in made:
            layer.pack(made[id(weight)], name)
    return model


def packables(model: nn.Module) -> Iterator[Packable]:
    for layer in model.modules():
        if type(layer) in OURS:
            layer.__class__ = OURS[type(layer)]
        if isinstance(layer, Packable):
            yield layer


def each_weight(layers: list[Packable]) -> Iterator[tuple[Packable, str]]:
    return ((layer, name) for layer in layers for name in layer.packable)


def refuse_strangers(model: nn.Module, layers: list[Packable]) -> None:
    """A weight that a layer of another kind reads too must keep its numbers."""
    weights = {id(layer.get_parameter(name)) for layer, name in each_weight(layers)}
    for place, layer in model.named_modules():
        known = layer.packable if isinstance(layer, Packable) else ()
        for name, own in layer.named_parameters(recurse=False):
            is_strange = name not in known and id(own) in weights
            assert not is_strange, f"{place}.{name} is the weight of a layer that is packed"


def unpack_model(model: nn.Module) -> nn.Module:
    """Let go of every packed weight."""
    for layer in model.modules():
        if isinstance(layer, Packable):
            layer.unpack()
    return model
