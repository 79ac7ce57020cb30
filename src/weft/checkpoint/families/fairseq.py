"""fairseq's `transformer`, read only: settings are the `args` or `cfg` of its checkpoint as a plain
dictionary, to which fairseq_header.py adds the sizes of both vocabularies.

Positions start at 2, after the padding's (padding_idx + 1), and sinusoids are spaced fairseq's way.
Pre-norm models have a norm after the last layer; tied embeddings are in the file more than once.
"""

from __future__ import annotations

from typing import Any

from weft.checkpoint.families.bart import shared_size, stack_rules
from weft.checkpoint.families.base import Family
from weft.checkpoint.families.generation_config import GenerationConfig
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.weight_rules import WeightRule, layer, same
from weft.core.errors import DataError, shown
from weft.models.config import ModelConfig

BOS, PAD, EOS, UNK = range(4)
"""First ids of every fairseq dictionary."""
FAIRSEQ_ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "swish": "silu",
}
UNSUPPORTED = (
    "adaptive_input",
    "char_inputs",
    "cross_self_attention",
    "no_cross_attention",
    "no_decoder_final_norm",
)
"""Settings of other models, which must be false."""


def read_hf(hf: HFConfig) -> ModelConfig:
    check_is_transformer(hf)
    is_pre_norm = shared_flag(hf, "normalize_before")
    is_all_tied = hf.flag("share_all_embeddings", False)
    is_output_tied = hf.flag("share_decoder_input_output_embed", False)
    return ModelConfig.from_dict(
        {
            "kind": "encoder-decoder",
            "vocab_size": hf.size("target_vocab_size"),
            "source_vocab_size": hf.size("source_vocab_size"),
            "width": shared_size(hf, "embed_dim"),
            "num_layers": hf.size("decoder_layers"),
            "encoder_layers": hf.size("encoder_layers"),
            "dropout": 0.0,
            "attention": {
                "kind": "mha",
                "num_heads": shared_size(hf, "attention_heads"),
                "bias": True,
            },
            "feedforward": {
                "kind": hf.one_of("activation_fn", FAIRSEQ_ACTIVATIONS, "relu"),
                "width": shared_size(hf, "ffn_embed_dim"),
                "bias": True,
            },
            "norm": {"kind": "layernorm", "placement": "before" if is_pre_norm else "after"},
            "embedding": {
                "tied": "all" if is_all_tied else "output" if is_output_tied else "none",
                "scale": not hf.flag("no_scale_embedding", False),
                "norm": hf.flag("layernorm_embedding", False),
            },
            **read_position(hf),
        },
        where=str(hf.path),
    )


def check_is_transformer(hf: HFConfig) -> None:
    arch = hf.get("arch", "transformer")
    if not str(arch).startswith("transformer"):
        raise DataError(
            f"arch is {shown(arch)}: Weft reads fairseq's transformer. Use such a model.", hf.path
        )
    for key in UNSUPPORTED:
        hf.require(key, False, False)
    hf.require("adaptive_softmax_cutoff", None)
    for key in ("decoder_input_dim", "decoder_output_dim"):
        hf.require(key, hf.size("decoder_embed_dim"), hf.size("decoder_embed_dim"))


def shared_flag(hf: HFConfig, key: str) -> bool:
    """A flag that must be the same in encoder and decoder."""
    value = hf.flag(f"encoder_{key}", False)
    hf.require(f"decoder_{key}", value, value)
    return value


def read_position(hf: HFConfig) -> dict[str, Any]:
    """The position encoding, and the maximum length."""
    source = hf.size("max_source_positions", 1024)
    target = hf.size("max_target_positions", 1024)
    if hf.flag("no_token_positional_embeddings", False):
        return {"position": {"kind": "none"}, "max_len": max(source, target)}
    if shared_flag(hf, "learned_pos"):
        hf.require("max_target_positions", source, source)
        return {"position": {"kind": "learned", "offset": PAD + 1}, "max_len": source}
    sinusoids = {"kind": "sinusoidal", "layout": "halves", "spacing": "fairseq", "offset": PAD + 1}
    return {"position": sinusoids, "max_len": max(source, target)}


def rules(config: ModelConfig) -> list[WeightRule]:
    tied = config.embedding.tied
    rules = layer("encoder.embedding.words", "encoder.embed_tokens")
    if tied != "all":
        rules += layer("decoder.embedding.words", "decoder.embed_tokens")
    if tied == "none":
        rules += layer("head", "decoder.output_projection")
    for side in ("encoder", "decoder"):
        if config.position.kind == "learned":
            rules.append(same(f"{side}.position.table_MD", f"{side}.embed_positions.weight"))
        if config.embedding.norm:
            rules += layer(f"{side}.embedding.norm", f"{side}.layernorm_embedding", bias=True)
        if config.has_final_norm:
            rules += layer(f"{side}.norm", f"{side}.layer_norm", bias=True)
    return rules + stack_rules(config)


def read_generation(hf: HFConfig) -> GenerationConfig:
    """fairseq starts a translation with its end token."""
    return GenerationConfig(start=EOS, ends=(EOS,), banned=(PAD,))


FAMILY = Family(
    name="fairseq",
    model_types=("fairseq",),
    read_hf=read_hf,
    rules=rules,
    ignored=(
        r"(encoder|decoder)\.version",
        r"(encoder|decoder)\.embed_positions\._float_tensor",
        r"decoder\.(embed_tokens|output_projection)\.weight",
    ),
    read_generation=read_generation,
)
