"""Marian through files and back: shared and separate vocabularies, and the same beams, in which
padding is never written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MarianConfig, MarianMTModel

from weft.checkpoint.families.export_check import export_config
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.families.marian import FAMILY
from weft.checkpoint.pickle_files import open_pickle
from weft.checkpoint.tensor_source import build_from_source
from weft.core.errors import DataError, UsageError
from weft.models.config import ModelConfig

from .folders import (
    assert_round_trip,
    assert_same_beams,
    assert_same_logits,
    load,
    pairs,
    save,
)
from .material import PLACE, shake

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 56,
    "decoder_ffn_dim": 56,
    "max_position_embeddings": 48,
    "activation_function": "swish",
    "scale_embedding": True,
    "pad_token_id": 60,
    "decoder_start_token_id": 60,
    "eos_token_id": 0,
    # at the limit transformers would write an end that costs nothing
    "forced_eos_token_id": None,
    "attn_implementation": "eager",
}

APART = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 71}
CHANGES: dict[str, dict[str, Any]] = {
    "opus-mt": {},
    "unscaled": {"scale_embedding": False},
    "relu": {"activation_function": "relu"},
    "gelu": {"activation_function": "gelu"},
    "two vocabularies": APART,
    "two vocabularies, output apart": {**APART, "tie_word_embeddings": False},
}


def tiny(**changes: Any) -> MarianMTModel:
    original = MarianMTModel(MarianConfig(**{**SIZES, **changes}))
    for side in (original.model.encoder, original.model.decoder):
        side.embed_positions.weight.requires_grad_(False)
    waves = original.model.encoder.embed_positions.weight.clone()
    shake(original)
    for side in (original.model.encoder, original.model.decoder):
        # random numbers everywhere but here: the waves are a formula
        side.embed_positions.weight.copy_(waves)
    original.final_logits_bias.copy_(torch.randn_like(original.final_logits_bias))
    return original


@pytest.mark.parametrize("name", CHANGES)
def test_logits_are_the_same_after_import_and_after_export(name: str, tmp_path: Path) -> None:
    assert_round_trip(FAMILY, tiny(**CHANGES[name]), tmp_path)


@pytest.mark.parametrize(("name", "bias"), [("opus-mt", 3.0), ("two vocabularies", 4.0)])
def test_beam_search_finds_what_transformers_finds(name: str, bias: float, tmp_path: Path) -> None:
    torch.manual_seed(2)
    original = tiny(**CHANGES[name], decoder_layers=2)
    original.final_logits_bias[0, 0] += bias
    # padding would be written all the time were it not banned
    original.final_logits_bias[0, 60] += 3.0
    original.generation_config.bad_words_ids = [[60]]
    save(original, tmp_path)
    result = load(FAMILY, tmp_path)
    assert (
        result.generation_config.start,
        result.generation_config.ends,
        result.generation_config.banned,
    ) == (60, (0,), (60,))
    assert_same_beams(result, original, pad=60)


def test_padding_is_banned_and_starts_where_nothing_else_is_said() -> None:
    use = FAMILY.read_generation(HFConfig({"pad_token_id": 9, "bad_words_ids": [[4]]}, PLACE))
    assert (use.start, use.banned) == (9, (4, 9))


def test_a_banned_phrase_of_two_tokens_is_refused() -> None:
    with pytest.raises(DataError, match=r"bad_words_ids is \[\[4, 5\]\]: Weft bans single tokens"):
        FAMILY.read_generation(HFConfig({"bad_words_ids": [[4, 5]]}, PLACE))


def test_old_pickles_with_their_copies_and_waves_are_read(tmp_path: Path) -> None:
    """pytorch_model.bin holds the computed positions, and the shared table under each name."""
    original = tiny()
    torch.save(original.state_dict(), tmp_path / "pytorch_model.bin")
    tensors = open_pickle(tmp_path / "pytorch_model.bin")
    assert "lm_head.weight" in tensors.shapes
    assert "model.encoder.embed_positions.weight" in tensors.shapes
    config = tiny_config()
    model = build_from_source(config, FAMILY.rules(config), tensors, FAMILY.ignored)
    assert_same_logits(model, original, *pairs(61, 61))


def test_waves_in_the_order_of_the_paper_are_not_written() -> None:
    with pytest.raises(UsageError, match="position.layout is 'interleaved', not 'halves'"):
        export_config(FAMILY, tiny_config().with_changes({"position.layout": "interleaved"}))


def tiny_config() -> ModelConfig:
    return FAMILY.read_hf(HFConfig(SIZES, PLACE))
