"""Bad values in calls of a loaded model: one sentence each, and the model answers as before."""

from __future__ import annotations

from collections.abc import Callable
from math import nan
from pathlib import Path
from typing import Any

import pytest
import torch

from weft.core.errors import ConfigError, DataError, UsageError
from weft.engine.beam_search import BeamConfig
from weft.engine.loaded_model import LoadedModel, load
from weft.engine.request import GenerationRequest

from .tiny import tiny

NOT_LISTS: list[Any] = [None, 5, {"a": "b"}, (text for text in "ab")]
NOT_TEXTS: list[Any] = [[None], ["the", 5], [b"the"], [["the"]]]
NOT_STOPS: list[Any] = [5, [5], [None], [b"a"], [["a"]]]
NO_NUMBERS: list[Any] = ["4", None, [4], 1j]

Call = Callable[[LoadedModel, Any], Any]
CALLS: dict[str, tuple[str, Call, list[Any]]] = {
    "translate": ("encoder-decoder", lambda m, texts: m.translate(texts), NOT_LISTS + NOT_TEXTS),
    "embed": ("encoder-decoder", lambda m, texts: m.embed(texts), NOT_LISTS + NOT_TEXTS),
    "perplexity": ("decoder", lambda m, texts: m.perplexity(texts), NOT_LISTS + NOT_TEXTS),
    "completions": ("decoder", lambda m, texts: m.completions(texts), NOT_LISTS + NOT_TEXTS),
    "stop": ("decoder", lambda m, stop: m.generate("the", stop=stop), NOT_STOPS),
    "beam": ("encoder-decoder", lambda m, beam: m.translate(["the"], beam=beam), NO_NUMBERS),
    "num_best": ("encoder-decoder", lambda m, n: m.translate_best(["the"], n, beam=4), NO_NUMBERS),
    "length_penalty": (
        "encoder-decoder",
        lambda m, penalty: m.translate(["the"], length_penalty=penalty),
        NO_NUMBERS,
    ),
    "multipleOf": (
        "decoder",
        lambda m, value: m.generate("the", json_schema={"type": "number", "multipleOf": value}),
        [nan, float("inf"), -float("inf")],
    ),
}


HUGE: list[Any] = [10**400, -(10**400), 10**5000, -(10**5000)]
"""Python neither turns them into floats nor prints the last two."""
COUNT_OF_SCHEMA = ("minLength", "maxLength", "minItems", "maxItems", "minProperties")
HUGE_CALLS: dict[str, Call] = {
    "max_tokens": lambda m, number: m.generate("the", max_tokens=number),
    "n": lambda m, number: m.completions(["the"], n=number),
    "logprobs": lambda m, number: m.generate("the", logprobs=number),
    "temperature": lambda m, number: m.generate("the", temperature=number),
    "repetition_penalty": lambda m, number: m.generate("the", repetition_penalty=number),
    "a biased id": lambda m, number: m.generate("the", logit_bias={number: 1}),
    "a bias": lambda m, number: m.generate("the", logit_bias={5: number}),
    "a banned id": lambda m, number: m.generate("the", banned=[number]),
    "an id": lambda m, number: m.client.generate(GenerationRequest((5, number), 3)),
    "an end": lambda m, number: m.client.generate(
        GenerationRequest((5,), 3, ends=frozenset([number]))
    ),
    "min_tokens": lambda m, number: m.client.generate(
        GenerationRequest((5,), 3, min_tokens=number)
    ),
    "a text": lambda m, number: m.embed([number]),
    "a stop": lambda m, number: m.generate("the", stop=[number]),
    "beam": lambda m, number: m.client.generate(
        GenerationRequest((5,), 3, beam=BeamConfig(number), ends=frozenset([2]))
    ),
    "num_best": lambda m, number: BeamConfig(2, num_best=number),
    "length_penalty": lambda m, number: BeamConfig(2, number),
    **{
        name: lambda m, number, name=name: load("/nowhere", engine={name: number})
        for name in ("num_pages", "token_budget", "max_running", "page_size", "cache_gib")
    },
}


@pytest.mark.parametrize("number", HUGE, ids=["1e400", "-1e400", "1e5000", "-1e5000"])
@pytest.mark.parametrize("name", HUGE_CALLS)
def test_an_integer_beyond_all_floats_is_one_sentence(
    name: str, number: int, models: dict[str, LoadedModel]
) -> None:
    """They were an OverflowError, or a ValueError about the conversion of integers to text."""
    with pytest.raises((UsageError, ConfigError), match=r"^[^\n]{1,600}$|problems in the"):
        HUGE_CALLS[name](models["decoder"], number)


@pytest.mark.parametrize("number", [10**400, 10**5000], ids=["1e400", "1e5000"])
@pytest.mark.parametrize("name", COUNT_OF_SCHEMA)
def test_a_count_of_a_schema_beyond_all_floats_is_one_sentence(
    name: str, number: int, models: dict[str, LoadedModel]
) -> None:
    """A JSON body with 400 digits was an OverflowError."""
    with pytest.raises(UsageError, match=f"{name} of the JSON schema is .*: at most 100000 is all"):
        models["decoder"].generate("the", json_schema={"type": "string", name: number})


@pytest.fixture(scope="module")
def models() -> dict[str, LoadedModel]:
    return {kind: LoadedModel(tiny(kind)) for kind in ("decoder", "encoder-decoder")}


@pytest.mark.parametrize("name", CALLS)
def test_a_value_of_a_wrong_type_is_one_sentence(name: str, models: dict[str, LoadedModel]) -> None:
    """They were an AttributeError, TypeError, KeyError or ValueError of the code they met."""
    kind, call, values = CALLS[name]
    model = models[kind]
    expected = answer(model)
    for value in values:
        with pytest.raises(UsageError, match=r"^[^\n]*\.$"):
            call(model, value)
    assert answer(model) == expected


def answer(model: LoadedModel) -> Any:
    if model.kind == "decoder":
        return model.generate("the cat", max_tokens=4, seed=3)
    return model.translate(["the cat"], beam=2)


@pytest.mark.parametrize("model", [None, 5, b"model", ["model"]])
def test_a_model_that_is_no_path_is_refused(model: Any) -> None:
    with pytest.raises(UsageError, match="model is .*: it must be a path or a name"):
        load(model)


def test_a_name_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"xx: cannot be opened \(File name too long\)"):
        load(tmp_path / ("x" * 300))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": None}, "device is None: it must be a str"),
        ({"device": torch.device("cpu")}, "device is device.*: it must be a str"),
        ({"dtype": torch.float16}, "dtype is torch.float16: it must be a str, as 'float32'"),
        ({"dtype": None}, "dtype is None: it must be a str"),
        ({"engine": 5}, "engine is 5: it must be an EngineConfig or a dict of its fields"),
        ({"engine": []}, r"engine is \[\]: it must be an EngineConfig or a dict of its fields"),
    ],
)
def test_an_option_of_load_of_a_wrong_type_is_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message):
        load(tmp_path, **options)


def test_a_cache_larger_than_any_memory_is_refused(tmp_path: Path) -> None:
    """1e300 GiB was an OverflowError."""
    with pytest.raises(ConfigError, match="cache_gib is 1e\\+300: it must be less than or equal"):
        load(tmp_path, engine={"cache_gib": 1e300})
