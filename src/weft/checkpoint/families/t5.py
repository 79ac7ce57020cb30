"""T5, T5 1.1 and Flan-T5: bucketed relative positions, pre-RMSNorm, no biases, unscaled scores.

The original ties its LM head to the word embedding and scales its input by width ** -0.5; since 1.1
the head has weights of its own and no scale, and the feed-forward layer a gate. Earlier versions of
`transformers` write the second case as tie_word_embeddings = false. Version 5 writes
scale_decoder_outputs = false, and always tie_word_embeddings = true: whether the head is tied shows
in the tensors, as it leaves lm_head.weight out if it is.

In GGUF (architecture `t5`) the tensors show whether the feed-forward layer has a gate and whether
the LM head is tied; the maximum distance of the relative positions is always 128.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.checkpoint.families.base import Family, inner_width
from weft.checkpoint.families.generation_config import (
    GenerationConfig,
    encoder_decoder_generation,
    read_ids,
)
from weft.checkpoint.families.gguf_metadata import (
    GGUFArchitecture,
    GGUFMetadata,
    HFValues,
    check_writable,
    write_gguf_sizes,
)
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.weight_rules import WeightRule, layer, same, stacked_layers
from weft.models.config import ModelConfig
from weft.nn.positions.config import T5BiasConfig

FEEDFORWARDS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "silu": "silu",
    "gated-gelu": "geglu_tanh",
    "gated-relu": "reglu",
    "gated-silu": "swiglu",
}
"""Values of feed_forward_proj, and the kinds of feed-forward layer they mean."""
LM_HEAD = "lm_head.weight"
HF_FEEDFORWARDS = {kind: name for name, kind in FEEDFORWARDS.items()}


def read_hf(hf: HFConfig) -> ModelConfig:
    hf.require("is_encoder_decoder", True, True)
    width, layers = hf.size("d_model"), hf.size("num_layers")
    can_be_tied = hf.flag("tie_word_embeddings", True)
    is_scaled = can_be_tied and hf.flag("scale_decoder_outputs", True)
    is_tied = can_be_tied and (is_scaled or not hf.has_tensor(LM_HEAD, default=False))
    return ModelConfig.from_dict(
        {
            "kind": "encoder-decoder",
            "vocab_size": hf.size("vocab_size"),
            "width": width,
            "num_layers": hf.size("num_decoder_layers", layers),
            "encoder_layers": layers,
            "max_len": hf.size("n_positions", 512),
            "dropout": 0.0,
            "attention": {
                "kind": "mha",
                "num_heads": hf.size("num_heads"),
                "head_size": hf.size("d_kv"),
                "scale": 1.0,
            },
            "position": {
                "kind": "bucketed",
                "num_buckets": hf.size("relative_attention_num_buckets", 32),
                "max_distance": hf.size("relative_attention_max_distance", 128),
            },
            "feedforward": {
                "kind": hf.one_of("feed_forward_proj", FEEDFORWARDS, "relu"),
                "width": hf.size("d_ff"),
                "bias": False,
            },
            "norm": {"kind": "rmsnorm", "eps": hf.number("layer_norm_epsilon", 1e-6)},
            "embedding": {"tied": "all" if is_tied else "input"},
            "head": {"scale": width**-0.5 if is_scaled else 1.0},
        },
        where=str(hf.path),
    )


def write_hf(config: ModelConfig) -> dict[str, Any]:
    position = config.position
    num_buckets, max_distance = 32, 128
    if isinstance(position, T5BiasConfig):
        num_buckets, max_distance = position.num_buckets, position.max_distance
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        "vocab_size": config.vocab_size,
        "d_model": config.width,
        "d_kv": config.head_size,
        "d_ff": inner_width(config),
        "num_layers": config.layers_of("encoder"),
        "num_decoder_layers": config.num_layers,
        "num_heads": config.attention.num_heads,
        "n_positions": config.max_len,
        "relative_attention_num_buckets": num_buckets,
        "relative_attention_max_distance": max_distance,
        "feed_forward_proj": HF_FEEDFORWARDS.get(config.feedforward.kind, "relu"),
        "layer_norm_epsilon": config.norm.eps,
        "tie_word_embeddings": config.embedding.tied == "all",
        "scale_decoder_outputs": config.head.scale != 1,
    }


def rules(config: ModelConfig) -> list[WeightRule]:
    # one embedding for both stacks; it has the name of the stack that is built first
    rules = layer("encoder.embedding.words", "shared")
    if config.embedding.tied == "input":
        rules += layer("head", "lm_head")
    for side, count in (("encoder", config.layers_of("encoder")), ("decoder", config.num_layers)):
        rules += layer(f"{side}.norm", f"{side}.final_layer_norm")
        rules.append(same(f"{side}.position.table_MH", relative_bias(side)))
        for i in range(count):
            rules += block_rules(config, f"{side}.blocks.{i}", f"{side}.block.{i}.layer")
    return rules


def relative_bias(side: str) -> str:
    """Hugging Face's name of a stack's relative position bias: the first layer has it."""
    return f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"


def block_rules(config: ModelConfig, weft: str, hf: str) -> list[WeightRule]:
    """Attention, in a decoder cross-attention, and feed-forward: layers 0, 1 and 2 of a block."""
    attentions = [("attention", "SelfAttention")]
    attentions += [("cross", "EncDecAttention")] if weft.startswith("decoder") else []
    size, rules = config.attention.num_heads * config.head_size, []
    for number, (name, hf_name) in enumerate(attentions):
        names = [f"{hf}.{number}.{hf_name}.{part}" for part in "qkv"]
        rules += stacked_layers(f"{weft}.{name}.qkv", names, (size, size, size))
        rules += layer(f"{weft}.{name}.out", f"{hf}.{number}.{hf_name}.o")
        rules += layer(f"{weft}.{name}_path.norm", f"{hf}.{number}.layer_norm")
    last = f"{hf}.{len(attentions)}"
    rules += layer(f"{weft}.feedforward_path.norm", f"{last}.layer_norm")
    return rules + feedforward_rules(config, f"{weft}.feedforward", f"{last}.DenseReluDense")


def feedforward_rules(config: ModelConfig, weft: str, hf: str) -> list[WeightRule]:
    width, rules = inner_width(config), layer(f"{weft}.down", f"{hf}.wo")
    if HF_FEEDFORWARDS[config.feedforward.kind].startswith("gated"):
        return rules + stacked_layers(
            f"{weft}.gate_up", (f"{hf}.wi_0", f"{hf}.wi_1"), (width, width)
        )
    return rules + layer(f"{weft}.up", f"{hf}.wi")


def read_generation(hf: HFConfig) -> GenerationConfig:
    """The padding token starts a text unless the settings name another."""
    config = encoder_decoder_generation(hf)
    pad = [*read_ids(hf, "pad_token_id"), 0][0]
    return config if config.start is not None else replace(config, start=pad)


GGUF_SIZES = {
    "d_model": "embedding_length",
    "d_ff": "feed_forward_length",
    "num_layers": "block_count",
}
GGUF_STACKS = {"encoder": "enc", "decoder": "dec"}
GGUF_MAX_DISTANCE = 128
GATED, NOT_GATED = "gated-gelu", "relu"
"""Values of feed_forward_proj that llama.cpp supports, with and without a gate."""


def read_gguf(gguf: GGUFMetadata) -> dict[str, Any]:
    gguf.check_supported()
    sizes, head_size = gguf.sizes(GGUF_SIZES), gguf.size("attention.key_length")
    gguf.require("attention.value_length", head_size)
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        "vocab_size": gguf.rows("token_embd.weight"),
        **sizes,
        "d_kv": head_size,
        "num_decoder_layers": gguf.size("decoder_block_count", sizes["num_layers"]),
        "num_heads": gguf.size("attention.head_count"),
        "n_positions": gguf.size("context_length"),
        "relative_attention_num_buckets": gguf.size("attention.relative_buckets_count"),
        "relative_attention_max_distance": GGUF_MAX_DISTANCE,
        "feed_forward_proj": GATED if gguf.has("enc.blk.0.ffn_gate.weight") else NOT_GATED,
        "layer_norm_epsilon": gguf.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": not gguf.has("output.weight"),
        "decoder_start_token_id": gguf.count("decoder_start_token_id", 0),
    }


def write_gguf(hf: HFConfig) -> dict[str, Any]:
    if hf.get("feed_forward_proj") != GATED:
        check_writable(hf, "feed_forward_proj", NOT_GATED)
    check_writable(hf, "relative_attention_max_distance", GGUF_MAX_DISTANCE)
    if not hf.has_tensor(LM_HEAD, default=True):
        check_writable(hf, "scale_decoder_outputs", True)  # a GGUF file scales every tied head
    eps, head_size = hf.number("layer_norm_epsilon", 1e-6), hf.size("d_kv")
    return {
        "t5.vocab_size": hf.size("vocab_size"),
        "t5.context_length": hf.size("n_positions", 512),
        **write_gguf_sizes(hf, "t5", GGUF_SIZES),
        "t5.decoder_block_count": hf.size("num_decoder_layers", hf.size("num_layers")),
        "t5.attention.head_count": hf.size("num_heads"),
        "t5.attention.key_length": head_size,
        "t5.attention.value_length": head_size,
        "t5.attention.layer_norm_epsilon": eps,
        "t5.attention.layer_norm_rms_epsilon": eps,
        "t5.attention.relative_buckets_count": hf.size("relative_attention_num_buckets", 32),
        "t5.decoder_start_token_id": int(hf.number("decoder_start_token_id", 0)),
    }


def gguf_rules(values: HFValues) -> list[WeightRule]:
    rules = layer("shared", "token_embd")
    # either of two settings says that the LM head has weights of its own
    is_tied = values.get("tie_word_embeddings", True) and values.get("scale_decoder_outputs", True)
    rules += [] if is_tied else layer("lm_head", "output")
    layers = int(values["num_layers"])
    counts = {"encoder": layers, "decoder": int(values.get("num_decoder_layers") or layers)}
    is_gated = values.get("feed_forward_proj") == GATED
    for side, short in GGUF_STACKS.items():
        rules += layer(f"{side}.final_layer_norm", f"{short}.output_norm")
        rules.append(same(relative_bias(side), f"{short}.blk.0.attn_rel_b.weight"))
        for i in range(counts[side]):
            rules += gguf_block_rules(f"{side}.block.{i}.layer", f"{short}.blk.{i}", is_gated)
    return rules


def gguf_block_rules(hf: str, gguf: str, is_gated: bool) -> list[WeightRule]:
    """Attention, in a decoder cross-attention, and feed-forward: layers 0, 1 and 2 of a block."""
    attentions = {"SelfAttention": "attn"}
    attentions |= {"EncDecAttention": "cross_attn"} if hf.startswith("decoder") else {}
    rules: list[WeightRule] = []
    for number, (name, short) in enumerate(attentions.items()):
        rules += layer(f"{hf}.{number}.layer_norm", f"{gguf}.{short}_norm")
        for part in "qkvo":
            rules += layer(f"{hf}.{number}.{name}.{part}", f"{gguf}.{short}_{part}")
    last = f"{hf}.{len(attentions)}"
    rules += layer(f"{last}.layer_norm", f"{gguf}.ffn_norm")
    names = {"wi_0": "gate", "wi_1": "up"} if is_gated else {"wi": "up"}
    for name, short in (names | {"wo": "down"}).items():
        rules += layer(f"{last}.DenseReluDense.{name}", f"{gguf}.ffn_{short}")
    return rules


FAMILY = Family(
    name="t5",
    model_types=("t5",),
    read_hf=read_hf,
    rules=rules,
    write_hf=write_hf,
    ignored=(
        r"(encoder|decoder)\.embed_tokens\.weight",
        r"lm_head\.weight",
        # in the first files; cross-attention has no relative positions
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    ),
    read_generation=read_generation,
    gguf=GGUFArchitecture(
        name="t5",
        read_gguf=read_gguf,
        write_gguf=write_gguf,
        rules=gguf_rules,
        dropped=(r"(encoder|decoder)\.embed_tokens\.weight", r"lm_head\.weight"),
    ),
)
