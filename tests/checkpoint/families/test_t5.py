"""T5 and T5 1.1 through files and back: the same logits, and the same beams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import T5Config, T5ForConditionalGeneration

from weft.checkpoint.families.export_check import export_config
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.families.t5 import FAMILY
from weft.checkpoint.gguf.writer import write_gguf
from weft.checkpoint.huggingface import open_folder
from weft.checkpoint.tensor_source import split_state
from weft.core.errors import DataError, UsageError
from weft.models.config import ModelConfig

from ..gguf.tiny import tokenizer
from .folders import assert_round_trip, assert_same_beams, load, save
from .material import PLACE, shake

SIZES: dict[str, Any] = {
    "vocab_size": 59,
    "d_model": 32,
    "d_kv": 12,
    "d_ff": 56,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
    "decoder_start_token_id": 0,
    "attn_implementation": "eager",
}

CHANGES: dict[str, dict[str, Any]] = {
    "t5": {},
    "plain gelu": {"feed_forward_proj": "gelu"},
    "t5 1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "gated and tied": {"feed_forward_proj": "gated-gelu"},
    "gated silu": {"feed_forward_proj": "gated-silu", "tie_word_embeddings": False},
    "plain and untied": {"tie_word_embeddings": False},
}


def tiny(**changes: Any) -> T5ForConditionalGeneration:
    """`transformers` 5 builds an untied T5 with a tied table and parts them on loading; here they
    are parted by hand."""
    original = T5ForConditionalGeneration(T5Config(**{**SIZES, **changes}))
    if changes.get("tie_word_embeddings") is False:
        original.lm_head.weight = torch.nn.Parameter(torch.randn(59, 32))
    return shake(original)


@pytest.mark.parametrize("name", CHANGES)
def test_logits_are_the_same_after_import_and_after_export(name: str, tmp_path: Path) -> None:
    assert_round_trip(FAMILY, tiny(**CHANGES[name]), tmp_path)


@pytest.mark.parametrize("name", ["t5", "t5 1.1"])
def test_beam_search_finds_what_transformers_finds(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    # transformers counts the layers of its cache in the encoder: both sides get as many
    original = tiny(**CHANGES[name], num_decoder_layers=2)
    with torch.no_grad():
        # an end that is likely now and then: a loud row of the output table
        original.lm_head.weight[1] *= 10
    save(original, tmp_path)
    found = load(FAMILY, tmp_path)
    assert (
        found.generation_config.start,
        found.generation_config.ends,
        found.generation_config.first,
    ) == (0, (1,), None)
    assert_same_beams(found, original, pad=0)


def test_old_files_say_that_the_output_is_untied_by_tie_word_embeddings() -> None:
    values = {**SIZES, "tie_word_embeddings": False}
    assert FAMILY.read_hf(HFConfig(values, PLACE)).embedding.tied == "input"
    values = {**SIZES, "tie_word_embeddings": True, "scale_decoder_outputs": False}
    assert FAMILY.read_hf(HFConfig(values, PLACE, ["lm_head.weight"])).embedding.tied == "input"


def test_a_tied_t5_1_1_of_transformers_5_has_neither_head_weights_nor_a_scale(
    tmp_path: Path,
) -> None:
    """Version 5 ties a fresh T5 1.1, and says so only by leaving lm_head.weight out."""
    changes = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    found = assert_round_trip(
        FAMILY, shake(T5ForConditionalGeneration(T5Config(**SIZES, **changes))), tmp_path
    )
    assert "lm_head.weight" not in load_file(tmp_path / "theirs" / "model.safetensors")
    assert (found.model.config.embedding.tied, found.model.config.head.scale) == ("all", 1.0)
    assert open_folder(tmp_path / "theirs").config == found.model.config
    tensors = split_state(found.model, FAMILY.rules(found.model.config))
    values = export_config(FAMILY, found.model.config) | {"relative_attention_max_distance": 128}
    with pytest.raises(
        UsageError, match="scale_decoder_outputs is False, which a GGUF file cannot"
    ):
        write_gguf(tmp_path / "x.gguf", values, tensors, tokenizer())


def test_padding_starts_a_translation_where_nothing_is_said() -> None:
    assert FAMILY.read_generation(HFConfig({"pad_token_id": 5}, PLACE)).start == 5
    assert FAMILY.read_generation(HFConfig({}, PLACE)).start == 0


def test_an_unknown_projection_is_refused_with_the_known_ones() -> None:
    given = HFConfig({**SIZES, "feed_forward_proj": "gated-tanh"}, PLACE)
    with pytest.raises(
        DataError, match="feed_forward_proj is 'gated-tanh': Weft supports gated-gelu"
    ):
        FAMILY.read_hf(given)


def test_a_model_with_other_positions_is_not_written_as_t5() -> None:
    with pytest.raises(UsageError, match="this model is not a t5"):
        export_config(FAMILY, ModelConfig(position={"kind": "sinusoidal"}))
