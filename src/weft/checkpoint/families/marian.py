"""Marian and opus-mt: sinusoidal positions in halves, scaled words, norm after, a bias on the
logits.

    share_encoder_decoder_embeddings    one table for source, target and output
    not shared                          the source has its own; target and output share one, or not

Generation begins with the padding token, which is never written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.checkpoint.families.bart import logits_bias
from weft.checkpoint.families.bart_layers import layers, read_sizes, write_sizes
from weft.checkpoint.families.base import Family, GenerationConfig, HFConfig
from weft.checkpoint.families.generation_config import ids, read_generation
from weft.checkpoint.weight_rules import WeightRule, layer
from weft.models.config import ModelConfig


def read_config(hf: HFConfig) -> ModelConfig:
    hf.refuse("normalize_embedding", False, False)
    hf.refuse("static_position_embeddings", True, True)
    source = hf.size("vocab_size")
    is_shared = hf.flag("share_encoder_decoder_embeddings", True)
    if is_shared:
        hf.refuse("tie_word_embeddings", True, True)
    is_tied = hf.flag("tie_word_embeddings", True)
    return ModelConfig.from_dict(
        {
            **read_sizes(hf),
            "vocab_size": source if is_shared else hf.size("decoder_vocab_size", source),
            "source_vocab_size": None if is_shared else source,
            "position": {"kind": "sinusoidal", "layout": "halves"},
            "embedding": {
                "tied": "all" if is_shared else "output" if is_tied else "none",
                "scale": hf.flag("scale_embedding", False),
            },
            "head": {"bias": True},
        },
        where=str(hf.path),
    )


def write_config(config: ModelConfig) -> dict[str, Any]:
    source = config.source_vocab_size or config.vocab_size
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "vocab_size": source,
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": config.embedding.ties_source,
        "tie_word_embeddings": config.embedding.ties_output,
        "static_position_embeddings": True,
        # opus-mt's padding is the last id; what transformers takes for it is beyond most tables
        "pad_token_id": min(source, config.vocab_size) - 1,
        **write_sizes(config),
    }


def rules(config: ModelConfig) -> list[WeightRule]:
    if config.embedding.tied == "all":
        found = layer("encoder.embedding.words", "model.shared")
    else:
        found = layer("encoder.embedding.words", "model.encoder.embed_tokens")
        found += layer("decoder.embedding.words", "model.decoder.embed_tokens")
    if not config.embedding.ties_output:
        found += layer("head", "lm_head")
    return [*found, logits_bias(), *layers(config, "model.")]


def read_marian_generation(hf: HFConfig) -> GenerationConfig:
    """The padding starts every translation where nothing else is named, and is in none."""
    pad = ids(hf, "pad_token_id")
    use = read_generation(hf, never=tuple(pad))
    return use if use.start is not None or not pad else replace(use, start=pad[0])


FAMILY = Family(
    name="marian",
    model_types=("marian",),
    read_config=read_config,
    rules=rules,
    write_config=write_config,
    ignored=(
        r"lm_head\.weight",
        r"model\.(encoder|decoder)\.embed_tokens\.weight",
        # computed, not learned
        r"model\.(encoder|decoder)\.embed_positions\.weight",
    ),
    read_generation=read_marian_generation,
)
