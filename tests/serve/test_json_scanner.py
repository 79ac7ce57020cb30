"""JSON that arrives in parts ends where json.loads says, and is invalid as soon as it must be."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.serve.json_scanner import MAX_DEPTH, MAX_NUMBER, JsonScanner

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
VALID = [
    '"a"', '""', r'"\u00e9\n\"\\\/"', "true", "[]", "{}", " [1, -2.5e+3 ,0]", '{"a" : {"b":[{}]}}',
    "[1.0,0.5,10E5,-0]", '["}", "{[", "<tool_call>"]', "null", '\n{"a":\t"\\ud83d\\ude00"}',
]  # fmt: skip
INVALID = {
    "[1,]": 3, "{,}": 1, '{"a" 1}': 5, '{"a":1,}': 7, "[01]": 2, "[1.e]": 3, "[--1]": 2, "[+1]": 1,
    "[tru]": 4, "[nul1]": 4, '"a\n"': 2, r'"\x"': 2, r'"\u12g4"': 5, "[1}": 2, '{"a":1]': 6,
    "{1:2}": 1, "x": 0, "[NaN]": 1, "]": 0, "[1 2]": 3, '{"a":}': 5, "[.5]": 1, "[1-2]": 2,
    "[-]": 2, "[1e]": 3,
}  # fmt: skip


def scan(parts: list[str]) -> tuple[JsonScanner, int]:
    """The scanner after the parts, and the characters that it read."""
    scanner, total = JsonScanner(), 0
    for part in parts:
        at = scanner.scan(part)
        total += at
        if at < len(part):
            break
    return scanner, total


@pytest.mark.parametrize("text", VALID)
def test_a_value_ends_where_it_is_complete(text: str) -> None:
    json.loads(text)
    for split in range(len(text) + 1):
        scanner, at = scan([text[:split], text[split:] + " x"])
        assert scanner.is_done and at == len(text)
    for end in range(len(text)):
        scanner, at = scan([text[:end]])
        assert not scanner.is_done and not scanner.is_invalid and at == end


@pytest.mark.parametrize("text", INVALID)
def test_an_invalid_character_is_found_at_once(text: str) -> None:
    for parts in ([text], list(text)):
        scanner, at = scan(parts)
        assert scanner.is_invalid and at == INVALID[text]


@given(VALUES, st.booleans(), st.sets(st.integers(0, 60)))
def test_all_that_json_writes_is_read(value: object, is_indented: bool, cuts: set[int]) -> None:
    text = json.dumps([value], ensure_ascii=is_indented, indent=1 if is_indented else None)
    borders = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    parts = [text[a:b] for a, b in zip(borders, borders[1:], strict=False)]
    scanner, at = scan(parts)
    assert scanner.is_done and at == len(text)


@given(st.text('{}[]",:\\ u01a.-e+tnfrl', max_size=20))
def test_the_verdict_is_that_of_json_loads(text: str) -> None:
    scanner, at = scan(list(text))
    try:
        json.loads(text.rstrip())
        is_valid = True
    except ValueError:
        is_valid = False
    text_of_value = text[:at]
    if scanner.is_done and not text[at:].strip():
        assert is_valid
    elif not scanner.is_done:
        is_number = text.strip() and text.strip()[-1] in "0123456789"  # it might go on
        assert not is_valid or is_number
    if scanner.is_done:
        json.loads(text_of_value)


def test_what_clients_cannot_read_is_invalid() -> None:
    scanner, at = scan(["[" * 1000])
    assert scanner.is_invalid and at == MAX_DEPTH
    scanner, at = scan(["[" + "1" * 5000])
    assert scanner.is_invalid and at == MAX_NUMBER + 2
