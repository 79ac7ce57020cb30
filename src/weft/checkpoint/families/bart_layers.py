"""Layers by the names that fairseq gave them and that BART and Marian kept, and the settings that
all three share: attention with biases, a plain feed-forward layer, LayerNorm."""

from __future__ import annotations

from typing import Any

from weft.checkpoint.families.activations import ACTIVATIONS, NAMES
from weft.checkpoint.families.base import HFConfig, inner_width
from weft.checkpoint.weight_rules import WeightRule, layer, stacked_layers
from weft.core.errors import DataError
from weft.models.config import ModelConfig


def read_sizes(hf: HFConfig) -> dict[str, Any]:
    """Settings of the layers; both sides must agree but for their number."""
    hf.refuse("is_encoder_decoder", True, True)
    hf.refuse("normalize_before", False, False)
    hf.refuse("add_final_layer_norm", False, False)
    return {
        "kind": "encoder-decoder",
        "width": hf.size("d_model"),
        "num_layers": hf.size("decoder_layers"),
        "encoder_layers": hf.size("encoder_layers"),
        "max_len": hf.size("max_position_embeddings", 1024),
        "dropout": 0.0,
        "attention": {"kind": "mha", "num_heads": of_both(hf, "attention_heads"), "bias": True},
        "feedforward": {
            "kind": hf.one_of("activation_function", ACTIVATIONS, "gelu"),
            "width": of_both(hf, "ffn_dim"),
            "bias": True,
        },
        "norm": {"kind": "layernorm", "placement": "after", "eps": 1e-5},
    }


def of_both(hf: HFConfig, name: str) -> int:
    """A size that encoder and decoder share."""
    source, target = hf.size(f"encoder_{name}"), hf.size(f"decoder_{name}")
    if source != target:
        raise DataError(
            f"encoder_{name} is {source} and decoder_{name} is {target}: Weft computes models in "
            "which both are equal.",
            hf.path,
        )
    return source


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
        "activation_function": NAMES.get(config.feedforward.kind, "gelu"),
        "max_position_embeddings": config.max_len,
        "scale_embedding": config.embedding.scale,
    }


def layers(config: ModelConfig, before: str = "") -> list[WeightRule]:
    """All layers of both sides; `before`: what stands before every name."""
    found: list[WeightRule] = []
    for side, count in (("encoder", config.layers_of("encoder")), ("decoder", config.num_layers)):
        for i in range(count):
            found += block(config, f"{side}.blocks.{i}", f"{before}{side}.layers.{i}")
    return found


def block(config: ModelConfig, ours: str, theirs: str) -> list[WeightRule]:
    found = attention(config, ours, "attention", theirs, "self_attn")
    if ours.startswith("decoder"):
        found += attention(config, ours, "cross", theirs, "encoder_attn")
    found += layer(f"{ours}.feedforward.up", f"{theirs}.fc1", bias=True)
    found += layer(f"{ours}.feedforward.down", f"{theirs}.fc2", bias=True)
    return found + layer(f"{ours}.feedforward_path.norm", f"{theirs}.final_layer_norm", bias=True)


def attention(
    config: ModelConfig, ours: str, room: str, theirs: str, name: str
) -> list[WeightRule]:
    size = config.attention.num_heads * config.head_size
    names = [f"{theirs}.{name}.{part}_proj" for part in "qkv"]
    found = stacked_layers(f"{ours}.{room}.qkv", names, (size, size, size), bias=True)
    found += layer(f"{ours}.{room}.out", f"{theirs}.{name}.out_proj", bias=True)
    return found + layer(f"{ours}.{room}_path.norm", f"{theirs}.{name}_layer_norm", bias=True)
