"""How a text is to be written: what keywords become, and what is refused without a model."""

from __future__ import annotations

import pytest

from weft.core.errors import ConfigError, UsageError
from weft.engine.grammar import make_grammar
from weft.engine.request_builder import GenerationOptions, sampling_options
from weft.sampling.params import SamplingParams

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def test_keywords_become_options() -> None:
    result = GenerationOptions.of(
        5, 2, stop=["x"], regex="[0-9]+", temperature=0.5, logit_bias={3: 1.0}
    )
    sampling = SamplingParams(temperature=0.5, logit_bias={3: 1.0})
    assert result == GenerationOptions(5, 2, sampling, ("x",), make_grammar("regex", "[0-9]+"))
    assert GenerationOptions.of(json_schema=SCHEMA).grammar == make_grammar("json_schema", SCHEMA)
    assert GenerationOptions.of() == GenerationOptions(sampling=SamplingParams())


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        (
            {"temprature": 1.0},
            ConfigError,
            "temprature is not a setting. Did you mean 'temperature",
        ),
        ({"top_p": -0.5}, ConfigError, "top_p is -0.5: it must be greater than or equal to 0"),
        ({"top_p": 2.0}, ConfigError, "top_p is 2.0: it must be less than or equal to 1"),
        ({"presence_penalty": 3.0}, ConfigError, "presence_penalty is 3.0: it must be less"),
        ({"stop": "x"}, UsageError, "stop is the str 'x': pass a list"),
        ({"stop": ["x", ""]}, UsageError, "a stop is '': it must have at least one character"),
        ({"regex": "["}, UsageError, "the grammar cannot be compiled: .*unclosed character class"),
        ({"regex": "(?=a)b"}, UsageError, "look-around.* is not supported. Change the schema or"),
        ({"regex": "a", "json_schema": {}}, UsageError, "json_schema and regex are both set"),
        (
            {"json_schema": {"type": "integr"}},
            UsageError,
            "the grammar cannot be compiled: .*integr",
        ),
        ({"json_schema": 7}, UsageError, "the JSON schema is int '7': it must be an object"),
    ],
)
def test_what_cannot_work_is_refused_without_a_model(keywords, error, message) -> None:
    with pytest.raises(error, match=message):
        GenerationOptions.of(**keywords)


def test_a_draw_reports_log_probabilities_and_has_no_beams() -> None:
    result = sampling_options(3, 1, 7, {"temperature": 0.5, "logprobs": None})
    assert (result.n, result.max_tokens, result.sampling.logprobs) == (3, 7, 0)
    with pytest.raises(UsageError, match="beam is 4, but temperature, seed requests sampling"):
        sampling_options(1, 4, None, {"temperature": 0.5, "seed": 2})
