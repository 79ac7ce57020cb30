"""A packed model is the same model, whatever its settings: no number of it is lost, no NaN of a
weight without memory gets out, and gradients are those of the plain one."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.contracts.settings import configs
from weft.core.forward_batch import ForwardBatch
from weft.models.build import AnyModel, build_model
from weft.models.config import ModelConfig
from weft.models.transformer import Encoder, EncoderDecoder
from weft.nn.lm_head import LMHead
from weft.nn.memoryless import is_memoryless
from weft.nn.packed_modules import pack_model, unpack_model

KINDS = ("encoder-decoder", "decoder", "encoder")


def run(model: AnyModel) -> Tensor:
    ids_BT = torch.randint(0, 29, (2, 7), generator=torch.Generator().manual_seed(0))
    batch = ForwardBatch(ids_BT)
    if isinstance(model, EncoderDecoder):
        return model(batch, batch)
    return model.logits(batch) if isinstance(model, Encoder) else model(batch)


def gradients(model: AnyModel) -> tuple[Tensor, dict[str, Tensor | None]]:
    """Logits, and what they move each weight by."""
    model.zero_grad()
    logits_BTV = run(model)
    logits_BTV.square().sum().backward()
    return logits_BTV.detach(), {name: weight.grad for name, weight in model.named_parameters()}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(data=st.data())
def test_a_packed_model_is_the_same_model(kind: str, data: st.DataObject) -> None:
    model = build_model(data.draw(configs(kind)), seed=1).eval()
    expected, moves = gradients(model)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    pack_model(model)
    with torch.inference_mode():
        torch.testing.assert_close(run(model), expected, atol=1e-4, rtol=1e-4)
    found, found_moves = gradients(model)
    assert found.equal(expected)
    assert list(moves) == list(found_moves)
    for name, move in moves.items():
        assert equal(found_moves[name], move), name
    assert all(tensor.equal(state[name]) for name, tensor in model.state_dict().items())
    assert all(weight.isfinite().all() for weight in unpack_model(model).parameters())


def equal(one: Tensor | None, other: Tensor | None) -> bool:
    return one is other if one is None or other is None else one.equal(other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tied", ["all", "output", "none"])
def test_every_product_lets_its_weight_go_and_ties_stay(kind: str, tied: str) -> None:
    config = ModelConfig(kind=kind, vocab_size=29, width=24, num_layers=1, embedding={"tied": tied})
    model = build_model(config).eval()
    before = {name: id(weight) for name, weight in model.named_parameters()}
    count = sum(weight.numel() for weight in model.parameters())
    pack_model(model)
    assert {name: id(weight) for name, weight in model.named_parameters()} == before
    assert sum(weight.numel() for weight in model.parameters()) == count
    floats = {
        name: layer.weight
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Embedding | nn.Linear | LMHead) and not is_memoryless(layer.weight)
    }
    # tables of words that no product shares
    assert all(name.endswith("embedding.words") for name in floats)
    is_pair = kind == "encoder-decoder"
    assert len(floats) == {"all": 0, "output": int(is_pair), "none": 1 + is_pair}[tied]
