"""What holds for every entry of FAMILIES: its rules describe the whole model, weights and settings
come back as they were, and nothing is ambiguous."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BartConfig, MarianConfig

from weft.checkpoint.families import FAMILIES, family_of
from weft.checkpoint.families.base import Family
from weft.checkpoint.families.export_check import config_differences, export_config
from weft.checkpoint.families.generation_config import GenerationConfig
from weft.checkpoint.families.gguf_metadata import GGUFMetadata
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.tensor_source import (
    InMemorySource,
    build_from_source,
    split_state,
    unique_state,
)
from weft.models.build import build_model

from .. import fairseq_oracle
from ..gguf.tiny import MODELS
from . import test_bart, test_marian

PLACE = Path("tiny/config.json")
FAIRSEQ = {
    **vars(fairseq_oracle.arguments()),
    "model_type": "fairseq",
    "source_vocab_size": 13,
    "target_vocab_size": 11,
}
VALUES: dict[str, dict[str, Any]] = {
    **{config.model_type: config.to_dict() for _, config in reversed(MODELS.values())},
    "bart": BartConfig(**test_bart.SIZES).to_dict(),
    "marian": MarianConfig(**test_marian.SIZES).to_dict(),
    "fairseq": FAIRSEQ,
}
"""A small config.json by model_type."""
EACH_FAMILY = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def values_of(family: Family) -> HFConfig:
    return HFConfig(VALUES[family.model_types[0]], PLACE)


@EACH_FAMILY
def test_weights_survive_writing_and_reading(family: Family) -> None:
    config = family.read_hf(values_of(family))
    torch.manual_seed(0)
    model = build_model(config)
    state = split_state(model, family.rules(config))
    names = [name for rule in family.rules(config) for name in rule.file_names]
    assert list(state) == names and len(set(names)) == len(names)
    again = build_from_source(config, family.rules(config), InMemorySource(state, PLACE))
    expected = unique_state(model)
    assert unique_state(again).keys() == expected.keys()
    for name, tensor in unique_state(again).items():
        assert torch.equal(tensor, expected[name]), name


@EACH_FAMILY
def test_settings_survive_writing_and_reading(family: Family) -> None:
    config = family.read_hf(values_of(family))
    if family.write_hf is None:
        assert family.name == "fairseq"
        return
    values = export_config(family, config)
    assert values["model_type"] in family.model_types and len(values["architectures"]) == 1
    assert not config_differences(config, family.read_hf(HFConfig(values, PLACE)))


@EACH_FAMILY
def test_gguf_metadata_survives_writing_and_reading(family: Family) -> None:
    if family.gguf is None:
        assert family.name in ("bart", "marian", "fairseq")
        return
    hf = values_of(family)
    assert all(isinstance(key, str) and "." in key for key in family.gguf.write_gguf(hf))
    metadata = {"general.architecture": family.gguf.name, **family.gguf.write_gguf(hf)}
    model = build_model(family.read_hf(hf))
    tensors = split_state(model, family.rules(model.config))
    shapes = {
        name: tuple(part.shape)
        for rule in family.gguf.rules(hf.values)
        for name, part in zip(rule.file_names, rule.split(tensors[rule.target_name]), strict=True)
    }
    gguf = GGUFMetadata(metadata, shapes, tensors.__getitem__, PLACE)
    values = family.gguf.read_gguf(gguf)
    restored = family_of(values["model_type"], PLACE)
    # Mistral without a window is a Llama
    assert restored.name == ("llama" if family.name == "mistral" else family.name)
    without_pooler = HFConfig({**hf.values, "add_pooling_layer": False}, PLACE)
    config = restored.read_hf(HFConfig(values, PLACE))
    assert not config_differences(config, family.read_hf(without_pooler))


@EACH_FAMILY
def test_the_generation_config_is_read(family: Family) -> None:
    config = family.read_generation(values_of(family))
    assert GenerationConfig.from_dict(config.to_dict()) == config
    assert (config.start is None) == (family.read_hf(values_of(family)).kind != "encoder-decoder")


def test_names_and_model_types_are_unique() -> None:
    names = [family.name for family in FAMILIES]
    model_types = [name for family in FAMILIES for name in family.model_types]
    assert len(set(names)) == len(names) and len(set(model_types)) == len(model_types)
    assert set(VALUES) >= {family.model_types[0] for family in FAMILIES}
    architectures = {id(family.gguf): family.gguf.name for family in FAMILIES if family.gguf}
    assert len(set(architectures.values())) == len(architectures)
