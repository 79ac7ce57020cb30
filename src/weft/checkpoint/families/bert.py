"""BERT and its kin: both directions, learned positions, segments, norm after. Two kinds of file:

BertModel         vectors; names begin at `embeddings`, a pooler follows (all-MiniLM-L6-v2)
BertForMaskedLM   words; names begin with `bert.`, the masked-word head is `cls.predictions`

Which one a config means is in its `architectures`. The next-sentence head is left behind.
"""

from __future__ import annotations

from typing import Any

from weft.checkpoint.families.activations import ACTIVATIONS, NAMES
from weft.checkpoint.families.base import Family, GenerationConfig, HFConfig, inner_width
from weft.checkpoint.weight_rules import WeightRule, layer, same, stacked_layers
from weft.models.config import ModelConfig

HAS_WORDS = {"BertModel": False, "BertForMaskedLM": True, "BertForPreTraining": True}


def read_config(hf: HFConfig) -> ModelConfig:
    hf.refuse("position_embedding_type", "absolute", "absolute")
    hf.refuse("is_decoder", False, False)
    hf.refuse("add_cross_attention", False, False)
    has_words = reads_words(hf)
    is_tied = hf.flag("tie_word_embeddings", True) or not has_words
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
            "head": {"bias": has_words, "transform": has_words},
            "pooler": not has_words and hf.flag("add_pooling_layer", True),
        },
        where=str(hf.path),
    )


def reads_words(hf: HFConfig) -> bool:
    """Whether the file has the masked-word head; its dense layer must be our GELU."""
    has_words = bool(hf.architecture(HAS_WORDS, "BertModel"))
    if has_words:
        hf.refuse("hidden_act", "gelu", "gelu")
    return has_words


def write_config(config: ModelConfig) -> dict[str, Any]:
    has_words = config.head.transform
    return {
        "architectures": ["BertForMaskedLM" if has_words else "BertModel"],
        "model_type": "bert",
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.attention.num_heads,
        "intermediate_size": inner_width(config),
        "hidden_act": NAMES.get(config.feedforward.kind, "gelu"),
        "max_position_embeddings": config.max_len,
        # BERT always adds a segment's vector: without segments this is no BERT
        "type_vocab_size": max(1, config.embedding.segments),
        "layer_norm_eps": config.norm.eps,
        "position_embedding_type": "absolute",
        "tie_word_embeddings": config.embedding.ties_output,
        # not a setting of transformers, which makes a fresh pooler where the file has none
        "add_pooling_layer": config.pooler,
    }


def rules(config: ModelConfig) -> list[WeightRule]:
    before = "bert." if config.head.transform else ""
    found = embeddings(f"{before}embeddings")
    for i in range(config.num_layers):
        found += block(config, f"encoder.blocks.{i}", f"{before}encoder.layer.{i}")
    if config.pooler:
        found += layer("pooler.dense", f"{before}pooler.dense", bias=True)
    return found + (words(config) if config.head.transform else [])


def embeddings(theirs: str) -> list[WeightRule]:
    found = layer("encoder.embedding.words", f"{theirs}.word_embeddings")
    found += layer("encoder.embedding.segments", f"{theirs}.token_type_embeddings")
    found += layer("encoder.embedding.norm", f"{theirs}.LayerNorm", bias=True)
    return [*found, same("encoder.position.table_MD", f"{theirs}.position_embeddings.weight")]


def block(config: ModelConfig, ours: str, theirs: str) -> list[WeightRule]:
    size = config.attention.num_heads * config.head_size
    names = [f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")]
    found = stacked_layers(f"{ours}.attention.qkv", names, (size, size, size), bias=True)
    found += layer(f"{ours}.attention.out", f"{theirs}.attention.output.dense", bias=True)
    found += layer(f"{ours}.attention_path.norm", f"{theirs}.attention.output.LayerNorm", bias=True)
    found += layer(f"{ours}.feedforward.up", f"{theirs}.intermediate.dense", bias=True)
    found += layer(f"{ours}.feedforward.down", f"{theirs}.output.dense", bias=True)
    return found + layer(f"{ours}.feedforward_path.norm", f"{theirs}.output.LayerNorm", bias=True)


def words(config: ModelConfig) -> list[WeightRule]:
    """The masked-word head."""
    theirs = "cls.predictions"
    found = layer("head.transform.dense", f"{theirs}.transform.dense", bias=True)
    found += layer("head.transform.norm", f"{theirs}.transform.LayerNorm", bias=True)
    if config.embedding.ties_output:
        return [*found, same("head.bias", f"{theirs}.bias")]
    # with a table of its own, the bias that is added is the table's; the other is idle
    names = (f"{theirs}.decoder.bias", f"{theirs}.bias")
    bias = WeightRule(
        "head.bias", names, lambda parts: parts[0], lambda whole: [whole, whole.clone()]
    )
    return [*found, *layer("head", f"{theirs}.decoder"), bias]


def read_generation(hf: HFConfig) -> GenerationConfig:
    """`pooling` is a word of GGUF files; a folder says it beside its config.json."""
    return GenerationConfig(
        pooling=hf.one_of("pooling", {"mean": "mean", "first": "first"}, "mean")
    )


FAMILY = Family(
    name="bert",
    model_types=("bert",),
    read_config=read_config,
    rules=rules,
    write_config=write_config,
    ignored=(
        r"(bert\.)?embeddings\.position_ids",
        # written with masked-word models, which never call it
        r"bert\.pooler\.dense\.(weight|bias)",
        r"cls\.seq_relationship\.(weight|bias)",
        r"cls\.predictions\.decoder\.(weight|bias)",
    ),
    prefixes=("bert.",),
    # as TensorFlow named them, in files of 2018 and 2019
    legacy_suffixes={".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"},
    read_generation=read_generation,
)
