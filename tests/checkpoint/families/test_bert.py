"""BERT through files and back: vectors, pooler and masked words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertForPreTraining, BertModel

from weft.checkpoint.families.bert import FAMILY
from weft.checkpoint.families.export_check import export_config
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.huggingface import build_hf, open_folder
from weft.core.errors import ConfigError, DataError, UsageError
from weft.core.forward_batch import ForwardBatch
from weft.models.build import build_model
from weft.models.config import ModelConfig
from weft.models.transformer import Encoder

from .folders import load, save, write
from .material import PLACE, shake

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 5,
    "intermediate_size": 96,
    "max_position_embeddings": 32,
    "attn_implementation": "eager",
}


def texts() -> tuple[ForwardBatch, dict[str, Tensor]]:
    """Padded texts in two segments, as ours and as theirs."""
    generator = torch.Generator().manual_seed(2)
    ids_BT = torch.randint(0, 61, (3, 19), generator=generator)
    segments_BT = torch.randint(0, 2, (3, 19), generator=generator)
    lengths_B = torch.tensor([19, 11, 1])
    is_real_BT = torch.arange(19) < lengths_B[:, None]
    return ForwardBatch(ids_BT, lengths_B=lengths_B, segments_BT=segments_BT), {
        "input_ids": ids_BT,
        "attention_mask": is_real_BT.long(),
        "token_type_ids": segments_BT,
    }


def encoder(model: object) -> Encoder:
    assert isinstance(model, Encoder)
    return model


@pytest.mark.parametrize("activation", ["gelu", "relu", "silu", "gelu_new"])
def test_vectors_and_pooler_are_the_same_after_import_and_after_export(
    activation: str, tmp_path: Path
) -> None:
    original = shake(BertModel(BertConfig(**SIZES, hidden_act=activation)))
    save(original, tmp_path / "theirs")
    result = load(FAMILY, tmp_path / "theirs")
    model, (batch, inputs) = encoder(result.model), texts()
    again = write(FAMILY, model, tmp_path / "ours", original)
    is_real_BT = inputs["attention_mask"].bool()
    with torch.no_grad():
        got_BTD, pooled_BD = model(batch)[is_real_BT], model.pooled(batch)
        for theirs in (original, again):
            expected = theirs(**inputs)
            vectors = expected.last_hidden_state[is_real_BT]
            torch.testing.assert_close(got_BTD, vectors, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(pooled_BD, expected.pooler_output, atol=1e-4, rtol=1e-4)
    assert result.generation_config.pooling == "mean"


@pytest.mark.parametrize("is_tied", [True, False], ids=["tied", "untied"])
def test_masked_words_are_the_same_after_import_and_after_export(
    is_tied: bool, tmp_path: Path
) -> None:
    original = shake(BertForMaskedLM(BertConfig(**SIZES, tie_word_embeddings=is_tied)))
    save(original, tmp_path / "theirs")
    model, (batch, inputs) = encoder(load(FAMILY, tmp_path / "theirs").model), texts()
    again = write(FAMILY, model, tmp_path / "ours", original)
    is_real_BT = inputs["attention_mask"].bool()
    with torch.no_grad():
        got = model.logits(batch)[is_real_BT]
        for theirs in (original, again):
            expected = theirs(**inputs).logits[is_real_BT]
            torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_a_file_of_the_first_training_gives_its_masked_words(tmp_path: Path) -> None:
    original = shake(BertForPreTraining(BertConfig(**SIZES)))
    save(original, tmp_path)
    model, (batch, inputs) = encoder(load(FAMILY, tmp_path).model), texts()
    is_real_BT = inputs["attention_mask"].bool()
    with torch.no_grad():
        expected = original(**inputs).prediction_logits[is_real_BT]
        torch.testing.assert_close(model.logits(batch)[is_real_BT], expected, atol=1e-4, rtol=1e-4)


def test_an_encoder_without_a_pooler_is_read_back_without_one() -> None:
    config = FAMILY.read_hf(HFConfig({**SIZES, "add_pooling_layer": False}, PLACE))
    assert not config.pooler
    assert export_config(FAMILY, config)["add_pooling_layer"] is False
    with pytest.raises(UsageError, match="this encoder has no pooler"):
        encoder(build_model(config)).pooled(ForwardBatch(torch.zeros(1, 2, dtype=torch.long)))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ({"architectures": ["BertForSequenceClassification"]}, "Weft reads BertModel and Bert"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish': Weft supports gelu"),
        ({"is_decoder": True}, "is_decoder is True"),
        ({"hidden_act": "relu", "architectures": ["BertForMaskedLM"]}, "hidden_act is 'relu'"),
    ],
)
def test_what_is_no_plain_bert_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        FAMILY.read_hf(HFConfig({**SIZES, **values}, PLACE))


def test_only_an_encoder_has_a_pooler() -> None:
    with pytest.raises(ConfigError, match="pooler is True but kind is decoder"):
        ModelConfig(kind="decoder", pooler=True)
    with pytest.raises(UsageError, match="this model is not a bert"):
        export_config(FAMILY, ModelConfig(kind="encoder"))


def test_a_file_of_earlier_days_names_its_norms_otherwise(tmp_path: Path) -> None:
    original = shake(BertForMaskedLM(BertConfig(**SIZES)))
    save(original, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    ends = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    for new, old in ends.items():
        tensors = {n.replace(new, old): t for n, t in tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    opened = open_folder(tmp_path)
    model, (batch, inputs) = encoder(build_hf(opened, "cpu", torch.float32)), texts()
    is_real_BT = inputs["attention_mask"].bool()
    with torch.no_grad():
        expected = original(**inputs).logits[is_real_BT]
        torch.testing.assert_close(model.logits(batch)[is_real_BT], expected, atol=1e-4, rtol=1e-4)
    both = {**tensors, "bert.embeddings.LayerNorm.weight": torch.ones(40)}
    save_file(both, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(DataError, match=r"bert\.embeddings\.LayerNorm\.gamma is not part of"):
        build_hf(open_folder(tmp_path), "cpu", torch.float32)
