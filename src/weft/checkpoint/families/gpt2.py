"""GPT-2 and others of its layout: learned positions, pre-LayerNorm, biases everywhere.

Hugging Face stores matrices as [in, out], GGUF (architecture `gpt2`) as [out, in], as Weft does;
the fused q, k, v are in Weft's order.
"""

from __future__ import annotations

from typing import Any

from weft.checkpoint.families.base import Family, inner_width
from weft.checkpoint.families.generation_config import decoder_generation
from weft.checkpoint.families.gguf_metadata import (
    GGUFArchitecture,
    GGUFMetadata,
    HFValues,
    check_writable,
    write_gguf_sizes,
)
from weft.checkpoint.families.hf_config import ACTIVATIONS, HF_ACTIVATIONS, HFConfig
from weft.checkpoint.weight_rules import WeightRule, layer, layers, same, transposed
from weft.models.config import ModelConfig


def read_hf(hf: HFConfig) -> ModelConfig:
    hf.require("scale_attn_by_inverse_layer_idx", False, False)
    hf.require("add_cross_attention", False, False)
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


def write_hf(config: ModelConfig) -> dict[str, Any]:
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
        "activation_function": HF_ACTIVATIONS.get(config.feedforward.kind, "gelu_new"),
        "layer_norm_epsilon": config.norm.eps,
        "scale_attn_weights": heads.scale != 1.0,
        "tie_word_embeddings": config.embedding.tied != "none",
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout),
    }


def rules(config: ModelConfig) -> list[WeightRule]:
    rules = layer("decoder.embedding.words", "transformer.wte")
    rules += [same("decoder.position.table_MD", "transformer.wpe.weight")]
    rules += layer("decoder.norm", "transformer.ln_f", bias=True)
    rules += layer("head", "lm_head") if config.embedding.tied == "none" else []
    for i in range(config.num_layers):
        weft, hf = f"decoder.blocks.{i}", f"transformer.h.{i}"
        rules += layer(f"{weft}.attention_path.norm", f"{hf}.ln_1", bias=True)
        rules += layer(f"{weft}.feedforward_path.norm", f"{hf}.ln_2", bias=True)
        rules += transposed_layer(f"{weft}.attention.qkv", f"{hf}.attn.c_attn")
        rules += transposed_layer(f"{weft}.attention.out", f"{hf}.attn.c_proj")
        rules += transposed_layer(f"{weft}.feedforward.up", f"{hf}.mlp.c_fc")
        rules += transposed_layer(f"{weft}.feedforward.down", f"{hf}.mlp.c_proj")
    return rules


def transposed_layer(target: str, file: str) -> list[WeightRule]:
    """Weight and bias of a layer of which one side is a Conv1D of `transformers`."""
    weight = transposed(f"{target}.weight", f"{file}.weight")
    return [weight, same(f"{target}.bias", f"{file}.bias")]


GGUF_SIZES = {
    "n_positions": "context_length",
    "n_embd": "embedding_length",
    "n_layer": "block_count",
    "n_inner": "feed_forward_length",
    "n_head": "attention.head_count",
}
GGUF_NORMS = {"ln_1": "attn_norm", "ln_2": "ffn_norm"}
GGUF_MATRICES = {
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}


def read_gguf(gguf: GGUFMetadata) -> dict[str, Any]:
    gguf.check_supported()
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": "gelu_new",
        "vocab_size": gguf.rows("token_embd.weight"),
        **gguf.sizes(GGUF_SIZES),
        "layer_norm_epsilon": gguf.number("attention.layer_norm_epsilon"),
        "tie_word_embeddings": not gguf.has("output.weight"),
    }


def write_gguf(hf: HFConfig) -> dict[str, Any]:
    # two other names of the same function
    if hf.get("activation_function") not in ("gelu_pytorch_tanh", "gelu_fast"):
        check_writable(hf, "activation_function", "gelu_new")
    check_writable(hf, "scale_attn_weights", True)
    check_writable(hf, "scale_attn_by_inverse_layer_idx", False)
    inner = 4 * hf.size("n_embd")
    return {
        "gpt2.vocab_size": hf.size("vocab_size"),
        **write_gguf_sizes(hf, "gpt2", GGUF_SIZES, n_positions=1024, n_inner=inner),
        "gpt2.attention.layer_norm_epsilon": hf.number("layer_norm_epsilon", 1e-5),
    }


def gguf_rules(values: HFValues) -> list[WeightRule]:
    rules = layer("transformer.wte", "token_embd")
    rules += layer("transformer.wpe", "position_embd")
    rules += layer("transformer.ln_f", "output_norm", bias=True)
    rules += [] if values.get("tie_word_embeddings", True) else layer("lm_head", "output")
    for i in range(int(values["n_layer"])):
        hf, gguf = f"transformer.h.{i}", f"blk.{i}"
        rules += layers(hf, gguf, GGUF_NORMS, bias=True)
        for name, short in GGUF_MATRICES.items():
            rules += transposed_layer(f"{hf}.{name}", f"{gguf}.{short}")
    return rules


# causal masks that old files contain beside the weights
IGNORED = (r".*\.attn\.(masked_)?bias", r"lm_head\.weight")
FAMILY = Family(
    name="gpt2",
    model_types=("gpt2",),
    read_hf=read_hf,
    rules=rules,
    write_hf=write_hf,
    ignored=IGNORED,
    prefixes=("transformer.",),
    read_generation=decoder_generation,
    gguf=GGUFArchitecture(
        name="gpt2",
        read_gguf=read_gguf,
        write_gguf=write_gguf,
        rules=gguf_rules,
        dropped=IGNORED,
    ),
)
