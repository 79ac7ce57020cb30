"""BLOOM against `transformers`: ALiBi, a norm on the embedding, fused projections interleaved by
head."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import BloomConfig, BloomForCausalLM

from weft.core.forward_batch import ForwardBatch
from weft.models.build import build_model
from weft.models.config import ModelConfig

from .weights import State, load, shake, take


def by_part(fused: Tensor, num_heads: int) -> Tensor:
    """Rows in the order head, part, number -> part, head, number."""
    return fused.unflatten(0, (num_heads, 3, -1)).transpose(0, 1).flatten(0, 2)


def bloom_state(source: State, num_layers: int, num_heads: int) -> State:
    state: State = {}
    take(state, "decoder.embedding.words", "transformer.word_embeddings", source)
    take(state, "head", "transformer.word_embeddings", source)
    take(state, "decoder.embedding.norm", "transformer.word_embeddings_layernorm", source)
    take(state, "decoder.norm", "transformer.ln_f", source)
    for i in range(num_layers):
        ours, theirs = f"decoder.blocks.{i}", f"transformer.h.{i}"
        for part in ("weight", "bias"):
            fused = source[f"{theirs}.self_attention.query_key_value.{part}"]
            state[f"{ours}.attention.qkv.{part}"] = by_part(fused, num_heads)
        take(state, f"{ours}.attention.out", f"{theirs}.self_attention.dense", source)
        take(state, f"{ours}.attention_path.norm", f"{theirs}.input_layernorm", source)
        take(state, f"{ours}.feedforward_path.norm", f"{theirs}.post_attention_layernorm", source)
        take(state, f"{ours}.feedforward.up", f"{theirs}.mlp.dense_h_to_4h", source)
        take(state, f"{ours}.feedforward.down", f"{theirs}.mlp.dense_4h_to_h", source)
    return state


@pytest.mark.parametrize("num_heads", [4, 6], ids=["power of two", "not a power of two"])
def test_bloom_gives_the_same_logits(num_heads: int) -> None:
    theirs = BloomConfig(
        vocab_size=53, hidden_size=48, n_layer=2, n_head=num_heads, attn_implementation="eager"
    )
    original = shake(BloomForCausalLM(theirs))
    config = ModelConfig(
        kind="decoder",
        vocab_size=53,
        width=48,
        num_layers=2,
        max_len=64,
        dropout=0.0,
        attention={"kind": "mha", "num_heads": num_heads, "bias": True},
        position={"kind": "alibi"},
        feedforward={"kind": "gelu_tanh", "width": 192, "bias": True},
        norm={"kind": "layernorm", "placement": "before", "eps": 1e-5},
        embedding={"tied": "all", "norm": True},
    )
    model = load(build_model(config), bloom_state(original.state_dict(), 2, num_heads))
    ids_BT = torch.randint(0, 53, (2, 37), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        expected, got = original(ids_BT).logits, model(ForwardBatch(ids_BT))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
