"""Streamed text with line breaks between words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from weft.cli.line_wrapper import LineWrapper
from weft.look.terminal import display_width

texts = st.text("abc \n\u5b83\u0301", max_size=60)


def wrap(pieces: list[str], columns: int = 10) -> str:
    wrapper = LineWrapper(columns)
    return "".join([wrapper.add(piece) for piece in pieces] + [wrapper.end()])


def test_lines_are_broken_between_words() -> None:
    assert wrap(["one t", "wo thre", "e four"]) == "one two \nthree four"
    assert wrap(["0123456789abcd e"]) == "0123456789\nabcd e"
    assert wrap(["a\n\n  b"]) == "a\n\n  b"
    assert wrap(["\u5b83" * 6]) == "\u5b83" * 5 + "\n\u5b83"


@given(texts, st.integers(0, 60))
def test_no_line_is_too_long_and_only_breaks_and_spaces_differ(text: str, cut: int) -> None:
    wrapped = wrap([text[:cut], text[cut:]])
    assert wrapped == wrap([text])
    assert all(display_width(line) <= 10 for line in wrapped.split("\n"))
    assert wrapped.replace("\n", "").replace(" ", "") == text.replace("\n", "").replace(" ", "")
