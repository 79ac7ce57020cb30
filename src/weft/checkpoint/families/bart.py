"""BART: learned positions after two unused rows, a norm on the embedding, post-norm, one embedding
for source, target and output. No GGUF architecture.

    BartModel                      names begin at `shared`; no bias on the logits (bart-base)
    BartForConditionalGeneration   names begin with `model.`; final_logits_bias is the head's bias

Also what BART shares with Marian and fairseq, from which its layer names come: attention with
biases, a feed-forward layer without a gate, LayerNorm.
"""

from __future__ import annotations

from typing import Any

from weft.checkpoint.families.base import Family, inner_width
from weft.checkpoint.families.generation_config import encoder_decoder_generation
from weft.checkpoint.families.hf_config import ACTIVATIONS, HF_ACTIVATIONS, HFConfig
from weft.checkpoint.weight_rules import WeightRule, converted, layer, same, stacked_layers
from weft.core.errors import DataError
from weft.models.config import ModelConfig

HAS_LOGITS_BIAS = {"BartModel": False, "BartForConditionalGeneration": True}
POSITION_OFFSET = 2
"""Unused rows of the position table, once reserved for padding."""


def read_hf(hf: HFConfig) -> ModelConfig:
    hf.require("normalize_embedding", True, True)
    hf.require("static_position_embeddings", False, False)
    hf.require("tie_word_embeddings", True, True)
    return ModelConfig.from_dict(
        {
            **read_sizes(hf),
            "vocab_size": hf.size("vocab_size"),
            "position": {"kind": "learned", "offset": POSITION_OFFSET},
            "embedding": {
                "tied": "all",
                "norm": True,
                "scale": hf.flag("scale_embedding", False),
            },
            "head": {"bias": hf.architecture(HAS_LOGITS_BIAS, "BartForConditionalGeneration")},
        },
        where=str(hf.path),
    )


def write_hf(config: ModelConfig) -> dict[str, Any]:
    name = "BartForConditionalGeneration" if config.head.bias else "BartModel"
    return {
        "architectures": [name],
        "model_type": "bart",
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": True,
        **write_sizes(config),
    }


def rules(config: ModelConfig) -> list[WeightRule]:
    prefix = "model." if config.head.bias else ""
    rules = layer("encoder.embedding.words", f"{prefix}shared")
    if config.head.bias:
        rules.append(logits_bias_rule())
    for side in ("encoder", "decoder"):
        hf = f"{prefix}{side}"
        rules.append(same(f"{side}.position.table_MD", f"{hf}.embed_positions.weight"))
        rules += layer(f"{side}.embedding.norm", f"{hf}.layernorm_embedding", bias=True)
    return rules + stack_rules(config, prefix)


def logits_bias_rule() -> WeightRule:
    """[1, V] in the file."""
    return converted(
        "head.bias", "final_logits_bias", lambda row: row.flatten(), lambda bias: bias[None]
    )


def read_sizes(hf: HFConfig) -> dict[str, Any]:
    """Settings of the layers of BART and Marian; both stacks may differ only in their depth."""
    hf.require("is_encoder_decoder", True, True)
    hf.require("normalize_before", False, False)
    hf.require("add_final_layer_norm", False, False)
    return {
        "kind": "encoder-decoder",
        "width": hf.size("d_model"),
        "num_layers": hf.size("decoder_layers"),
        "encoder_layers": hf.size("encoder_layers"),
        "max_len": hf.size("max_position_embeddings", 1024),
        "dropout": 0.0,
        "attention": {
            "kind": "mha",
            "num_heads": shared_size(hf, "attention_heads"),
            "bias": True,
        },
        "feedforward": {
            "kind": hf.one_of("activation_function", ACTIVATIONS, "gelu"),
            "width": shared_size(hf, "ffn_dim"),
            "bias": True,
        },
        "norm": {"kind": "layernorm", "placement": "after", "eps": 1e-5},
    }


def shared_size(hf: HFConfig, key: str) -> int:
    """A size that must be the same in encoder and decoder."""
    encoder, decoder = hf.size(f"encoder_{key}"), hf.size(f"decoder_{key}")
    if encoder != decoder:
        raise DataError(
            f"encoder_{key} is {encoder} and decoder_{key} is {decoder}: Weft supports models in "
            "which both are equal.",
            hf.path,
        )
    return encoder


def write_sizes(config: ModelConfig) -> dict[str, Any]:
    width, heads = inner_width(config), config.attention.num_heads
    return {
        "is_encoder_decoder": True,
        "d_model": config.width,
        "encoder_layers": config.layers_of("encoder"),
        "decoder_layers": config.num_layers,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": width,
        "decoder_ffn_dim": width,
        "activation_function": HF_ACTIVATIONS.get(config.feedforward.kind, "gelu"),
        "max_position_embeddings": config.max_len,
        "scale_embedding": config.embedding.scale,
    }


def stack_rules(config: ModelConfig, prefix: str = "") -> list[WeightRule]:
    """All layers of encoder and decoder; `prefix` of every name in the file."""
    rules: list[WeightRule] = []
    for side, count in (("encoder", config.layers_of("encoder")), ("decoder", config.num_layers)):
        for i in range(count):
            rules += block_rules(config, f"{side}.blocks.{i}", f"{prefix}{side}.layers.{i}")
    return rules


def block_rules(config: ModelConfig, weft: str, hf: str) -> list[WeightRule]:
    rules = attention_rules(config, f"{weft}.attention", f"{hf}.self_attn")
    if weft.startswith("decoder"):
        rules += attention_rules(config, f"{weft}.cross", f"{hf}.encoder_attn")
    rules += layer(f"{weft}.feedforward.up", f"{hf}.fc1", bias=True)
    rules += layer(f"{weft}.feedforward.down", f"{hf}.fc2", bias=True)
    return rules + layer(f"{weft}.feedforward_path.norm", f"{hf}.final_layer_norm", bias=True)


def attention_rules(config: ModelConfig, weft: str, hf: str) -> list[WeightRule]:
    """An attention layer and its norm."""
    size = config.attention.num_heads * config.head_size
    names = [f"{hf}.{part}_proj" for part in "qkv"]
    rules = stacked_layers(f"{weft}.qkv", names, (size, size, size), bias=True)
    rules += layer(f"{weft}.out", f"{hf}.out_proj", bias=True)
    return rules + layer(f"{weft}_path.norm", f"{hf}_layer_norm", bias=True)


FAMILY = Family(
    name="bart",
    model_types=("bart",),
    read_hf=read_hf,
    rules=rules,
    write_hf=write_hf,
    ignored=(
        r"lm_head\.weight",
        r"(model\.)?(encoder|decoder)\.embed_tokens\.weight",
        r"(model\.)?(encoder|decoder)\.version",
    ),
    prefixes=("model.",),
    read_generation=encoder_decoder_generation,
)
