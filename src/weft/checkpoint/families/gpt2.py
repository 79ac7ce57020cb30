"""GPT-2, and all of its layout: learned positions, LayerNorm before, biases everywhere.

Their matrices are kept as [in, out]; their fused q, k, v are in our order.
"""

from __future__ import annotations

from typing import Any

from weft.checkpoint.families import llama
from weft.checkpoint.families.activations import ACTIVATIONS, NAMES
from weft.checkpoint.families.base import Family, HFConfig, inner_width
from weft.checkpoint.weight_rules import WeightRule, layer, same, transposed
from weft.models.config import ModelConfig


def read_config(hf: HFConfig) -> ModelConfig:
    hf.refuse("scale_attn_by_inverse_layer_idx", False, False)
    hf.refuse("add_cross_attention", False, False)
    width = hf.size("n_embd")
    return ModelConfig.from_dict(
        {
            "kind": "decoder",
            "vocab_size": hf.size("vocab_size"),
            "width": width,
            "num_layers": hf.size("n_layer"),
            "max_len": hf.size("n_positions", 1024),
            "dropout": 0.0,
            "attention": {
                "kind": "mha",
                "num_heads": hf.size("n_head"),
                "bias": True,
                "scale": None if hf.flag("scale_attn_weights", True) else 1.0,
            },
            "position": {"kind": "learned"},
            "feedforward": {
                "kind": hf.one_of("activation_function", ACTIVATIONS, "gelu_new"),
                "width": hf.size("n_inner", 4 * width),
            },
            "norm": {"kind": "layernorm", "eps": hf.number("layer_norm_epsilon", 1e-5)},
            "embedding": {"tied": "all" if hf.flag("tie_word_embeddings", True) else "none"},
        },
        where=str(hf.path),
    )


def write_config(config: ModelConfig) -> dict[str, Any]:
    heads = config.attention
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_embd": config.width,
        "n_inner": inner_width(config),
        "n_layer": config.num_layers,
        "n_head": heads.num_heads,
        "n_positions": config.max_len,
        "activation_function": NAMES.get(config.feedforward.kind, "gelu_new"),
        "layer_norm_epsilon": config.norm.eps,
        "scale_attn_weights": heads.scale != 1.0,
        "tie_word_embeddings": config.embedding.tied != "none",
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout),
    }


def rules(config: ModelConfig) -> list[WeightRule]:
    found = layer("decoder.embedding.words", "transformer.wte")
    found += [same("decoder.position.table_MD", "transformer.wpe.weight")]
    found += layer("decoder.norm", "transformer.ln_f", bias=True)
    found += layer("head", "lm_head") if config.embedding.tied == "none" else []
    for i in range(config.num_layers):
        ours, theirs = f"decoder.blocks.{i}", f"transformer.h.{i}"
        found += layer(f"{ours}.attention_path.norm", f"{theirs}.ln_1", bias=True)
        found += layer(f"{ours}.feedforward_path.norm", f"{theirs}.ln_2", bias=True)
        found += product(f"{ours}.attention.qkv", f"{theirs}.attn.c_attn")
        found += product(f"{ours}.attention.out", f"{theirs}.attn.c_proj")
        found += product(f"{ours}.feedforward.up", f"{theirs}.mlp.c_fc")
        found += product(f"{ours}.feedforward.down", f"{theirs}.mlp.c_proj")
    return found


def product(ours: str, theirs: str) -> list[WeightRule]:
    """Matrix and bias of one of their Conv1D layers."""
    weight = transposed(f"{ours}.weight", f"{theirs}.weight")
    return [weight, same(f"{ours}.bias", f"{theirs}.bias")]


FAMILY = Family(
    name="gpt2",
    model_types=("gpt2",),
    read_config=read_config,
    rules=rules,
    write_config=write_config,
    # causal masks that old files keep beside the weights
    ignored=(r".*\.attn\.(masked_)?bias", r"lm_head\.weight"),
    prefixes=("transformer.",),
    read_generation=llama.read_generation,
)
