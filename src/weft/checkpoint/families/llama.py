"""Llama 2 and 3, SmolLM2, and others of the same layout: RoPE in halves, pre-RMSNorm, SwiGLU.

Their q, k and v are one matrix in Weft, and so are gate and up.

GGUF (architecture `llama`, also for Mistral) has the rows of q and k in another order: Hugging Face
rotates the first half of a head against the second, llama.cpp each number against its neighbor, so
that the halves of every head are interleaved there. No other architecture does this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.checkpoint.families.base import Family, has_bias, inner_width
from weft.checkpoint.families.generation_config import decoder_generation
from weft.checkpoint.families.gguf_metadata import (
    ROPE_DIVISORS,
    GGUFArchitecture,
    GGUFMetadata,
    HFValues,
    check_writable,
    read_gguf_rope,
    write_gguf_rope,
    write_gguf_sizes,
    write_llama3_divisors,
)
from weft.checkpoint.families.hf_config import HFConfig, read_max_len, read_rope, write_rope
from weft.checkpoint.weight_rules import (
    Shape,
    WeightRule,
    converted,
    layer,
    layers,
    same,
    stacked_layers,
)
from weft.models.config import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor

# Hugging Face


def read_hf(hf: HFConfig) -> ModelConfig:
    hf.require("hidden_act", "silu")
    hf.require("pretraining_tp", 1)
    heads = hf.size("num_attention_heads")
    return ModelConfig.from_dict(
        {
            "kind": "decoder",
            "vocab_size": hf.size("vocab_size"),
            "width": hf.size("hidden_size"),
            "num_layers": hf.size("num_hidden_layers"),
            "max_len": read_max_len(hf),
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


def write_hf(config: ModelConfig) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "mlp_bias": has_bias(config),
        "attention_bias": config.attention.bias,
        **write_common(config),
    }


def write_common(config: ModelConfig) -> dict[str, Any]:
    """Values that all families of this layout have."""
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
    rules = embedding_rules(config)
    for i in range(config.num_layers):
        weft, hf = f"decoder.blocks.{i}", f"model.layers.{i}"
        rules += attention_rules(config, f"{weft}.attention", f"{hf}.self_attn")
        rules += layer(f"{weft}.attention_path.norm", f"{hf}.input_layernorm")
        rules += layer(f"{weft}.feedforward_path.norm", f"{hf}.post_attention_layernorm")
        rules += feedforward_rules(config, f"{weft}.feedforward", f"{hf}.mlp")
    return rules


def embedding_rules(config: ModelConfig) -> list[WeightRule]:
    """Word embedding, last norm and, unless it is tied, the LM head."""
    rules = layer("decoder.embedding.words", "model.embed_tokens")
    rules += layer("decoder.norm", "model.norm")
    return rules + (layer("head", "lm_head") if config.embedding.tied == "none" else [])


def attention_rules(config: ModelConfig, weft: str, hf: str) -> list[WeightRule]:
    heads, size = config.attention, config.head_size
    sizes = (heads.num_heads * size, heads.kv_heads * size, heads.kv_heads * size)
    names = [f"{hf}.{part}_proj" for part in "qkv"]
    rules = stacked_layers(f"{weft}.qkv", names, sizes, heads.bias)
    return rules + layer(f"{weft}.out", f"{hf}.o_proj", heads.has_out_bias)


def feedforward_rules(config: ModelConfig, weft: str, hf: str) -> list[WeightRule]:
    """A gated feed-forward layer."""
    width, bias = inner_width(config), has_bias(config)
    names = [f"{hf}.{part}_proj" for part in ("gate", "up")]
    rules = stacked_layers(f"{weft}.gate_up", names, (width, width), bias)
    return rules + layer(f"{weft}.down", f"{hf}.down_proj", bias)


def head_norm_rules(weft: str, hf: str) -> list[WeightRule]:
    """QK-norm of families that have it."""
    rules = layer(f"{weft}.query_norm", f"{hf}.q_norm")
    return rules + layer(f"{weft}.key_norm", f"{hf}.k_norm")


# GGUF: tables {Hugging Face: GGUF}, shared with the families of the same layout

GGUF_SIZES = {
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
}
GGUF_EMBEDDINGS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
GGUF_ATTENTION = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
}
GGUF_FEEDFORWARD = {
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
GGUF_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
GGUF_HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}


def read_gguf(gguf: GGUFMetadata) -> dict[str, Any]:
    gguf.check_no_window()
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        **read_gguf_common(gguf),
        "attention_bias": gguf.has("blk.0.attn_q.bias"),
        "mlp_bias": gguf.has("blk.0.ffn_up.bias"),
    }


def read_gguf_common(gguf: GGUFMetadata) -> dict[str, Any]:
    """Values that all architectures of this layout have."""
    gguf.check_supported()
    sizes = gguf.sizes(GGUF_SIZES)
    heads = sizes["num_attention_heads"]
    head_size = gguf.size("attention.key_length", max(1, sizes["hidden_size"] // heads))
    gguf.require("attention.value_length", head_size)
    return {
        "vocab_size": gguf.rows("token_embd.weight"),
        **sizes,
        "num_key_value_heads": gguf.size("attention.head_count_kv", heads),
        "head_dim": head_size,
        "rms_norm_eps": gguf.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": not gguf.has("output.weight"),
        **read_gguf_rope(gguf, head_size),
    }


def write_gguf(hf: HFConfig) -> dict[str, Any]:
    check_writable(hf, "hidden_act", "silu")
    check_writable(hf, "sliding_window", None)
    return {
        **write_gguf_common(hf, "llama", has_divisors=True),
        "llama.rope.dimension_count": head_size_of(hf.values),
    }


def write_gguf_common(hf: HFConfig, prefix: str, has_divisors: bool = False) -> dict[str, Any]:
    check_writable(hf, "partial_rotary_factor", 1.0)
    heads, head_size = hf.size("num_attention_heads"), head_size_of(hf.values)
    return {
        f"{prefix}.vocab_size": hf.size("vocab_size"),
        **write_gguf_sizes(hf, prefix, GGUF_SIZES, max_position_embeddings=2048),
        f"{prefix}.attention.head_count_kv": hf.size("num_key_value_heads", heads),
        f"{prefix}.attention.key_length": head_size,
        f"{prefix}.attention.value_length": head_size,
        f"{prefix}.attention.layer_norm_rms_epsilon": hf.number("rms_norm_eps", 1e-6),
        **write_gguf_rope(hf, prefix, has_divisors),
    }


def head_size_of(values: HFValues) -> int:
    size = values.get("head_dim")
    return int(size or values["hidden_size"] // values["num_attention_heads"])


def gguf_rules(values: HFValues) -> list[WeightRule]:
    rules = gguf_embedding_rules(values)
    has_bias, mlp_bias = bool(values.get("attention_bias")), bool(values.get("mlp_bias"))
    heads = int(values["num_attention_heads"])
    kv_heads = int(values.get("num_key_value_heads") or heads)
    interleaved_heads = {"attn_q": heads, "attn_k": kv_heads}
    for i in range(int(values["num_hidden_layers"])):
        hf, gguf = f"model.layers.{i}", f"blk.{i}"
        rules += layers(hf, gguf, GGUF_NORMS)
        rules += layers(hf, gguf, GGUF_FEEDFORWARD, mlp_bias)
        for name, short in GGUF_ATTENTION.items():
            pair, count = (f"{hf}.{name}", f"{gguf}.{short}"), interleaved_heads.get(short)
            rules += interleaved(*pair, count, has_bias) if count else layer(*pair, has_bias)
    return rules


def gguf_embedding_rules(values: HFValues) -> list[WeightRule]:
    """Word embedding, last norm and, unless it is tied, the LM head."""
    is_tied = bool(values.get("tie_word_embeddings"))
    return [
        same(f"{hf}.weight", f"{gguf}.weight")
        for hf, gguf in GGUF_EMBEDDINGS.items()
        if not (is_tied and hf == "lm_head")
    ]


def interleaved(hf: str, gguf: str, heads: int, bias: bool) -> list[WeightRule]:
    """Queries or keys, whose rows are interleaved in GGUF."""
    parts = ("weight", "bias") if bias else ("weight",)

    def shape(shapes: list[Shape]) -> Shape:
        if shapes[0][0] % (2 * heads):
            raise ValueError(f"{shapes[0][0]} rows are not {heads} heads of an even size")
        return shapes[0]

    return [
        converted(
            f"{hf}.{part}",
            f"{gguf}.{part}",
            lambda rows: to_halves(rows, heads),
            lambda rows: to_interleaved(rows, heads),
            permutes_rows=True,
            shape=shape,
        )
        for part in parts
    ]


def to_interleaved(rows: Tensor, heads: int) -> Tensor:
    """Row order of Hugging Face -> of GGUF: the halves of each head interleaved."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def to_halves(rows: Tensor, heads: int) -> Tensor:
    """Row order of GGUF -> of Hugging Face."""
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


IGNORED = (r".*rotary_emb\.inv_freq", r"lm_head\.weight")
GGUF = GGUFArchitecture(
    name="llama",
    read_gguf=read_gguf,
    write_gguf=write_gguf,
    rules=gguf_rules,
    extra_tensors=lambda hf: write_llama3_divisors(hf, head_size_of(hf.values)),
    metadata_tensors=(ROPE_DIVISORS,),
    dropped=IGNORED,
)
FAMILY = Family(
    name="llama",
    model_types=("llama",),
    read_hf=read_hf,
    rules=rules,
    write_hf=write_hf,
    ignored=IGNORED,
    prefixes=("model.",),
    read_generation=decoder_generation,
    gguf=GGUF,
)
