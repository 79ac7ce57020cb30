"""GPT-2 through our import and back: matrices as [in, out], and files from before its prefix."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from weft.checkpoint.families.export_check import export_config
from weft.checkpoint.families.gpt2 import FAMILY
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.tensor_source import InMemorySource, build_from_source
from weft.core.errors import DataError, UsageError
from weft.core.forward_batch import ForwardBatch
from weft.models.config import ModelConfig

from .material import PLACE, assert_both_spellings_are_read_alike, both_ways, shake

SIZES = {
    "vocab_size": 71,
    "n_positions": 48,
    "n_embd": 36,
    "n_layer": 3,
    "n_head": 4,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "attn_implementation": "eager",
}
HUB = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "eos_token_id": 50256,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
    "vocab_size": 50257,
}
"""config.json of gpt2."""

CHANGES = {
    "plain": {},
    "inner width": {"n_inner": 100},
    "untied": {"tie_word_embeddings": False},
    "exact gelu": {"activation_function": "gelu"},
    "unscaled": {"scale_attn_weights": False},
}


@pytest.mark.parametrize("name", CHANGES)
def test_logits_are_the_same_after_import_and_after_export(name: str, tmp_path: Path) -> None:
    original = shake(GPT2LMHeadModel(GPT2Config(**{**SIZES, **CHANGES[name]})))
    both_ways(FAMILY, original, tmp_path)


def test_the_file_of_gpt2_is_read_in_both_spellings() -> None:
    config = assert_both_spellings_are_read_alike(FAMILY, HUB, GPT2Config)
    assert (config.feedforward.kind, config.feedforward.width) == ("gelu_tanh", 3072)
    assert (config.max_len, config.embedding.tied) == (1024, "all")


def test_masks_that_old_files_keep_are_left_unread(tmp_path: Path) -> None:
    original = shake(GPT2LMHeadModel(GPT2Config(**SIZES)))
    original.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    for i in range(3):
        state[f"transformer.h.{i}.attn.bias"] = torch.ones(1, 1, 48, 48).tril().bool()
        state[f"transformer.h.{i}.attn.masked_bias"] = torch.tensor(-10000.0)
    config = FAMILY.read_hf(HFConfig(original.config.to_dict(), PLACE))
    model = build_from_source(
        config, FAMILY.rules(config), InMemorySource(state, PLACE), FAMILY.ignored
    )
    ids_BT = torch.randint(0, 71, (2, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        got, expected = model(ForwardBatch(ids_BT)), original(ids_BT).logits
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer_idx is True: Weft supports False only.",
        ),
        ({"add_cross_attention": True}, "add_cross_attention is True: Weft supports False only."),
        (
            {"activation_function": "mish"},
            "activation_function is 'mish': Weft supports gelu, gelu_f",
        ),
    ],
)
def test_what_weft_does_not_compute_is_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(DataError, match=re.escape(sentence)):
        FAMILY.read_hf(HFConfig({**HUB, **changes}, PLACE))


def test_a_gated_layer_is_not_written_as_gpt2() -> None:
    config = ModelConfig(kind="decoder", feedforward={"kind": "swiglu"})
    with pytest.raises(UsageError, match="this model is not a gpt2: "):
        export_config(FAMILY, config)
