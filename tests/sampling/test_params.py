"""Sampling parameters: a wrong value raises an error with the value and the allowed range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_origin, get_type_hints

import pytest

from weft.core.errors import ConfigError, UsageError
from weft.sampling.logits_processors import WARPERS
from weft.sampling.params import SamplingKeywords, SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -1.0),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_k", 2.5),
        ("top_p", -0.1),
        ("top_p", 1.1),
        ("top_p", float("nan")),
        ("min_p", 1.0),
        ("min_p", -0.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", float("inf")),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("frequency_penalty", float("nan")),
        ("seed", -1),
        ("logprobs", -1),
    ],
)
def test_impossible_values_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value}: .*Change {name}"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"logit_bias": {-3: 1.0}}, "logit_bias.*is -3: it must be greater than or equal to 0"),
        ({"logit_bias": {3: float("nan")}}, "logit_bias.3 is nan: it must be a finite number"),
        ({"banned": [4, -1]}, "banned.1 is -1"),
    ],
)
def test_impossible_ids_and_numbers_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SamplingParams(**settings)


def test_ids_outside_the_vocabulary_are_refused() -> None:
    SamplingParams(logit_bias={4: 1.0}, banned=[0, 4]).check_ids(5)
    with pytest.raises(UsageError, match="logit_bias contains id 5, but ids range from 0 to 4"):
        SamplingParams(logit_bias={5: 1.0}).check_ids(5)
    with pytest.raises(UsageError, match="banned contains id 9, but ids range from 0 to 4"):
        SamplingParams(banned=[1, 9]).check_ids(5)
    with pytest.raises(UsageError, match="banned contains all 3 ids"):
        SamplingParams(banned=[0, 1, 2, 1]).check_ids(3)


def test_greedy_is_temperature_zero_and_what_float32_cannot_tell_from_it() -> None:
    assert SamplingParams(temperature=0).is_greedy and SamplingParams(temperature=1e-9).is_greedy
    assert not SamplingParams(temperature=0.01).is_greedy and not SamplingParams().is_greedy


def test_parameters_know_whether_they_change_the_most_likely_token() -> None:
    assert not SamplingParams(top_k=4, top_p=0.5, seed=9, temperature=0.1).changes_argmax
    for settings in (
        {"logit_bias": {3: 0.1}},
        {"banned": (3,)},
        {"repetition_penalty": 1.1},
        {"presence_penalty": -0.1},
        {"frequency_penalty": 0.1},
    ):
        assert SamplingParams(**settings).changes_argmax


def test_settings_survive_json() -> None:
    config = SamplingParams(logit_bias={3: 0.5}, banned=[7], logprobs=2, min_p=0.1)
    assert SamplingParams.from_dict(config.to_dict()) == config


def test_the_keywords_are_the_parameters() -> None:
    assert [*SamplingKeywords.__annotations__] == [*SamplingParams.model_fields]
    for name, kind in get_type_hints(SamplingKeywords).items():
        annotation = SamplingParams.model_fields[name].annotation
        scalar = {Mapping[int, float]: dict, Sequence[int]: tuple}.get(kind, kind)
        assert get_origin(annotation) is scalar or annotation == scalar, name


def test_every_parameter_has_a_help_text() -> None:
    assert all(field.description for field in SamplingParams.model_fields.values())


def test_the_parameters_that_keep_the_most_likely_token_are_the_warpers() -> None:
    assert SamplingParams.keep_argmax == {*WARPERS, "seed", "logprobs"}
