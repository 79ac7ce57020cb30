"""BERT and its relatives: bidirectional, learned positions, segments, post-norm. Two kinds of file:

    BertModel         embeddings; names begin at `embeddings`, with a pooler (all-MiniLM-L6-v2)
    BertForMaskedLM   masked LM; names begin with `bert.`, the head is `cls.predictions`

`architectures` in a config.json says which. The next-sentence head is not read.

GGUF (architecture `bert`) stores neither the pooler nor the masked-LM head. How the vectors of a
text's tokens become one is in its metadata; it is read into the key `pooling` (mean or first),
which no config.json has.
"""

from __future__ import annotations

from typing import Any

from weft.checkpoint.families.base import Family, inner_width
from weft.checkpoint.families.generation_config import GenerationConfig
from weft.checkpoint.families.gguf_metadata import (
    GGUFArchitecture,
    GGUFMetadata,
    HFValues,
    check_writable,
    write_gguf_sizes,
)
from weft.checkpoint.families.hf_config import ACTIVATIONS, HF_ACTIVATIONS, HFConfig
from weft.checkpoint.weight_rules import WeightRule, layer, layers, same, stacked_layers
from weft.core.errors import shown
from weft.models.config import ModelConfig

HAS_LM_HEAD = {"BertModel": False, "BertForMaskedLM": True, "BertForPreTraining": True}


def read_hf(hf: HFConfig) -> ModelConfig:
    hf.require("position_embedding_type", "absolute", "absolute")
    hf.require("is_decoder", False, False)
    hf.require("add_cross_attention", False, False)
    has_head = read_has_head(hf)
    is_tied = hf.flag("tie_word_embeddings", True) or not has_head
    return ModelConfig.from_dict(
        {
            "kind": "encoder",
            "vocab_size": hf.size("vocab_size"),
            "width": hf.size("hidden_size"),
            "num_layers": hf.size("num_hidden_layers"),
            "max_len": hf.size("max_position_embeddings", 512),
            "dropout": 0.0,
            "attention": {
                "kind": "mha",
                "num_heads": hf.size("num_attention_heads"),
                "bias": True,
            },
            "position": {"kind": "learned"},
            "feedforward": {
                "kind": hf.one_of("hidden_act", ACTIVATIONS, "gelu"),
                "width": hf.size("intermediate_size"),
                "bias": True,
            },
            "norm": {
                "kind": "layernorm",
                "placement": "after",
                "eps": hf.number("layer_norm_eps", 1e-12),
            },
            "embedding": {
                "tied": "all" if is_tied else "none",
                "norm": True,
                "segments": hf.size("type_vocab_size", 2),
            },
            "head": {"bias": has_head, "transform": has_head},
            "pooler": not has_head and hf.flag("add_pooling_layer", True),
        },
        where=str(hf.path),
    )


def read_has_head(hf: HFConfig) -> bool:
    """Whether the file has the masked-LM head, whose dense layer is a GELU in Weft."""
    has_head = bool(hf.architecture(HAS_LM_HEAD, "BertModel"))
    if has_head:
        hf.require("hidden_act", "gelu", "gelu")
    return has_head


def write_hf(config: ModelConfig) -> dict[str, Any]:
    has_head = config.head.transform
    return {
        "architectures": ["BertForMaskedLM" if has_head else "BertModel"],
        "model_type": "bert",
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.attention.num_heads,
        "intermediate_size": inner_width(config),
        "hidden_act": HF_ACTIVATIONS.get(config.feedforward.kind, "gelu"),
        "max_position_embeddings": config.max_len,
        # BERT always adds a segment embedding: a model without segments is not a BERT
        "type_vocab_size": max(1, config.embedding.segments),
        "layer_norm_eps": config.norm.eps,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": config.embedding.ties_output,
        # not a setting of transformers, which creates a pooler where the file has none
        "add_pooling_layer": config.pooler,
    }


def rules(config: ModelConfig) -> list[WeightRule]:
    prefix = "bert." if config.head.transform else ""
    rules = embedding_rules(f"{prefix}embeddings")
    for i in range(config.num_layers):
        rules += block_rules(config, f"encoder.blocks.{i}", f"{prefix}encoder.layer.{i}")
    if config.pooler:
        rules += layer("pooler.dense", f"{prefix}pooler.dense", bias=True)
    return rules + (head_rules(config) if config.head.transform else [])


def embedding_rules(hf: str) -> list[WeightRule]:
    rules = layer("encoder.embedding.words", f"{hf}.word_embeddings")
    rules += layer("encoder.embedding.segments", f"{hf}.token_type_embeddings")
    rules += layer("encoder.embedding.norm", f"{hf}.LayerNorm", bias=True)
    return [*rules, same("encoder.position.table_MD", f"{hf}.position_embeddings.weight")]


BLOCK = {
    "attention.out": "attention.output.dense",
    "attention_path.norm": "attention.output.LayerNorm",
    "feedforward.up": "intermediate.dense",
    "feedforward.down": "output.dense",
    "feedforward_path.norm": "output.LayerNorm",
}


def block_rules(config: ModelConfig, weft: str, hf: str) -> list[WeightRule]:
    size = config.attention.num_heads * config.head_size
    names = [f"{hf}.attention.self.{part}" for part in ("query", "key", "value")]
    rules = stacked_layers(f"{weft}.attention.qkv", names, (size, size, size), bias=True)
    return rules + layers(weft, hf, BLOCK, bias=True)


def head_rules(config: ModelConfig) -> list[WeightRule]:
    """The masked-LM head."""
    hf = "cls.predictions"
    rules = layer("head.transform.dense", f"{hf}.transform.dense", bias=True)
    rules += layer("head.transform.norm", f"{hf}.transform.LayerNorm", bias=True)
    if config.embedding.ties_output:
        return [*rules, same("head.bias", f"{hf}.bias")]
    # without tied embeddings transformers adds the decoder's bias and never uses the other
    names = (f"{hf}.decoder.bias", f"{hf}.bias")
    bias = WeightRule(
        "head.bias", names, lambda parts: parts[0], lambda whole: [whole, whole.clone()]
    )
    return [*rules, *layer("head", f"{hf}.decoder"), bias]


def read_generation(hf: HFConfig) -> GenerationConfig:
    """`pooling` comes from GGUF files; a folder has it in a file of sentence-transformers."""
    pooling = hf.one_of("pooling", {"mean": "mean", "first": "first"}, "mean")
    return GenerationConfig(pooling=pooling)


GGUF_SIZES = {
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
}
GGUF_EMBEDDINGS = {
    "word_embeddings": "token_embd",
    "position_embeddings": "position_embd",
    "token_type_embeddings": "token_types",
}
GGUF_BLOCK = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
GGUF_POOLINGS = {1: "mean", 2: "first"}
"""Values of pooling_type that Weft supports."""


def read_gguf(gguf: GGUFMetadata) -> dict[str, Any]:
    gguf.check_supported()
    gguf.require("attention.causal", False)
    pooling = gguf.count("pooling_type", 1)
    if pooling not in GGUF_POOLINGS:
        gguf.fail("pooling_type", shown(pooling), "1 (mean) or 2 (first token)")
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "vocab_size": gguf.rows("token_embd.weight"),
        **gguf.sizes(GGUF_SIZES),
        "max_position_embeddings": gguf.rows("position_embd.weight"),
        "type_vocab_size": gguf.rows("token_types.weight"),
        "layer_norm_eps": gguf.number("attention.layer_norm_epsilon"),
        "position_embedding_type": "absolute",
        "add_pooling_layer": False,
        "pooling": GGUF_POOLINGS[pooling],
    }


def write_gguf(hf: HFConfig) -> dict[str, Any]:
    check_writable(hf, "hidden_act", "gelu")
    check_writable(hf, "position_embedding_type", "absolute")
    check_writable(hf, "is_decoder", False)
    pooling_types = {name: number for number, name in GGUF_POOLINGS.items()}
    return {
        "bert.vocab_size": hf.size("vocab_size"),
        "bert.context_length": hf.size("max_position_embeddings", 512),
        **write_gguf_sizes(hf, "bert", GGUF_SIZES),
        "bert.attention.layer_norm_epsilon": hf.number("layer_norm_eps", 1e-12),
        "bert.attention.causal": False,
        "bert.pooling_type": hf.one_of("pooling", pooling_types, "mean"),
        "tokenizer.ggml.token_type_count": hf.size("type_vocab_size", 2),
    }


def gguf_rules(values: HFValues) -> list[WeightRule]:
    rules = [
        rule
        for name, short in GGUF_EMBEDDINGS.items()
        for rule in layer(f"embeddings.{name}", short)
    ]
    rules += layer("embeddings.LayerNorm", "token_embd_norm", bias=True)
    for i in range(int(values["num_hidden_layers"])):
        rules += layers(f"encoder.layer.{i}", f"blk.{i}", GGUF_BLOCK, bias=True)
    return rules


FAMILY = Family(
    name="bert",
    model_types=("bert",),
    read_hf=read_hf,
    rules=rules,
    write_hf=write_hf,
    ignored=(
        r"(bert\.)?embeddings\.position_ids",
        # written with masked-LM models, which never call it
        r"bert\.pooler\.dense\.(weight|bias)",
        r"cls\.seq_relationship\.(weight|bias)",
        r"cls\.predictions\.decoder\.(weight|bias)",
    ),
    prefixes=("bert.",),
    # TensorFlow's names, in files of 2018 and 2019
    legacy_suffixes={".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"},
    read_generation=read_generation,
    gguf=GGUFArchitecture(
        name="bert",
        read_gguf=read_gguf,
        write_gguf=write_gguf,
        rules=gguf_rules,
        dropped=(r"(bert\.)?embeddings\.position_ids", r"(bert\.)?pooler\..*", r"cls\..*"),
    ),
)
