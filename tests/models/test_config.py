"""Settings of a model: every mistake is answered, all of them at once, with what to do."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from weft.core.errors import ConfigError
from weft.models.config import ModelConfig
from weft.nn.attention.config import warn_once

MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "heads that do not divide the width": (
        {"width": 100, "attention": {"num_heads": 8}},
        "width is 100 but attention.num_heads is 8: heads must divide the width. Use one of 1, 2, "
        "4, 5, 10, 20, 25, 50 heads, or set attention.head_size.",
    ),
    "groups that do not divide the heads": (
        {"attention": {"kind": "gqa", "num_heads": 12, "num_kv_heads": 5}, "width": 96},
        "num_heads is 12 but num_kv_heads is 5: heads must be a multiple of kv heads. Use 1, 2, 3, "
        "4, 6, 12.",
    ),
    "an unknown kind of heads": (
        {"attention": {"kind": "mla2"}},
        "attention.kind is 'mla2': allowed are mha, gqa, mqa, mla. Did you mean 'mla'?",
    ),
    "an unknown position": ({"position": {"kind": "rotory"}}, "Did you mean 'rotary'?"),
    "an unknown key": ({"widht": 3}, "widht is not a setting. Did you mean 'width'?"),
    "an unknown key of a part": (
        {"attention": {"heads": 4}},
        "attention.heads is not a setting. Did you mean 'num_heads'?",
    ),
    "a size of nothing": ({"width": 0}, "width is 0: it must be greater than or equal to 1."),
    "a share above one": ({"dropout": 1.5}, "dropout is 1.5: it must be less than 1."),
    "two vocabularies in one table": (
        {"vocab_size": 10, "source_vocab_size": 20},
        "source_vocab_size is 20, vocab_size is 10 and embedding.tied is all: one table has one "
        "size. Set embedding.tied = output, or leave source_vocab_size out.",
    ),
    "a source without an encoder": (
        {"kind": "decoder", "source_vocab_size": 20},
        "source_vocab_size is 20 but kind is decoder: only an encoder-decoder has a source.",
    ),
    "an odd head under rotary": (
        {"width": 36, "attention": {"num_heads": 4}, "position": {"kind": "rotary"}},
        "position.kind is rotary but it would rotate 9 numbers of each head (the head size is 9, "
        "position.fraction 1): it rotates pairs, so that must be even and at least 2.",
    ),
    "blocks that are missing": (
        {"attention": {"pattern": {"kind": "blocks"}}},
        "kind is blocks, but blocks is empty: give rows of true and false.",
    ),
    "blocks of different lengths": (
        {"attention": {"pattern": {"kind": "blocks", "blocks": [[1, 0], [1]]}}},
        "the rows of blocks have lengths [2, 1]: make them equal.",
    ),
    "blocks that are too few": (
        {"max_len": 100, "attention": {"pattern": {"kind": "blocks", "blocks": [[1]]}}},
        "attention.pattern.blocks covers 64 tokens but max_len is 100: add rows and columns, or "
        "set max_len to at most 64.",
    ),
    "more dense layers than layers": (
        {"num_layers": 2, "dense_layers": 3},
        "dense_layers is 3 but num_layers is 2: no layer would have experts. Use at most 2.",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_with_the_value_and_what_is_allowed(name: str) -> None:
    values, sentence = MISTAKES[name]
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        ModelConfig(**values)


def test_all_problems_come_in_one_message() -> None:
    with pytest.raises(ConfigError) as caught:
        ModelConfig(width=100, dropout=2, layrs=3, position={"kind": "rotary", "base": -1})
    text = str(caught.value)
    assert text.startswith("4 problems in the settings:")
    for part in ("width is 100", "dropout is 2", "layrs is not a setting", "position.base is -1"):
        assert part in text


def test_a_setting_without_effect_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            ModelConfig(width=88, attention={"kind": "mqa", "num_heads": 11, "num_kv_heads": 7})
    assert [r.message for r in caplog.records] == [
        "num_kv_heads=7 has no effect: attention.kind=mqa sets it"
    ]


def test_a_norm_that_latent_heads_do_not_have_is_said(caplog: pytest.LogCaptureFixture) -> None:
    warn_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        ModelConfig(attention={"kind": "mla", "qk_norm": True})
    assert [r.message for r in caplog.records] == [
        "qk_norm=True has no effect: attention.kind=mla norms its latent rows instead"
    ]


def test_a_new_kind_keeps_the_settings_that_it_knows_too() -> None:
    config = ModelConfig(
        width=64, attention={"num_heads": 4}, feedforward={"kind": "relu", "width": 96}
    )
    changed = config.with_changes({"attention.kind": "mla", "feedforward.kind": "swiglu"})
    assert (changed.attention.kind, changed.attention.num_heads) == ("mla", 4)
    assert (changed.feedforward.kind, changed.feedforward.width) == ("swiglu", 96)


def test_settings_survive_a_round_trip_through_plain_values() -> None:
    config = ModelConfig(
        position={"kind": "rotary", "scaling": {"kind": "linear", "factor": 2}},
        feedforward={"kind": "experts"},
    )
    assert ModelConfig.from_dict(config.to_dict()) == config
