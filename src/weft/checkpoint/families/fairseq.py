"""fairseq's `transformer`, read only: settings are the `args` or `cfg` of its checkpoint as a plain
dict, to which fairseq_files.py adds the sizes of both vocabularies.

Positions begin at 2, behind the padding's (padding_idx + 1), and waves are spaced fairseq's way.
Norm before has a norm after the last layer; tied tables are in the file more than once.
"""

from __future__ import annotations

from typing import Any

from weft.checkpoint.families.bart_layers import layers, of_both
from weft.checkpoint.families.base import Family, GenerationConfig, HFConfig
from weft.checkpoint.weight_rules import WeightRule, layer, same
from weft.core.errors import DataError
from weft.models.config import ModelConfig

BEGIN, PAD, END, UNK = range(4)
"""Ids that every fairseq dictionary begins with."""
ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "swish": "silu",
}
NEVER = (
    "adaptive_input",
    "char_inputs",
    "cross_self_attention",
    "no_cross_attention",
    "no_decoder_final_norm",
)
"""Settings that would make it another model."""


def read_config(hf: HFConfig) -> ModelConfig:
    check_is_transformer(hf)
    is_before = same_flag(hf, "normalize_before")
    is_all = hf.flag("share_all_embeddings", False)
    is_output = hf.flag("share_decoder_input_output_embed", False)
    return ModelConfig.from_dict(
        {
            "kind": "encoder-decoder",
            "vocab_size": hf.size("target_vocab_size"),
            "source_vocab_size": hf.size("source_vocab_size"),
            "width": of_both(hf, "embed_dim"),
            "num_layers": hf.size("decoder_layers"),
            "encoder_layers": hf.size("encoder_layers"),
            "dropout": 0.0,
            "attention": {
                "kind": "mha",
                "num_heads": of_both(hf, "attention_heads"),
                "bias": True,
            },
            "feedforward": {
                "kind": hf.one_of("activation_fn", ACTIVATIONS, "relu"),
                "width": of_both(hf, "ffn_embed_dim"),
                "bias": True,
            },
            "norm": {"kind": "layernorm", "placement": "before" if is_before else "after"},
            "embedding": {
                "tied": "all" if is_all else "output" if is_output else "none",
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
        raise DataError(f"arch is {arch!r}: Weft reads fairseq's transformer.", hf.path)
    for name in NEVER:
        hf.refuse(name, False, False)
    hf.refuse("adaptive_softmax_cutoff", None)
    for name in ("decoder_input_dim", "decoder_output_dim"):
        hf.refuse(name, hf.size("decoder_embed_dim"), hf.size("decoder_embed_dim"))


def same_flag(hf: HFConfig, name: str) -> bool:
    """A yes or no that encoder and decoder share."""
    source = hf.flag(f"encoder_{name}", False)
    hf.refuse(f"decoder_{name}", source, source)
    return source


def read_position(hf: HFConfig) -> dict[str, Any]:
    """The kind of positions, and how many a sequence may have."""
    source = hf.size("max_source_positions", 1024)
    target = hf.size("max_target_positions", 1024)
    if hf.flag("no_token_positional_embeddings", False):
        return {"position": {"kind": "none"}, "max_len": max(source, target)}
    if same_flag(hf, "learned_pos"):
        hf.refuse("max_target_positions", source, source)
        return {"position": {"kind": "learned", "offset": PAD + 1}, "max_len": source}
    waves = {"kind": "sinusoidal", "layout": "halves", "spacing": "fairseq", "offset": PAD + 1}
    return {"position": waves, "max_len": max(source, target)}


def rules(config: ModelConfig) -> list[WeightRule]:
    tied = config.embedding.tied
    found = layer("encoder.embedding.words", "encoder.embed_tokens")
    if tied != "all":
        found += layer("decoder.embedding.words", "decoder.embed_tokens")
    if tied == "none":
        found += layer("head", "decoder.output_projection")
    for side in ("encoder", "decoder"):
        if config.position.kind == "learned":
            found.append(same(f"{side}.position.table_MD", f"{side}.embed_positions.weight"))
        if config.embedding.norm:
            found += layer(f"{side}.embedding.norm", f"{side}.layernorm_embedding", bias=True)
        if config.has_final_norm:
            found += layer(f"{side}.norm", f"{side}.layer_norm", bias=True)
    return found + layers(config)


def read_generation(hf: HFConfig) -> GenerationConfig:
    """fairseq begins a translation with its end token."""
    return GenerationConfig(start=END, ends=(END,), banned=(PAD,))


FAMILY = Family(
    name="fairseq",
    model_types=("fairseq",),
    read_config=read_config,
    rules=rules,
    ignored=(
        r"(encoder|decoder)\.version",
        r"(encoder|decoder)\.embed_positions\._float_tensor",
        r"decoder\.(embed_tokens|output_projection)\.weight",
    ),
    read_generation=read_generation,
)
