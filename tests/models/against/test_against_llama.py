"""Llama with each rotary scaling, and Mistral's window, against `transformers`: same weights, same
logits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from weft.core.forward_batch import ForwardBatch
from weft.models.build import build_model
from weft.models.config import ModelConfig

from .weights import llama_state, load, shake

SIZES = {
    "vocab_size": 67,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
}

OURS = {
    "kind": "decoder",
    "vocab_size": 67,
    "width": 48,
    "num_layers": 3,
    "max_len": 256,
    "dropout": 0.0,
    "attention": {"kind": "gqa", "num_heads": 6, "num_kv_heads": 2},
    "feedforward": {"kind": "swiglu", "width": 80, "bias": False},
    "norm": {"kind": "rmsnorm", "placement": "before", "eps": 1e-6},
    "embedding": {"tied": "none"},
}

SCALINGS = {
    "none": ({"rope_type": "default"}, {"kind": "none"}),
    "linear": ({"rope_type": "linear", "factor": 3.0}, {"kind": "linear", "factor": 3.0}),
    "dynamic": (
        {"rope_type": "dynamic", "factor": 2.0},
        {"kind": "dynamic", "factor": 2.0, "original_max_len": 64},
    ),
    "yarn": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        {"kind": "yarn", "factor": 4.0, "original_max_len": 16},
    ),
    "llama3": (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        {
            "kind": "llama3",
            "factor": 8.0,
            "low_frequency_factor": 1.0,
            "high_frequency_factor": 4.0,
            "original_max_len": 32,
        },
    ),
}


def ids(length: int, rows: int = 2) -> Tensor:
    return torch.randint(0, 67, (rows, length), generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("length", [23, 90], ids=["within", "beyond the trained length"])
@pytest.mark.parametrize("name", SCALINGS)
def test_llama_gives_the_same_logits_with_each_rotary_scaling(name: str, length: int) -> None:
    theirs, ours = SCALINGS[name]
    original = LlamaForCausalLM(
        LlamaConfig(**SIZES, rope_parameters={"rope_theta": 10000.0, **theirs})
    )
    shake(original)
    position = {"kind": "rotary", "base": 10000.0, "scaling": ours}
    model = build_model(ModelConfig(**OURS, position=position))
    load(model, llama_state(original.state_dict(), 3))
    ids_BT = ids(length)
    with torch.no_grad():
        expected, got = original(ids_BT).logits, model(ForwardBatch(ids_BT))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [1, 4, 9])
def test_mistral_gives_the_same_logits_inside_and_beyond_its_window(window: int) -> None:
    original = shake(MistralForCausalLM(MistralConfig(**SIZES, sliding_window=window)))
    attention = {**OURS["attention"], "pattern": {"kind": "window", "window": window}}
    config = ModelConfig(**{**OURS, "attention": attention}, position={"kind": "rotary"})
    model = load(build_model(config), llama_state(original.state_dict(), 3))
    ids_BT = ids(31)
    with torch.no_grad():
        expected, got = original(ids_BT).logits, model(ForwardBatch(ids_BT))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_a_padded_row_gives_the_logits_of_the_row_alone() -> None:
    original = shake(LlamaForCausalLM(LlamaConfig(**SIZES)))
    model = load(
        build_model(ModelConfig(**OURS, position={"kind": "rotary"})),
        llama_state(original.state_dict(), 3),
    )
    ids_BT, lengths_B = ids(12), torch.tensor([12, 7])
    with torch.no_grad():
        got = model(ForwardBatch(ids_BT, lengths_B=lengths_B))
        alone = original(ids_BT[1:, :7]).logits
    torch.testing.assert_close(got[1:, :7], alone, atol=1e-5, rtol=1e-5)
