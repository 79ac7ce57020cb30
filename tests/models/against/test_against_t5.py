"""T5 against `transformers`: bucketed bias, no scaling, RMSNorm before, cross-attention, padded
sources."""

from __future__ import annotations

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from weft.core.forward_batch import ForwardBatch
from weft.models.build import build_model
from weft.models.config import ModelConfig

from .weights import State, load, shake, stack, take


def t5_stack(state: State, side: str, source: State, num_layers: int, *, is_gated: bool) -> None:
    take(state, f"{side}.embedding.words", "shared", source)
    take(state, f"{side}.norm", f"{side}.final_layer_norm", source)
    bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    state[f"{side}.position.table_MH"] = source[bias]
    for i in range(num_layers):
        ours, theirs = f"{side}.blocks.{i}", f"{side}.block.{i}.layer"
        attend = [(0, "SelfAttention", "attention")]
        attend += [(1, "EncDecAttention", "cross")] if side == "decoder" else []
        for n, name, room in attend:
            names = [f"{theirs}.{n}.{name}.{part}" for part in "qkv"]
            stack(state, f"{ours}.{room}.qkv", names, source)
            take(state, f"{ours}.{room}.out", f"{theirs}.{n}.{name}.o", source)
            take(state, f"{ours}.{room}_path.norm", f"{theirs}.{n}.layer_norm", source)
        last = len(attend)
        dense = f"{theirs}.{last}.DenseReluDense"
        if is_gated:
            stack(state, f"{ours}.feedforward.gate_up", [f"{dense}.wi_0", f"{dense}.wi_1"], source)
        else:
            take(state, f"{ours}.feedforward.up", f"{dense}.wi", source)
        take(state, f"{ours}.feedforward.down", f"{dense}.wo", source)
        take(state, f"{ours}.feedforward_path.norm", f"{theirs}.{last}.layer_norm", source)


@pytest.mark.parametrize(
    ("projection", "kind"), [("relu", "relu"), ("gated-gelu", "geglu_tanh")], ids=["t5", "flan-t5"]
)
def test_t5_gives_the_same_logits_with_padded_sources(projection: str, kind: str) -> None:
    theirs = T5Config(
        vocab_size=59,
        d_model=32,
        d_kv=12,
        d_ff=56,
        num_layers=2,
        num_decoder_layers=3,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=20,
        feed_forward_proj=projection,
        attn_implementation="eager",
        tie_word_embeddings=True,
    )
    original = shake(T5ForConditionalGeneration(theirs))
    config = ModelConfig(
        kind="encoder-decoder",
        vocab_size=59,
        width=32,
        num_layers=3,
        encoder_layers=2,
        max_len=64,
        dropout=0.0,
        attention={"kind": "mha", "num_heads": 4, "head_size": 12, "scale": 1.0},
        position={"kind": "bucketed", "num_buckets": 8, "max_distance": 20},
        feedforward={"kind": kind, "width": 56, "bias": False},
        norm={"kind": "rmsnorm", "placement": "before", "eps": 1e-6},
        embedding={"tied": "all"},
        head={"scale": 32**-0.5},
    )
    model = build_model(config)
    source, state = original.state_dict(), {}
    t5_stack(state, "encoder", source, 2, is_gated=projection != "relu")
    t5_stack(state, "decoder", source, 3, is_gated=projection != "relu")
    state["head.weight"] = source["shared.weight"]
    load(model, state)
    generator = torch.Generator().manual_seed(3)
    source_BS = torch.randint(0, 59, (2, 27), generator=generator)
    target_BT = torch.randint(0, 59, (2, 14), generator=generator)
    lengths_B = torch.tensor([27, 15])
    is_real_BS = torch.arange(27) < lengths_B[:, None]
    with torch.no_grad():
        expected = original(
            source_BS, attention_mask=is_real_BS.long(), decoder_input_ids=target_BT
        ).logits
        got = model(ForwardBatch(target_BT), ForwardBatch(source_BS, lengths_B=lengths_B))
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
