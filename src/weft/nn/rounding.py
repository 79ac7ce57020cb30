"""A model with weights of few bits -> the same model, whose products round their inputs to 8 bits.

    x ~ step * q, q in -127..127, each 32 inputs of a row with a step of their own

So a product is one of whole numbers (native/csrc/rounded.h), two to three times as fast as one that
makes floats of the weights first. It is how llama.cpp reads such weights, and it is not exact: a
result is about half a percent of the largest one off. A row still does not know its company, so
that a request has the same bits however it is served. Weights in float32 stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from weft.native.packed import PackedMatrix
from weft.nn.packable import Packable


def round_inputs(model: nn.Module) -> int:
    """Have every weight of few bits ask for rounded inputs; how many there are. Layers that share
    a weight go on sharing it."""
    made: dict[int, PackedMatrix] = {}
    for layer in packed_layers(model):
        for packed in layer.forms.values():
            if packed.scales is not None and not packed.int8_activations:
                made.setdefault(id(packed), replace(packed, int8_activations=True))
        layer.forms = {name: made.get(id(form), form) for name, form in layer.forms.items()}
    return len(made)


def rounds_inputs(model: nn.Module) -> bool:
    """Whether any weight asks for rounded inputs."""
    return any(
        form.int8_activations for layer in packed_layers(model) for form in layer.forms.values()
    )


def packed_layers(model: nn.Module) -> Iterator[Packable]:
    return (layer for layer in model.modules() if isinstance(layer, Packable) and layer.forms)
