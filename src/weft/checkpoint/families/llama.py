"""Llama 2 and 3, SmolLM2, and all of the same layout: rotary halves, RMSNorm before, SwiGLU.

Their q, k and v are one product in ours, and so are gate and up.
"""

from __future__ import annotations

from typing import Any

from weft.checkpoint.families.base import Family, GenerationConfig, HFConfig, has_bias, inner_width
from weft.checkpoint.families.generation_config import ids
from weft.checkpoint.families.rope import read_rope, write_rope
from weft.checkpoint.weight_rules import WeightRule, layer, stacked_layers
from weft.models.config import ModelConfig


def read_config(hf: HFConfig) -> ModelConfig:
    hf.refuse("hidden_act", "silu")
    hf.refuse("pretraining_tp", 1)
    heads = hf.size("num_attention_heads")
    return ModelConfig.from_dict(
        {
            "kind": "decoder",
            "vocab_size": hf.size("vocab_size"),
            "width": hf.size("hidden_size"),
            "num_layers": hf.size("num_hidden_layers"),
            "max_len": hf.size("max_position_embeddings", 2048),
            "dropout": 0.0,
            "attention": {
                "kind": "gqa",
                "num_heads": heads,
                "num_kv_heads": hf.size("num_key_value_heads", heads),
                "head_size": hf.get("head_dim"),
                "bias": hf.flag("attention_bias", False),
            },
            "position": read_rope(hf),
            "feedforward": {
                "kind": "swiglu",
                "width": hf.size("intermediate_size"),
                "bias": hf.flag("mlp_bias", False),
            },
            "norm": {"kind": "rmsnorm", "eps": hf.number("rms_norm_eps", 1e-6)},
            "embedding": {"tied": "all" if hf.flag("tie_word_embeddings", False) else "none"},
        },
        where=str(hf.path),
    )


def write_config(config: ModelConfig) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "mlp_bias": has_bias(config),
        "attention_bias": config.attention.bias,
        **common_config(config),
    }


def common_config(config: ModelConfig) -> dict[str, Any]:
    """What all families of this layout write alike."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "intermediate_size": inner_width(config),
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.attention.num_heads,
        "num_key_value_heads": config.attention.kv_heads,
        "head_dim": config.head_size,
        "max_position_embeddings": config.max_len,
        "rms_norm_eps": config.norm.eps,
        "tie_word_embeddings": config.embedding.tied != "none",
        **write_rope(config),
    }


def rules(config: ModelConfig) -> list[WeightRule]:
    found = ends(config)
    for i in range(config.num_layers):
        ours, theirs = f"decoder.blocks.{i}", f"model.layers.{i}"
        found += attention(config, f"{ours}.attention", f"{theirs}.self_attn")
        found += layer(f"{ours}.attention_path.norm", f"{theirs}.input_layernorm")
        found += layer(f"{ours}.feedforward_path.norm", f"{theirs}.post_attention_layernorm")
        found += gated(config, f"{ours}.feedforward", f"{theirs}.mlp")
    return found


def ends(config: ModelConfig) -> list[WeightRule]:
    """Words, the last norm, and the output table where it is another one."""
    found = layer("decoder.embedding.words", "model.embed_tokens")
    found += layer("decoder.norm", "model.norm")
    return found + (layer("head", "lm_head") if config.embedding.tied == "none" else [])


def attention(config: ModelConfig, ours: str, theirs: str) -> list[WeightRule]:
    heads, size = config.attention, config.head_size
    sizes = (heads.num_heads * size, heads.kv_heads * size, heads.kv_heads * size)
    names = [f"{theirs}.{part}_proj" for part in "qkv"]
    found = stacked_layers(f"{ours}.qkv", names, sizes, heads.bias)
    out_bias = heads.bias if heads.out_bias is None else heads.out_bias
    return found + layer(f"{ours}.out", f"{theirs}.o_proj", out_bias)


def gated(config: ModelConfig, ours: str, theirs: str) -> list[WeightRule]:
    """A gated feed-forward layer."""
    width, bias = inner_width(config), has_bias(config)
    names = [f"{theirs}.{part}_proj" for part in ("gate", "up")]
    found = stacked_layers(f"{ours}.gate_up", names, (width, width), bias)
    return found + layer(f"{ours}.down", f"{theirs}.down_proj", bias)


def read_generation(hf: HFConfig) -> GenerationConfig:
    """End tokens: one id or a list of them."""
    return GenerationConfig(ends=tuple(ids(hf, "eos_token_id")))


FAMILY = Family(
    name="llama",
    model_types=("llama",),
    read_config=read_config,
    rules=rules,
    write_config=write_config,
    ignored=(r".*rotary_emb\.inv_freq", r"lm_head\.weight"),
    prefixes=("model.",),
    read_generation=read_generation,
)
