"""BART: learned positions after two unused rows, a norm on the embedding, norm after, one table
for source, target and output.

BartModel                      names begin at `shared`; logits have no bias (bart-base, bart-large)
BartForConditionalGeneration   names begin with `model.`; final_logits_bias is the output's bias
"""

from __future__ import annotations

from typing import Any

from weft.checkpoint.families.bart_layers import layers, read_sizes, write_sizes
from weft.checkpoint.families.base import Family, HFConfig
from weft.checkpoint.families.generation_config import read_generation
from weft.checkpoint.weight_rules import WeightRule, changed, layer, same
from weft.models.config import ModelConfig

HAS_BIAS = {"BartModel": False, "BartForConditionalGeneration": True}
OFFSET = 2
"""Rows of the position table before position 0, from when padding had a position."""


def read_config(hf: HFConfig) -> ModelConfig:
    hf.refuse("normalize_embedding", True, True)
    hf.refuse("static_position_embeddings", False, False)
    hf.refuse("tie_word_embeddings", True, True)
    return ModelConfig.from_dict(
        {
            **read_sizes(hf),
            "vocab_size": hf.size("vocab_size"),
            "position": {"kind": "learned", "offset": OFFSET},
            "embedding": {
                "tied": "all",
                "norm": True,
                "scale": hf.flag("scale_embedding", False),
            },
            "head": {"bias": hf.architecture(HAS_BIAS, "BartForConditionalGeneration")},
        },
        where=str(hf.path),
    )


def write_config(config: ModelConfig) -> dict[str, Any]:
    name = "BartForConditionalGeneration" if config.head.bias else "BartModel"
    return {
        "architectures": [name],
        "model_type": "bart",
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": True,
        **write_sizes(config),
    }


def rules(config: ModelConfig) -> list[WeightRule]:
    before = "model." if config.head.bias else ""
    found = layer("encoder.embedding.words", f"{before}shared")
    if config.head.bias:
        found.append(logits_bias())
    for side in ("encoder", "decoder"):
        theirs = f"{before}{side}"
        found.append(same(f"{side}.position.table_MD", f"{theirs}.embed_positions.weight"))
        found += layer(f"{side}.embedding.norm", f"{theirs}.layernorm_embedding", bias=True)
    return found + layers(config, before)


def logits_bias() -> WeightRule:
    """One row of theirs, which a batch is added to."""
    return changed(
        "head.bias", "final_logits_bias", lambda row: row.flatten(), lambda ours: ours[None]
    )


FAMILY = Family(
    name="bart",
    model_types=("bart",),
    read_config=read_config,
    rules=rules,
    write_config=write_config,
    ignored=(
        r"lm_head\.weight",
        r"(model\.)?(encoder|decoder)\.embed_tokens\.weight",
        r"(model\.)?(encoder|decoder)\.version",
    ),
    prefixes=("model.",),
    read_generation=read_generation,
)
