"""Grammars that would take minutes to compile, or that end in an exception of a library, are one
sentence; those that people use are compiled."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from weft.core.errors import UsageError
from weft.engine.grammar import make_grammar
from weft.engine.grammar_limits import check_lark, check_regex, check_schema, has_conjunction
from weft.engine.request_builder import grammar_of


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def itself() -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    schema["properties"] = {"a": schema, "b": schema}
    return schema


SCHEMAS: dict[str, tuple[Callable[[], Any], str]] = {
    "a large prime": (
        lambda: {"type": "integer", "multipleOf": 10000019},
        "multipleOf of the JSON schema are 10000019 together.*at most 10000 are allowed",
    ),
    "many digits": (lambda: {"multipleOf": 12345.678}, "are 12345678 together"),
    "a huge one": (lambda: {"multipleOf": 10**5000 + 1}, "are 10001 together"),
    "many multiples": (
        lambda: {"properties": {str(i): {"multipleOf": 997} for i in range(20)}},
        "are 19940 together",
    ),
    "2,000 levels": (lambda: nested(2000), "more than 64 levels deep: at most 64 are allowed"),
    "itself": (itself, "levels deep|has 65537 bytes"),
    "half a surrogate pair in a pattern": (lambda: {"pattern": "a\ud800"}, r"'\\ud800', half"),
    "half a surrogate pair in a name": (lambda: {"properties": {"\udfff": {}}}, r"'\\udfff', half"),
    "half a surrogate pair in data": (lambda: {"enum": ["\ud800"]}, r"'\\ud800', half"),
    "70 kB": (lambda: {"enum": ["x" * 70_000]}, "has 700.. bytes: at most 65536 are allowed"),
    "a long string": (lambda: {"maxLength": 10**6}, r"maxLength .* is 1e\+06: at most 100000"),
    "a long array": (lambda: {"minItems": 10**9}, r"minItems .* is 1e\+09: at most 100000"),
    "a repeated pattern": (lambda: {"pattern": "a{200000}"}, "repeats something 200000 times"),
    "many quantifiers": (lambda: {"pattern": ".*" * 1001}, "has 1001 quantifiers"),
    "many patterns": (
        lambda: {"patternProperties": {f"^a{i}$": {} for i in range(101)}},
        "has 101 patternProperties",
    ),
    "NaN": (lambda: {"minimum": float("nan")}, "the JSON schema is not JSON"),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_beyond_the_limits_are_refused_at_once(name: str) -> None:
    schema, message = SCHEMAS[name]
    start = time.process_time()
    with pytest.raises(UsageError, match=message) as caught:
        grammar_of(schema(), None)
    assert time.process_time() - start < 1.0 and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a\ud800", r"has the character '\\ud800', half of a surrogate pair"),
        ("a" * 70_000, "has 70000 bytes: at most 65536 are allowed"),
        ("a{100001}", "repeats something 100001 times: at most 100000 are allowed"),
        ("a{2,99999999999}", "repeats something 99999999999 times"),
        ("(a{2}){3,100001}", "repeats something 100001 times"),
        (".*" * 20_000, "has 20000 quantifiers .* at most 1000"),
        ("(" * 2000 + "a" + ")" * 2000, "more than 64 nested groups: at most 64 are allowed"),
        ("(?:" * 65 + "a" + ")+" * 65, "more than 64 nested groups"),
        ("[" * 65 + "a" + "]" * 65, "more than 64 nested groups"),
    ],
)
def test_expressions_beyond_the_limits_are_refused(pattern: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        grammar_of(None, pattern)


def test_counts_are_found_where_they_are_repetitions() -> None:
    assert check_regex(r"\{200000\}[{200000}]\p{Greek}\x{1F600}\*") == 0
    assert check_regex(r"a{2}b{3,}c{4,5}[a-z]*(x+)?[]*]?") == 7


def test_groups_are_counted_where_they_are_nested() -> None:
    deep = "(" * 64 + "a" + ")" * 64
    assert check_regex(deep + "(b)" * 100 + r"\(" * 100 + "[(]" * 100) == 0
    check_lark(f"start: /{deep}/ A // {'(' * 100}\nA: {'(' * 64} 'a' {')' * 64}")
    for source in (f"start: /({deep})/", f"start: {'(' * 65}'a'{')' * 65}"):
        with pytest.raises(UsageError, match="has more than 64 nested"):
            check_lark(source)
    grammar_of(None, deep)


HANGING: dict[str, dict[str, Any]] = {
    "patterns": {"type": "string", "allOf": [{"pattern": f"a{i}"} for i in range(40)]},
    "multiples": {"type": "integer", "allOf": [{"multipleOf": m} for m in (83, 89, 97, 101)]},
}


@pytest.mark.parametrize("name", ["patterns", pytest.param("multiples", marks=pytest.mark.slow)])
def test_parts_that_must_all_hold_are_compiled_with_limits(name: str) -> None:
    """Each of these takes more than a minute without."""
    start = time.process_time()
    with pytest.raises(UsageError, match="takes more than 2 s or 512 MB to compile.*simpler"):
        grammar_of(HANGING[name], None)
    assert time.process_time() - start < 5, "the parent has compiled it"


def test_a_grammar_of_a_caller_is_compiled_with_limits() -> None:
    """It takes more than a minute without, and no name of a token turns the limits off."""
    start = time.process_time()
    schema = '%json {"type": "integer", "multipleOf": 10000019}'
    with pytest.raises(UsageError, match="takes more than 2 s or 512 MB to compile. Use a simpler"):
        make_grammar("lark", f"start: {schema}")
    with pytest.raises(UsageError, match="cannot be compiled: unknown special token"):
        make_grammar("lark", f"start: <|im_end|> {schema}")
    assert time.process_time() - start < 5, "the parent has compiled it"


def test_brackets_in_texts_and_comments_are_not_nested() -> None:
    texts = '"(((" /\\(\\[{/ ' * 40
    check_lark(f"start: {texts} // {'(' * 100}\n# {'(' * 100}")


def test_a_schema_with_parts_that_must_all_hold_is_compiled() -> None:
    schema = {
        "$defs": {"base": {"type": "object", "properties": {"id": {"type": "integer"}}}},
        "allOf": [{"$ref": "#/$defs/base"}, {"properties": {"name": {"type": "string"}}}],
    }
    assert check_schema(schema) and grammar_of(schema, None) is not None


def test_schemas_of_ordinary_programs_need_no_child_process() -> None:
    field = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Name"}
    reference = {"$ref": "#/$defs/item", "description": "an item"}
    schema = {"type": "object", "properties": {"a": field, "b": reference}, "required": ["a"]}
    assert not check_schema(schema)
    assert has_conjunction({"$ref": "#/a", "pattern": "b"})
    data = {"const": {"maxLength": 10**9, "multipleOf": 99999, "pattern": ".*" * 2000}}
    assert not check_schema(data), "data is no schema"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "multipleOf": 9973},
        {"type": "number", "multipleOf": 0.01},
        {"type": "integer", "multipleOf": 1_000_000},
        {"type": "string", "maxLength": 100_000},
        {"type": "array", "items": {"type": "integer"}, "maxItems": 100_000},
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(100)}},
        {"enum": [f"value {i}" for i in range(3000)]},
        nested(60),
    ],
)
def test_large_schemas_within_the_limits_are_compiled_soon(schema: dict[str, Any]) -> None:
    start = time.process_time()
    assert grammar_of(schema, None) is not None
    assert time.process_time() - start < 5.0
