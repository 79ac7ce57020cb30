"""Marian and OPUS-MT: sinusoidal positions in halves, scaled embeddings, post-norm, a bias on the
logits. No GGUF architecture.

    share_encoder_decoder_embeddings    one embedding for source, target and output
    otherwise                           the source has its own; target and output may share one

Generation starts with the padding token, which is never generated.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from weft.checkpoint.families.bart import (
    logits_bias_rule,
    read_sizes,
    stack_rules,
    write_sizes,
)
from weft.checkpoint.families.base import Family
from weft.checkpoint.families.generation_config import (
    GenerationConfig,
    encoder_decoder_generation,
    read_ids,
)
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.weight_rules import WeightRule, layer
from weft.models.config import ModelConfig


def read_hf(hf: HFConfig) -> ModelConfig:
    hf.require("normalize_embedding", False, False)
    hf.require("static_position_embeddings", True, True)
    source = hf.size("vocab_size")
    is_shared = hf.flag("share_encoder_decoder_embeddings", True)
    if is_shared:
        hf.require("tie_word_embeddings", True, True)
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


def write_hf(config: ModelConfig) -> dict[str, Any]:
    source = config.source_vocab_size or config.vocab_size
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "vocab_size": source,
        "decoder_vocab_size": config.vocab_size,
        "share_encoder_decoder_embeddings": config.embedding.ties_source,
        "tie_word_embeddings": config.embedding.ties_output,
        "static_position_embeddings": True,
        # OPUS-MT's padding is the last id; the default of transformers is beyond most vocabularies
        "pad_token_id": min(source, config.vocab_size) - 1,
        **write_sizes(config),
    }


def rules(config: ModelConfig) -> list[WeightRule]:
    if config.embedding.tied == "all":
        rules = layer("encoder.embedding.words", "model.shared")
    else:
        rules = layer("encoder.embedding.words", "model.encoder.embed_tokens")
        rules += layer("decoder.embedding.words", "model.decoder.embed_tokens")
    if not config.embedding.ties_output:
        rules += layer("head", "lm_head")
    return [*rules, logits_bias_rule(), *stack_rules(config, "model.")]


def read_generation(hf: HFConfig) -> GenerationConfig:
    """The padding token is never generated, and starts every translation unless another token is
    named."""
    pad = read_ids(hf, "pad_token_id")
    config = encoder_decoder_generation(hf, banned=tuple(pad))
    return config if config.start is not None or not pad else replace(config, start=pad[0])


FAMILY = Family(
    name="marian",
    model_types=("marian",),
    read_hf=read_hf,
    rules=rules,
    write_hf=write_hf,
    ignored=(
        r"lm_head\.weight",
        r"model\.(encoder|decoder)\.embed_tokens\.weight",
        # computed, not learned
        r"model\.(encoder|decoder)\.embed_positions\.weight",
    ),
    read_generation=read_generation,
)
