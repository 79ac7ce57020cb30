"""GPT-2 against `transformers`: learned positions, norm before, biases everywhere, tied output."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from weft.core.forward_batch import ForwardBatch
from weft.models.build import build_model
from weft.models.config import ModelConfig

from .weights import State, load, shake, take


def gpt2_state(source: State, num_layers: int) -> State:
    """GPT-2 keeps its matrices as [in, out]; its fused q, k, v are in our order."""
    state: State = {}
    take(state, "decoder.embedding.words", "transformer.wte", source)
    take(state, "head", "transformer.wte", source)
    state["decoder.position.table_MD"] = source["transformer.wpe.weight"]
    take(state, "decoder.norm", "transformer.ln_f", source)
    for i in range(num_layers):
        ours, theirs = f"decoder.blocks.{i}", f"transformer.h.{i}"
        take(state, f"{ours}.attention_path.norm", f"{theirs}.ln_1", source)
        take(state, f"{ours}.feedforward_path.norm", f"{theirs}.ln_2", source)
        take(state, f"{ours}.attention.qkv", f"{theirs}.attn.c_attn", source, transpose=True)
        take(state, f"{ours}.attention.out", f"{theirs}.attn.c_proj", source, transpose=True)
        take(state, f"{ours}.feedforward.up", f"{theirs}.mlp.c_fc", source, transpose=True)
        take(state, f"{ours}.feedforward.down", f"{theirs}.mlp.c_proj", source, transpose=True)
    return state


def test_gpt2_gives_the_same_logits() -> None:
    theirs = GPT2Config(
        vocab_size=71, n_positions=40, n_embd=36, n_layer=3, n_head=4, attn_implementation="eager"
    )
    original = shake(GPT2LMHeadModel(theirs))
    config = ModelConfig(
        kind="decoder",
        vocab_size=71,
        width=36,
        num_layers=3,
        max_len=40,
        dropout=0.0,
        attention={"kind": "mha", "num_heads": 4, "bias": True},
        position={"kind": "learned"},
        feedforward={"kind": "gelu_tanh", "width": 144, "bias": True},
        norm={"kind": "layernorm", "placement": "before", "eps": 1e-5},
        embedding={"tied": "all"},
    )
    model = load(build_model(config), gpt2_state(original.state_dict(), 3))
    ids_BT = torch.randint(0, 71, (2, 33), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected, got = original(ids_BT).logits, model(ForwardBatch(ids_BT))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
