"""Settings: frozen, every problem in one message, cross-field rules, overrides, files."""

import json
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from weft.core.config import (
    Config,
    parse_override,
    read_settings,
    with_overrides,
)
from weft.core.errors import ConfigError, DataError, Problem


class RotaryConfig(Config):
    kind: Literal["rotary"] = "rotary"
    base: float = Field(10000.0, gt=0)


class BucketConfig(Config):
    kind: Literal["buckets", "bins"] = "buckets"
    num_buckets: int = 32


class HeadsConfig(Config):
    num_heads: int = Field(4, ge=1)
    num_kv_heads: int = Field(2, ge=1)

    def cross_checks(self):
        if self.num_heads % self.num_kv_heads:
            yield Problem(
                f"num_heads is {self.num_heads} but num_kv_heads is {self.num_kv_heads}.",
                ("num_heads", "num_kv_heads"),
            )


class SmallConfig(Config):
    width: int = Field(32, ge=1)
    """Numbers per token."""
    dropout: float = Field(0.1, ge=0, lt=1)
    norm: Literal["layer", "rms"] = "layer"
    window: int | list[int] | None = None
    heads: HeadsConfig = HeadsConfig()
    extra: list[HeadsConfig] = []
    position: Annotated[RotaryConfig | BucketConfig, Field(discriminator="kind")] = RotaryConfig()

    def cross_checks(self):
        if self.width % self.heads.num_heads:
            yield Problem(
                f"width is {self.width} but heads.num_heads is {self.heads.num_heads}.",
                ("width", "heads.num_heads"),
            )


class NeedyConfig(Config):
    path: str
    width: int = 1


def problems_of(cls, values):
    with pytest.raises(ConfigError) as caught:
        cls.from_dict(values)
    return [problem.text for problem in caught.value.problems]


def test_settings_from_keywords_from_a_dict_and_from_json_are_the_same():
    made = SmallConfig(width=64, position={"kind": "bins"})
    assert SmallConfig.from_dict({"width": 64, "position": {"kind": "bins"}}) == made
    assert SmallConfig.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_settings_do_not_change():
    with pytest.raises(ValidationError, match="frozen"):
        SmallConfig().width = 3


def test_the_string_under_a_field_documents_it():
    assert SmallConfig.model_fields["width"].description == "Numbers per token."


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"width": 0}, "width is 0: it must be greater than or equal to 1. Change width."),
        ({"norm": "rsm"}, "norm is 'rsm': allowed are layer, rms. Did you mean 'rms'?"),
        ({"norm": "?"}, "norm is '?': allowed are layer, rms. Use one of these."),
        (
            {"position": {"kind": "rotery"}},
            "position.kind is 'rotery': allowed are rotary, buckets, bins. Did you mean 'rotary'?",
        ),
        (
            {"position": {"base": 5}},
            "position.kind is missing: allowed are rotary, buckets, bins. Set position.kind.",
        ),
        (
            {"position": {"kind": "rotary", "base": -1}},
            "position.base is -1: it must be greater than 0. Change position.base.",
        ),
        (
            {"heads": {"num_heads": 4, "num_kv_heads": 3}},
            "in heads: num_heads is 4 but num_kv_heads is 3.",
        ),
        (
            {"extra": [{}, {"num_heads": 0}]},
            "extra.1.num_heads is 0: it must be greater than or equal to 1. "
            "Change extra.1.num_heads.",
        ),
    ],
)
def test_a_wrong_value_is_one_sentence_with_what_is_allowed(values, text):
    assert problems_of(SmallConfig, values) == [text]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (
            {"heads": {"num_head": 4}},
            "heads.num_head is not a setting. Did you mean 'num_heads'? "
            "Known here: num_heads, num_kv_heads.",
        ),
        (
            {"position": {"kind": "bins", "zzz": 4}},
            "position.zzz is not a setting. Known here: kind, num_buckets.",
        ),
        (
            {"extra": [{"num_head": 4}]},
            "extra.0.num_head is not a setting. Did you mean 'num_heads'? "
            "Known here: num_heads, num_kv_heads.",
        ),
    ],
)
def test_an_unknown_key_names_the_nearest_and_the_keys_of_the_chosen_kind_only(values, text):
    assert problems_of(SmallConfig, values) == [text]


def test_a_value_that_fits_no_branch_of_a_union_is_named_without_the_branch():
    texts = problems_of(SmallConfig, {"window": "far"})
    assert texts
    assert all(text.startswith("window is 'far': it must be a valid") for text in texts)


def test_a_missing_value_is_said_to_be_missing():
    assert problems_of(NeedyConfig, {}) == ["path is missing: it has no default. Set it."]


def test_all_problems_come_at_once():
    values = {"width": 6, "dropout": 2, "nrom": "rms", "heads": {"num_heads": 4}}
    texts = problems_of(SmallConfig, values)
    assert len(texts) == 3
    assert texts[0].startswith("dropout is 2")
    assert texts[1].startswith("nrom is not a setting. Did you mean 'norm'?")
    assert texts[2] == "width is 6 but heads.num_heads is 4."


@pytest.mark.parametrize(
    "values",
    [
        {"width": 6, "heads": {"num_heads": 0}},
        {"width": 6, "heads": 5},
        {"width": "wide", "heads": {"num_heads": 5, "num_kv_heads": 5}},
    ],
)
def test_a_rule_about_a_wrong_value_is_not_judged_by_its_default(values):
    (text,) = problems_of(SmallConfig, values)
    assert "but" not in text


def test_keywords_raise_the_same_error_as_a_dict():
    with pytest.raises(ConfigError, match="width is 'x': it must be a valid integer"):
        SmallConfig(width="x")


def test_the_message_names_where_the_values_came_from():
    with pytest.raises(ConfigError, match=r"2 problems in the recipe:\n  - width is 0"):
        SmallConfig.from_dict({"width": 0, "dropout": 1}, where="recipe")


def test_changes_by_dotted_name_leave_the_rest_alone():
    before = SmallConfig(width=64)
    after = before.with_changes({"heads.num_heads": 8, "position.base": 5})
    assert (after.width, after.heads.num_heads, after.position.base) == (64, 8, 5.0)
    assert before.heads.num_heads == 4


def test_a_new_kind_starts_its_section_afresh():
    changes = {"position.num_buckets": 8, "position.kind": "buckets"}
    assert SmallConfig().with_changes(changes).position == BucketConfig(num_buckets=8)


def test_the_same_kind_again_keeps_its_section():
    values = {"position": {"kind": "rotary", "base": 5}}
    assert with_overrides(values, {"position.kind": "rotary"}) == values


def test_an_outer_kind_is_set_before_an_inner_one_and_a_top_level_kind_clears_nothing():
    changes = {"a.b.kind": "new", "a.kind": "new", "kind": "decoder"}
    values = {"a": {"kind": "old", "x": 1}, "width": 3, "kind": "encoder"}
    expected = {"a": {"kind": "new", "b": {"kind": "new"}}, "width": 3, "kind": "decoder"}
    assert with_overrides(values, changes) == expected
    assert values["a"] == {"kind": "old", "x": 1}


def test_an_override_makes_the_sections_that_are_not_there():
    assert with_overrides({"a": None}, {"a.b.c": 1}) == {"a": {"b": {"c": 1}}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model.width=256", ("model.width", 256)),
        ("a=0.5", ("a", 0.5)),
        ("a=true", ("a", True)),
        ("a=[1, 2]", ("a", [1, 2])),
        ('a="7"', ("a", "7")),
        ("a = rms ", ("a", "rms")),
        ("a=none", ("a", None)),
        ("a=b=c", ("a", "b=c")),
    ],
)
def test_an_override_is_toml_or_a_bare_word(text, expected):
    assert parse_override(text) == expected


@pytest.mark.parametrize("text", ["width", "=3", " =3"])
def test_an_override_without_a_name_or_value_is_refused(text):
    with pytest.raises(ConfigError, match=f"--set {text!r} has no value"):
        parse_override(text)


@pytest.mark.parametrize("value", ["9" * 5000, "[" * 5000])
def test_an_override_that_python_cannot_convert_is_refused(value):
    with pytest.raises(ConfigError, match="--set x has a value of 5000 characters"):
        parse_override(f"x={value}")


@given(st.integers() | st.booleans() | st.text(st.sampled_from("abz-"), min_size=1))
def test_any_plain_value_survives_an_override(value):
    text = str(value).lower() if isinstance(value, bool) else str(value)
    expected = None if value == "none" else value
    assert parse_override(f"x={text}") == ("x", expected)


@pytest.mark.parametrize("name", ["a.toml", "a.recipe", "a.json"])
def test_a_settings_file_is_read_with_or_without_a_byte_order_mark(tmp_path, name):
    text = '{"width": 3}' if name.endswith("json") else "width = 3"
    for mark in ("", "\ufeff"):
        (tmp_path / name).write_text(mark + text, encoding="utf-8")
        assert read_settings(tmp_path / name) == {"width": 3}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.toml", b"width = \nx = 1", r"a\.toml: cannot be read as TOML: .*line 1"),
        ("a.yaml", b"width: 3", r"a\.yaml: cannot be read as TOML"),
        ("a.json", b"{", r"a\.json: cannot be read as JSON: .*line 1"),
        ("a.json", b"[1]", r"a\.json: holds a list, not settings"),
        ("a.toml", b"a = '\xff'", r"a\.toml: this is not UTF-8 text"),
        (
            "a.json",
            b'{"a": ' + b"9" * 5000 + b"}",
            r"JSON: a number has more than 4,300 digits\. C",
        ),
        ("a.json", rb'{"a": ["\ud83d"]}', r"a\.json: contains half of a surrogate pair \(\\ud800"),
        ("a.json", rb'{"\uDE00": 1}', r"a\.json: contains half of a surrogate pair"),
        (
            "a.toml",
            b"a = " + b"9" * 5000,
            r"TOML: a number has more than 4,300 digits\. Correct it",
        ),
    ],
)
def test_a_file_that_holds_no_settings_is_named_with_the_reason(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_settings(tmp_path / name)


def test_a_whole_surrogate_pair_is_text(tmp_path):
    (tmp_path / "a.json").write_text(r'{"a": "\ud83d\ude00 \\ud800"}')
    assert read_settings(tmp_path / "a.json") == {"a": "\U0001f600 \\ud800"}


def test_a_path_without_a_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"b\.toml: there is no such file"):
        read_settings(tmp_path / "b.toml")
    with pytest.raises(DataError, match="this is a folder"):
        read_settings(tmp_path)


def test_settings_nested_without_end_are_refused_in_one_sentence(tmp_path):
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(DataError, match="nested too deeply"):
        read_settings(path)
