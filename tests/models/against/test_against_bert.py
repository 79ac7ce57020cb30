"""BERT against `transformers`: both directions, learned positions, segments, norm after,
masked-word head, padding."""

from __future__ import annotations

import torch
from transformers import BertConfig, BertForMaskedLM

from weft.core.forward_batch import ForwardBatch
from weft.models.build import build_model
from weft.models.config import ModelConfig

from .weights import State, load, shake, stack, take


def bert_state(source: State, num_layers: int) -> State:
    state: State = {}
    take(state, "encoder.embedding.words", "bert.embeddings.word_embeddings", source)
    take(state, "encoder.embedding.segments", "bert.embeddings.token_type_embeddings", source)
    take(state, "encoder.embedding.norm", "bert.embeddings.LayerNorm", source)
    state["encoder.position.table_MD"] = source["bert.embeddings.position_embeddings.weight"]
    for i in range(num_layers):
        ours, theirs = f"encoder.blocks.{i}", f"bert.encoder.layer.{i}"
        names = [f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")]
        stack(state, f"{ours}.attention.qkv", names, source)
        take(state, f"{ours}.attention.out", f"{theirs}.attention.output.dense", source)
        take(state, f"{ours}.attention_path.norm", f"{theirs}.attention.output.LayerNorm", source)
        take(state, f"{ours}.feedforward.up", f"{theirs}.intermediate.dense", source)
        take(state, f"{ours}.feedforward.down", f"{theirs}.output.dense", source)
        take(state, f"{ours}.feedforward_path.norm", f"{theirs}.output.LayerNorm", source)
    take(state, "head.transform.dense", "cls.predictions.transform.dense", source)
    take(state, "head.transform.norm", "cls.predictions.transform.LayerNorm", source)
    state["head.weight"] = source["bert.embeddings.word_embeddings.weight"]
    state["head.bias"] = source["cls.predictions.bias"]
    return state


def test_bert_gives_the_same_logits_with_segments_and_padding() -> None:
    theirs = BertConfig(
        vocab_size=61,
        hidden_size=40,
        num_hidden_layers=3,
        num_attention_heads=5,
        intermediate_size=96,
        max_position_embeddings=32,
        attn_implementation="eager",
    )
    original = shake(BertForMaskedLM(theirs))
    config = ModelConfig(
        kind="encoder",
        vocab_size=61,
        width=40,
        num_layers=3,
        max_len=32,
        dropout=0.0,
        attention={"kind": "mha", "num_heads": 5, "bias": True},
        position={"kind": "learned"},
        feedforward={"kind": "gelu", "width": 96, "bias": True},
        norm={"kind": "layernorm", "placement": "after", "eps": 1e-12},
        embedding={"tied": "all", "norm": True, "segments": 2},
        head={"bias": True, "transform": True},
    )
    model = load(build_model(config), bert_state(original.state_dict(), 3))
    generator = torch.Generator().manual_seed(2)
    ids_BT = torch.randint(0, 61, (3, 19), generator=generator)
    segments_BT = torch.randint(0, 2, (3, 19), generator=generator)
    lengths_B = torch.tensor([19, 11, 1])
    is_real_BT = torch.arange(19) < lengths_B[:, None]
    with torch.no_grad():
        expected = original(
            ids_BT, attention_mask=is_real_BT.long(), token_type_ids=segments_BT
        ).logits
        got = model.logits(ForwardBatch(ids_BT, lengths_B=lengths_B, segments_BT=segments_BT))
    torch.testing.assert_close(got[is_real_BT], expected[is_real_BT], atol=1e-5, rtol=1e-5)
