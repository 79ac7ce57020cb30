"""BERT and all-MiniLM: architecture `bert`, for vectors of texts.

GGUF has no place for the pooler and the masked-word head; how the vectors of a text's tokens become
one is in its metadata, and under `pooling` in the config that leaves (mean or first).
"""

from __future__ import annotations

from typing import Any

from weft.checkpoint.families.base import HFConfig
from weft.checkpoint.gguf.dialect.base import Config, GGUFArchitecture, GGUFMetadata
from weft.checkpoint.gguf.dialect.llama import refuse
from weft.checkpoint.weight_rules import WeightRule, layer

ENDS = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
}
BLOCK = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
POOLINGS = {1: "mean", 2: "first"}
"""Values of pooling_type that Weft computes."""


def read_config(gguf: GGUFMetadata) -> dict[str, Any]:
    gguf.check_supported()
    gguf.refuse("attention.causal", False)
    pooling = gguf.count("pooling_type", 1)
    if pooling not in POOLINGS:
        gguf.fail("pooling_type", repr(pooling), "1 (mean) or 2 (first token)")
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "vocab_size": gguf.rows("token_embd.weight"),
        "hidden_size": gguf.size("embedding_length"),
        "num_hidden_layers": gguf.size("block_count"),
        "num_attention_heads": gguf.size("attention.head_count"),
        "intermediate_size": gguf.size("feed_forward_length"),
        "max_position_embeddings": gguf.rows("position_embd.weight"),
        "type_vocab_size": gguf.rows("token_types.weight"),
        "layer_norm_eps": gguf.number("attention.layer_norm_epsilon"),
        "position_embedding_type": "absolute",
        "add_pooling_layer": False,
        "pooling": POOLINGS[pooling],
    }


def write_config(hf: HFConfig) -> dict[str, Any]:
    refuse(hf, "hidden_act", "gelu")
    refuse(hf, "position_embedding_type", "absolute")
    refuse(hf, "is_decoder", False)
    numbers = {name: number for number, name in POOLINGS.items()}
    return {
        "bert.vocab_size": hf.size("vocab_size"),
        "bert.context_length": hf.size("max_position_embeddings", 512),
        "bert.embedding_length": hf.size("hidden_size"),
        "bert.block_count": hf.size("num_hidden_layers"),
        "bert.feed_forward_length": hf.size("intermediate_size"),
        "bert.attention.head_count": hf.size("num_attention_heads"),
        "bert.attention.layer_norm_epsilon": hf.number("layer_norm_eps", 1e-12),
        "bert.attention.causal": False,
        "bert.pooling_type": hf.one_of("pooling", numbers, "mean"),
        "tokenizer.ggml.token_type_count": hf.size("type_vocab_size", 2),
    }


def rules(config: Config) -> list[WeightRule]:
    found = [rule for name, short in ENDS.items() for rule in layer(name, short)]
    found += layer("embeddings.LayerNorm", "token_embd_norm", bias=True)
    for i in range(int(config["num_hidden_layers"])):
        for name, short in BLOCK.items():
            found += layer(f"encoder.layer.{i}.{name}", f"blk.{i}.{short}", bias=True)
    return found


ARCHITECTURE = GGUFArchitecture(
    name="bert",
    model_types=("bert",),
    read_config=read_config,
    write_config=write_config,
    rules=rules,
    ignored=(r"(bert\.)?embeddings\.position_ids", r"(bert\.)?pooler\..*", r"cls\..*"),
    prefixes=("bert.",),
)
