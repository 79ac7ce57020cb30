"""Tokenizers and end tokens with ids that the model does not have: a warning at load, and an error
of the requests that contain such an id, alone."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend

from weft.checkpoint.families.generation_config import GenerationConfig
from weft.checkpoint.weft_folder import Checkpoint
from weft.core.errors import DataError, UsageError
from weft.engine.loaded_model import LoadedModel
from weft.text.tokenizer import Tokenizer

from .tiny import tiny

ABSURD = 2**31 - 2


def with_id(checkpoint: Checkpoint, piece: str, index: int) -> Checkpoint:
    """The checkpoint with another id for a piece of its tokenizer."""
    settings = json.loads(checkpoint.tokenizer.backend.to_str())
    settings["model"]["vocab"][piece] = index
    tokenizer = Tokenizer(
        Backend.from_str(json.dumps(settings)), checkpoint.tokenizer.special_tokens
    )
    return replace(checkpoint, tokenizer=tokenizer)


def with_ends(checkpoint: Checkpoint, *ends: int) -> Checkpoint:
    return replace(checkpoint, generation_config=GenerationConfig(ends=ends))


def test_a_tokenizer_with_more_ids_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = tiny("decoder")
    with caplog.at_level(logging.WARNING):
        LoadedModel(checkpoint)
        assert not caplog.records
        model = LoadedModel(with_id(checkpoint, "z", 400))
    assert "tokenizer_ids=401 model_ids=317" in caplog.text
    expected = LoadedModel(checkpoint).generate("the cat", 5, temperature=0)
    assert model.generate("the cat", 5, temperature=0) == expected
    with pytest.raises(UsageError, match="the prompt contains id 400, but ids range from 0 to 316"):
        model.generate("the z", 5)
    with pytest.raises(UsageError, match="the text contains id 400"):
        model.embed(["the cat", "the z"])
    with pytest.raises(UsageError, match="the text contains id 400"):
        model.perplexity(["the cat", "the z"])
    assert model.client.engine.is_idle
    assert model.generate("the cat", 5, temperature=0) == expected


def test_the_source_of_a_translation_is_checked_too() -> None:
    model = LoadedModel(with_id(tiny(), "e", 400))
    with pytest.raises(UsageError, match="the source contains id 400, but ids range from 0 to 60"):
        model.translate(["e d"])
    assert model.translate(["a d"])


@pytest.mark.parametrize("index", [ABSURD, 1 << 24])
def test_an_absurd_id_is_refused(index: int) -> None:
    with pytest.raises(DataError, match=f"a token with id {index}: at most 16777215 is allowed"):
        LoadedModel(with_id(tiny("decoder"), "z", index))


@pytest.mark.parametrize("grammar", [{}, {"regex": "[a-c]{2,4}"}])
@pytest.mark.parametrize("index", [317, ABSURD])
def test_an_end_that_the_model_does_not_have_never_comes(
    index: int, grammar: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = tiny("decoder")
    with caplog.at_level(logging.WARNING):
        model = LoadedModel(with_ends(checkpoint, index))
    assert f"eos_token_id={index} model_ids=317" in caplog.text
    expected = LoadedModel(checkpoint).generate("the", 8, temperature=0, **grammar)
    assert model.generate("the", 8, temperature=0, **grammar) == expected
    two = LoadedModel(with_ends(checkpoint, index, 2))
    assert two.request_builder.ends == {2}
    assert two.generate("the", 8, temperature=0, **grammar) == expected


def test_a_translation_needs_an_end(caplog: pytest.LogCaptureFixture) -> None:
    model = LoadedModel(with_ends(tiny(), ABSURD))
    for beam in (1, 3):
        with pytest.raises(UsageError, match=f"ends contains id {ABSURD}, but ids range"):
            model.translate(["the cat"], beam=beam)
    assert LoadedModel(with_ends(tiny(), ABSURD, 2)).translate(["the cat"], beam=3)
