"""Weights by name: each once, and with numbers also where the model is packed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine.tiny import tiny
from weft.checkpoint.tensor_source import split_state, tied_names
from weft.checkpoint.weft_folder import copy_state, load_folder, save_folder, unique_state
from weft.checkpoint.weight_rules import same
from weft.core.errors import UsageError
from weft.nn.memoryless import is_memoryless
from weft.nn.packed_modules import pack_model, unpack_model

KINDS = ("encoder-decoder", "decoder", "encoder")


@pytest.mark.parametrize("kind", KINDS)
def test_a_packed_model_has_the_same_state(kind: str) -> None:
    model = tiny(kind).model
    names = [names[0] for names in tied_names(model).values()]
    expected = {name: tensor.clone() for name, tensor in unique_state(model).items()}
    assert list(expected) == names
    pack_model(model)
    assert any(is_memoryless(weight) for weight in model.parameters())
    assert [names[0] for names in tied_names(model).values()] == names
    rules = [same(name, f"their.{name}") for name in names]
    for found in (unique_state(model), split_state(model, rules)):
        found = {name.removeprefix("their."): tensor for name, tensor in found.items()}
        assert all(found[name].equal(tensor) for name, tensor in expected.items())
        assert list(found) == list(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_serves_is_saved_as_it_was_loaded(kind: str, tmp_path: Path) -> None:
    checkpoint = tiny(kind)
    expected = {name: tensor.clone() for name, tensor in checkpoint.model.state_dict().items()}
    pack_model(checkpoint.model)
    save_folder(tmp_path / "x", checkpoint)
    again = load_folder(tmp_path / "x").model.state_dict()
    assert all(again[name].equal(tensor) for name, tensor in expected.items())


def test_weights_are_copied_into_a_model_once_it_is_unpacked() -> None:
    model, other = tiny(seed=1).model, tiny(seed=2).model
    pack_model(model)
    with pytest.raises(UsageError, match="packed for inference .* cannot be loaded into"):
        copy_state(unique_state(other), model, Path("x"))
    unpack_model(model)
    copy_state(unique_state(other), model, Path("x"))
    assert not any(is_memoryless(weight) for weight in model.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name
