"""T5, T5 1.1 and Flan-T5: bucketed relative positions, RMSNorm before, no biases, scores not
scaled.

The original ties its output to the words and scales it by width ** -0.5; since 1.1 the output has a
table of its own and the feed-forward layer a gate. `transformers` 5 writes the second case as
scale_decoder_outputs = false, before it was tie_word_embeddings = false; both are read.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.checkpoint.families.base import Family, GenerationConfig, HFConfig, inner_width
from weft.checkpoint.families.generation_config import ids, read_generation
from weft.checkpoint.weight_rules import WeightRule, layer, same, stacked_layers
from weft.models.config import ModelConfig
from weft.nn.positions import T5BiasConfig

PROJECTIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "silu": "silu",
    "gated-gelu": "geglu_tanh",
    "gated-relu": "reglu",
    "gated-silu": "swiglu",
}
THEIR_PROJECTIONS = {ours: theirs for theirs, ours in PROJECTIONS.items()}


def read_config(hf: HFConfig) -> ModelConfig:
    hf.refuse("is_encoder_decoder", True, True)
    width, layers = hf.size("d_model"), hf.size("num_layers")
    is_first = hf.flag("tie_word_embeddings", True)
    is_first = is_first and hf.flag("scale_decoder_outputs", True)
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
                "kind": hf.one_of("feed_forward_proj", PROJECTIONS, "relu"),
                "width": hf.size("d_ff"),
                "bias": False,
            },
            "norm": {"kind": "rmsnorm", "eps": hf.number("layer_norm_epsilon", 1e-6)},
            "embedding": {"tied": "all" if is_first else "input"},
            "head": {"scale": width**-0.5 if is_first else 1.0},
        },
        where=str(hf.path),
    )


def write_config(config: ModelConfig) -> dict[str, Any]:
    position = config.position
    buckets = (
        (position.num_buckets, position.max_distance) if isinstance(position, T5BiasConfig) else ()
    )
    num_buckets, max_distance = buckets or (32, 128)
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
        "feed_forward_proj": THEIR_PROJECTIONS.get(config.feedforward.kind, "relu"),
        "layer_norm_epsilon": config.norm.eps,
        "tie_word_embeddings": config.embedding.tied == "all",
    }


def rules(config: ModelConfig) -> list[WeightRule]:
    # one of our tables stands for both sides; it is named by the side that is built first
    found = layer("encoder.embedding.words", "shared")
    if config.embedding.tied == "input":
        found += layer("head", "lm_head")
    for side, count in (("encoder", config.layers_of("encoder")), ("decoder", config.num_layers)):
        found += layer(f"{side}.norm", f"{side}.final_layer_norm")
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        found.append(same(f"{side}.position.table_MH", bias))
        for i in range(count):
            found += block(config, f"{side}.blocks.{i}", f"{side}.block.{i}.layer")
    return found


def block(config: ModelConfig, ours: str, theirs: str) -> list[WeightRule]:
    """Attention, in a decoder cross-attention, and feed-forward: layers 0, 1 and 2 of a block."""
    rooms = [("attention", "SelfAttention")]
    rooms += [("cross", "EncDecAttention")] if ours.startswith("decoder") else []
    size, found = config.attention.num_heads * config.head_size, []
    for number, (room, name) in enumerate(rooms):
        names = [f"{theirs}.{number}.{name}.{part}" for part in "qkv"]
        found += stacked_layers(f"{ours}.{room}.qkv", names, (size, size, size))
        found += layer(f"{ours}.{room}.out", f"{theirs}.{number}.{name}.o")
        found += layer(f"{ours}.{room}_path.norm", f"{theirs}.{number}.layer_norm")
    last = f"{theirs}.{len(rooms)}"
    found += layer(f"{ours}.feedforward_path.norm", f"{last}.layer_norm")
    return found + feedforward(config, f"{ours}.feedforward", f"{last}.DenseReluDense")


def feedforward(config: ModelConfig, ours: str, theirs: str) -> list[WeightRule]:
    width, found = inner_width(config), layer(f"{ours}.down", f"{theirs}.wo")
    if THEIR_PROJECTIONS[config.feedforward.kind].startswith("gated"):
        names = (f"{theirs}.wi_0", f"{theirs}.wi_1")
        return found + stacked_layers(f"{ours}.gate_up", names, (width, width))
    return found + layer(f"{ours}.up", f"{theirs}.wi")


def read_t5_generation(hf: HFConfig) -> GenerationConfig:
    """T5 begins with its padding where the settings name nothing else."""
    use = read_generation(hf)
    pad = [*ids(hf, "pad_token_id"), 0][0]
    return use if use.start is not None else replace(use, start=pad)


FAMILY = Family(
    name="t5",
    model_types=("t5",),
    read_config=read_config,
    rules=rules,
    write_config=write_config,
    ignored=(
        r"(encoder|decoder)\.embed_tokens\.weight",
        r"lm_head\.weight",
        # of the first files; cross-attention has no positions
        r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",
    ),
    read_generation=read_t5_generation,
)
