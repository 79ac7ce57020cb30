"""BART through files and back: the same logits, and the same beams with a forced first token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration, BartModel

from weft.checkpoint.families.bart import FAMILY
from weft.checkpoint.families.export_check import export_config
from weft.checkpoint.families.hf_config import HFConfig
from weft.core.errors import DataError, UsageError
from weft.models.config import ModelConfig

from .folders import assert_round_trip, assert_same_beams, load, pairs, save, write
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
    "attn_implementation": "eager",
    # at the limit transformers would write an end that costs nothing
    "forced_eos_token_id": None,
}


def tiny(**changes: Any) -> BartForConditionalGeneration:
    original = shake(BartForConditionalGeneration(BartConfig(**{**SIZES, **changes})))
    original.final_logits_bias.copy_(torch.randn(1, 61))
    return original


@pytest.mark.parametrize(
    "changes",
    [{}, {"scale_embedding": True}, {"activation_function": "relu"}],
    ids=["bart", "scaled words", "relu"],
)
def test_logits_are_the_same_after_import_and_after_export(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    assert_round_trip(FAMILY, tiny(**changes), tmp_path)


def test_a_bare_model_has_no_bias_and_no_prefix(tmp_path: Path) -> None:
    original = shake(BartModel(BartConfig(**SIZES)))
    save(original, tmp_path / "theirs")
    model = load(FAMILY, tmp_path / "theirs").model
    again = write(FAMILY, model, tmp_path / "ours", original)
    source, target = pairs(61, 61)
    is_real_BS = torch.arange(17) < source.lengths_B[:, None]
    with torch.no_grad():
        got_BTV = model(target, source)
        for theirs in (original, again):
            x_BTD = theirs(source.ids_BT, is_real_BS.long(), target.ids_BT).last_hidden_state
            expected_BTV = x_BTD @ theirs.shared.weight.T
            torch.testing.assert_close(got_BTV, expected_BTV, atol=1e-4, rtol=1e-4)


def test_beam_search_finds_what_transformers_finds(tmp_path: Path) -> None:
    original = tiny(decoder_layers=2)
    original.final_logits_bias[0, 2] += 2.0
    original.generation_config.forced_bos_token_id = 7
    save(original, tmp_path)
    result = load(FAMILY, tmp_path)
    assert (
        result.generation_config.start,
        result.generation_config.ends,
        result.generation_config.first,
    ) == (2, (2,), 7)
    assert_same_beams(result, original, pad=1)


def test_sides_of_different_width_are_refused() -> None:
    inputs = HFConfig({**SIZES, "decoder_ffn_dim": 64}, PLACE)
    with pytest.raises(DataError, match="encoder_ffn_dim is 56 and decoder_ffn_dim is 64"):
        FAMILY.read_hf(inputs)


def test_a_classifier_is_refused_by_its_name() -> None:
    inputs = HFConfig({**SIZES, "architectures": ["BartForSequenceClassification"]}, PLACE)
    with pytest.raises(DataError, match="Weft reads BartModel and BartForConditionalGeneration"):
        FAMILY.read_hf(inputs)


def test_norm_before_is_refused() -> None:
    with pytest.raises(DataError, match="normalize_before is True: Weft supports False only"):
        FAMILY.read_hf(HFConfig({**SIZES, "normalize_before": True}, PLACE))
    with pytest.raises(UsageError, match="this model is not a bart"):
        export_config(FAMILY, ModelConfig(position={"kind": "learned", "offset": 2}))
