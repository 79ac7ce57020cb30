"""T5, T5 1.1 and Flan-T5: architecture `t5`.

Whether the feed-forward layer has a gate and whether the output has a table of its own is seen from
the tensors; the largest distance of the relative positions is 128 in all of them.
"""

from __future__ import annotations

from typing import Any

from weft.checkpoint.families.base import HFConfig
from weft.checkpoint.gguf.dialect.base import Config, GGUFArchitecture, GGUFMetadata
from weft.checkpoint.gguf.dialect.llama import refuse
from weft.checkpoint.weight_rules import WeightRule, layer, same

SIDES = {"encoder": "enc", "decoder": "dec"}
MAX_DISTANCE = 128
GATED, PLAIN = "gated-gelu", "relu"
"""Values of feed_forward_proj that llama.cpp computes, with and without a gate."""


def read_config(gguf: GGUFMetadata) -> dict[str, Any]:
    gguf.check_supported()
    layers, size = gguf.size("block_count"), gguf.size("attention.key_length")
    gguf.refuse("attention.value_length", size)
    return {
        "architectures": ["T5ForConditionalGeneration"],
        "model_type": "t5",
        "is_encoder_decoder": True,
        "vocab_size": gguf.rows("token_embd.weight"),
        "d_model": gguf.size("embedding_length"),
        "d_kv": size,
        "d_ff": gguf.size("feed_forward_length"),
        "num_layers": layers,
        "num_decoder_layers": gguf.size("decoder_block_count", layers),
        "num_heads": gguf.size("attention.head_count"),
        "n_positions": gguf.size("context_length"),
        "relative_attention_num_buckets": gguf.size("attention.relative_buckets_count"),
        "relative_attention_max_distance": MAX_DISTANCE,
        "feed_forward_proj": GATED if gguf.has("enc.blk.0.ffn_gate.weight") else PLAIN,
        "layer_norm_epsilon": gguf.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": not gguf.has("output.weight"),
        "decoder_start_token_id": gguf.count("decoder_start_token_id", 0),
    }


def write_config(hf: HFConfig) -> dict[str, Any]:
    if hf.get("feed_forward_proj") != GATED:
        refuse(hf, "feed_forward_proj", PLAIN)
    refuse(hf, "relative_attention_max_distance", MAX_DISTANCE)
    eps, size = hf.number("layer_norm_epsilon", 1e-6), hf.size("d_kv")
    layers = hf.size("num_layers")
    return {
        "t5.vocab_size": hf.size("vocab_size"),
        "t5.context_length": hf.size("n_positions", 512),
        "t5.embedding_length": hf.size("d_model"),
        "t5.feed_forward_length": hf.size("d_ff"),
        "t5.block_count": layers,
        "t5.decoder_block_count": hf.size("num_decoder_layers", layers),
        "t5.attention.head_count": hf.size("num_heads"),
        "t5.attention.key_length": size,
        "t5.attention.value_length": size,
        "t5.attention.layer_norm_epsilon": eps,
        "t5.attention.layer_norm_rms_epsilon": eps,
        "t5.attention.relative_buckets_count": hf.size("relative_attention_num_buckets", 32),
        "t5.decoder_start_token_id": int(hf.number("decoder_start_token_id", 0)),
    }


def rules(config: Config) -> list[WeightRule]:
    found = layer("shared", "token_embd")
    # of two settings, either says that the output has a table of its own
    is_tied = config.get("tie_word_embeddings", True) and config.get("scale_decoder_outputs", True)
    found += [] if is_tied else layer("lm_head", "output")
    layers = int(config["num_layers"])
    counts = {"encoder": layers, "decoder": int(config.get("num_decoder_layers") or layers)}
    is_gated = config.get("feed_forward_proj") == GATED
    for side, short in SIDES.items():
        found += layer(f"{side}.final_layer_norm", f"{short}.output_norm")
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        found.append(same(bias, f"{short}.blk.0.attn_rel_b.weight"))
        for i in range(counts[side]):
            found += block(f"{side}.block.{i}.layer", f"{short}.blk.{i}", side, is_gated)
    return found


def block(theirs: str, file: str, side: str, is_gated: bool) -> list[WeightRule]:
    """Attention, in a decoder cross-attention, and feed-forward: layers 0, 1 and 2 of a block."""
    kinds = {"SelfAttention": "attn"} | (
        {"EncDecAttention": "cross_attn"} if side[0] == "d" else {}
    )
    found: list[WeightRule] = []
    for number, (name, short) in enumerate(kinds.items()):
        found += layer(f"{theirs}.{number}.layer_norm", f"{file}.{short}_norm")
        for part in "qkvo":
            found += layer(f"{theirs}.{number}.{name}.{part}", f"{file}.{short}_{part}")
    last = f"{theirs}.{len(kinds)}"
    names = {"wi_0": "gate", "wi_1": "up"} if is_gated else {"wi": "up"}
    found += layer(f"{last}.layer_norm", f"{file}.ffn_norm")
    for name, short in (names | {"wo": "down"}).items():
        found += layer(f"{last}.DenseReluDense.{name}", f"{file}.ffn_{short}")
    return found


ARCHITECTURE = GGUFArchitecture(
    name="t5",
    model_types=("t5",),
    read_config=read_config,
    write_config=write_config,
    rules=rules,
    ignored=(r"(encoder|decoder)\.embed_tokens\.weight", r"lm_head\.weight"),
)
