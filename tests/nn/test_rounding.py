"""Which weights of a model ask for rounded inputs."""

from __future__ import annotations

import copy

import torch
from torch import nn

from tests.native.test_packed import blocks
from weft.native.packed import pack_blocks
from weft.nn.linear import Linear, Table
from weft.nn.rounding import round_inputs, rounds_inputs


def model() -> nn.ModuleDict:
    """A table and a head with one weight of few bits, and a layer in floats."""
    packed = pack_blocks(*blocks(8))
    layers = nn.ModuleDict({"words": Table(37, 96), "head": Linear(96, 37), "own": Linear(96, 37)})
    layers["words"].weight = layers["head"].weight
    layers["head"].pack(packed), layers["words"].pack(packed), layers["own"].pack()
    return layers.eval()


def test_weights_of_few_bits_ask_for_it_and_floats_do_not() -> None:
    layers = model()
    assert not rounds_inputs(layers)
    with torch.no_grad():
        x, ids = torch.randn(3, 96), torch.arange(5)
        before = {name: layers[name](x) for name in ("head", "own")}
        rows = layers["words"](ids)
        assert round_inputs(layers) == 1 and rounds_inputs(layers)
        assert not layers["head"](x).equal(before["head"])
        assert layers["own"](x).equal(before["own"])
        assert layers["words"](ids).equal(rows), "a table has no inputs to round"
    assert layers["words"].packed is layers["head"].packed
    assert round_inputs(layers) == 0, "there is nothing more to do"


def test_a_copy_rounds_too_and_training_does_not() -> None:
    layers = model()
    round_inputs(layers)
    copied = copy.deepcopy(layers)
    x = torch.randn(2, 96)
    with torch.no_grad():
        assert copied["head"](x).equal(layers["head"](x))
    assert not rounds_inputs(copied.train())
