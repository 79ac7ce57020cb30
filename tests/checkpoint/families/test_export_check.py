"""Any model as any decoder family: it is written, with a rule for each of its weights, or refused
with a UsageError."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.checkpoint.families import (
    FAMILIES,
    deepseek,
    gemma3,
    gpt2,
    llama,
    marian,
    mistral,
    qwen,
)
from weft.checkpoint.families.base import Family
from weft.checkpoint.families.export_check import (
    ExportMismatchError,
    config_differences,
    export_config,
)
from weft.checkpoint.families.hf_config import HFConfig
from weft.checkpoint.tensor_source import tied_names
from weft.core.config import parse_override
from weft.core.errors import UsageError
from weft.models.build import build_model
from weft.models.config import ModelConfig

from ...contracts.settings import configs
from . import (
    test_deepseek_v2,
    test_deepseek_v3,
    test_gemma3,
    test_gpt2,
    test_mistral,
    test_qwen2,
    test_qwen3,
)
from .material import PLACE

HUB = {
    "mistral": (mistral.FAMILY, test_mistral.HUB),
    "qwen2": (qwen.QWEN2, test_qwen2.HUB),
    "qwen3": (qwen.QWEN3, test_qwen3.HUB),
    "gemma3": (gemma3.FAMILY, test_gemma3.HUB),
    "deepseek_v2": (deepseek.DEEPSEEK_V2, test_deepseek_v2.HUB),
    "deepseek_v3": (deepseek.DEEPSEEK_V3, test_deepseek_v3.HUB),
    "gpt2": (gpt2.FAMILY, test_gpt2.HUB),
}
"""Each family with the config.json of a real model."""
DECODERS = (llama.FAMILY, *(family for family, _ in HUB.values()))


def rules_fit(family: Family, config: ModelConfig) -> bool:
    """Whether each weight of the model has exactly one rule."""
    with torch.device("meta"):
        model = build_model(config)
    wanted = sorted(names[0] for names in tied_names(model).values())
    return wanted == sorted(rule.target_name for rule in family.rules(config))


@settings(max_examples=40)
@given(data=st.data(), kind=st.sampled_from(["decoder", "encoder", "encoder-decoder"]))
def test_a_model_is_written_or_refused_in_one_way(data: st.DataObject, kind: str) -> None:
    config = data.draw(configs(kind))
    for family in DECODERS:
        try:
            export_config(family, config)
        except UsageError:
            continue
        assert rules_fit(family, config), family.name


@pytest.mark.parametrize("name", HUB)
def test_the_settings_of_a_real_model_come_back_as_they_were(name: str) -> None:
    family, values = HUB[name]
    config = family.read_hf(HFConfig(values, PLACE))
    back = family.read_hf(HFConfig(export_config(family, config), PLACE))
    assert not config_differences(config, back)
    assert rules_fit(family, config.with_changes({"num_layers": 4}))


@pytest.mark.parametrize("name", HUB)
def test_a_real_model_is_written_as_no_family_that_is_not_its_own(name: str) -> None:
    """But a Mistral without windows, which is a Llama."""
    family, values = HUB[name]
    config = family.read_hf(HFConfig(values, PLACE))
    for other in DECODERS:
        if other is not family:
            with pytest.raises(UsageError, match=f"this model is not a {other.name}|DeepSeek"):
                export_config(other, config)


@pytest.mark.parametrize("name", HUB)
def test_settings_that_are_never_read_do_not_stand_in_the_way(name: str) -> None:
    family, values = HUB[name]
    config = family.read_hf(HFConfig(values, PLACE))
    pattern = {"attention.pattern.step": 3, "attention.pattern.stride": 7}
    export_config(family, config.with_changes(pattern))


TATOEBA = ModelConfig.from_dict(
    {
        "width": 32,
        "attention": {"num_heads": 4, "bias": True},
        "position": {"kind": "sinusoidal"},
        "feedforward": {"kind": "relu", "bias": True},
        "norm": {"placement": "before"},
        "embedding": {"tied": "all", "scale": True},
    }
)
"""As recipes/tatoeba.toml."""


def test_the_error_for_a_model_that_does_not_fit_names_settings_that_would() -> None:
    with pytest.raises(ExportMismatchError) as caught:
        export_config(marian.FAMILY, TATOEBA)
    result = str(caught.value)
    assert result == (
        "this model is not a marian: head.bias is False, not True; norm.placement is 'before', not "
        "'after'; position.layout is 'interleaved', not 'halves'. A model trained with --set "
        "model.head.bias=true --set model.norm.placement=after --set model.position.layout=halves "
        "can be written as marian."
    )
    changed = TATOEBA.with_changes(advised(result))
    assert export_config(marian.FAMILY, changed)["model_type"] == "marian"


def advised(message: str) -> dict[str, Any]:
    """The settings that a message says to train with, as a shell and --set read them."""
    words = shlex.split(message.partition("trained with ")[2])
    names = [word.removeprefix("model.") for word in words if word.startswith("model.")]
    return dict(parse_override(name) for name in names)


@settings(max_examples=40)
@given(data=st.data(), kind=st.sampled_from(["decoder", "encoder", "encoder-decoder"]))
def test_advice_that_is_given_is_right(data: st.DataObject, kind: str) -> None:
    config = data.draw(configs(kind))
    for family in FAMILIES:
        try:
            export_config(family, config)
        except UsageError as error:
            actual = advised(str(error))
            if actual:
                changed = config.with_changes(actual)
                assert export_config(family, changed)["model_type"] in family.model_types
