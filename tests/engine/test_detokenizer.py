"""A text that is fed token by token: whole characters, nothing of a stop, and why it ended."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.families import WRITERS, family
from tests.text.material import HARD, trained
from weft.core.errors import UsageError
from weft.engine.detokenizer import (
    Detokenizer,
    FinishReason,
    first_stop,
    special_ids,
    visible_special_ids,
)

KINDS = ("bpe", "byte", "character", "unigram")
LETTERS = "ab \u00e9\u82f9\U0001f44d"
TEXTS = st.text(LETTERS, max_size=24)
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=3)


def fed(stream: Detokenizer, ids: list[int]) -> list[str]:
    """What is shown for each token, and at the end, as far as the text goes."""
    shown = []
    for token in ids:
        shown.append(stream.append(token))
        if stream.finish is not None:
            return shown
    return [*shown, stream.finalize()]


def cut_at_first_stop(text: str, stops: list[str]) -> str:
    """By brute force: the shortest beginning of the text that ends in a stop, without it."""
    for end in range(len(text) + 1):
        result = [stop for stop in stops if text[:end].endswith(stop)]
        if result:
            return text[: end - max(map(len, result))]
    return text


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS, stops=STOPS, cuts=st.sets(st.integers(0, 24)))
def test_the_text_ends_before_the_first_stop_however_it_is_cut(
    kind: str, text: str, stops: list[str], cuts: set[int]
) -> None:
    tokenizer, borders = trained(kind), sorted({0, len(text), *(c for c in cuts if c < len(text))})
    parts = [text[start:end] for start, end in zip(borders, borders[1:], strict=False)]
    ids = [index for part in parts for index in tokenizer.encode(part, add_special=False)]
    stream = Detokenizer(tokenizer, stops)
    expected, shown = cut_at_first_stop(tokenizer.decode(ids), stops), ""
    for piece in fed(stream, ids):
        shown += piece
        assert expected.startswith(shown), "what was shown cannot be taken back"
    assert shown == expected
    is_stopped = any(stop in text for stop in stops)
    assert stream.finish is not None
    assert stream.finish.reason == ("stop" if is_stopped else "length")
    assert (stream.finish.stop in stops) == is_stopped


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_any_tokens_give_the_text_of_their_bytes(kind: str, data: st.DataObject) -> None:
    tokenizer = trained(kind)
    ids = data.draw(st.lists(st.integers(5, tokenizer.vocab_size - 1), max_size=30))
    text = b"".join(tokenizer.token_bytes(ids)).decode("utf-8", "replace")
    assert "".join(fed(Detokenizer(tokenizer), ids)) == text


@pytest.mark.parametrize("name", WRITERS)
def test_a_text_that_stands_alone_is_what_decode_writes(name: str) -> None:
    tokenizer = family(name)
    for text in ("Hello world, it is 12 o'clock", " the quick fox", "x", *HARD.values()):
        ids = tokenizer.target.encode(text, max_len=10_000)
        if any(index == tokenizer.target.unknown_id for index in ids):
            continue
        stream = Detokenizer(tokenizer, is_continuation=False)
        assert "".join(fed(stream, ids)) == tokenizer.decode(ids)


def test_a_continuation_keeps_the_space_in_front() -> None:
    tokenizer = family("llama")
    ids = tokenizer.encode("the quick", add_special=False)
    assert "".join(fed(Detokenizer(tokenizer), ids)) == " the quick"
    assert "".join(fed(Detokenizer(tokenizer, is_continuation=False), ids)) == "the quick"


def test_ids_are_those_of_the_side_that_is_written() -> None:
    tokenizer = family("marian")
    assert tokenizer.target is not tokenizer
    ids = tokenizer.target.encode("the lazy dog", add_special=False)
    assert "".join(fed(Detokenizer(tokenizer, is_continuation=False), ids)) == "the lazy dog"


def test_what_cannot_be_a_stop_is_shown_at_once_and_characters_are_whole() -> None:
    tokenizer = trained("byte")
    ids = tokenizer.encode("a\u82f9\n.\n\nb", add_special=False)
    shown = fed(Detokenizer(tokenizer, ["\n\n"]), ids)
    assert shown == ["a", "", "", "\u82f9", "", "\n.", "", ""]


def test_a_wrong_byte_spoils_one_character() -> None:
    tokenizer = trained("byte")
    ids = tokenizer.encode("a\u82f9b", add_special=False)
    assert "".join(fed(Detokenizer(tokenizer), [*ids[:3], *ids])) == "a\ufffda\u82f9b"
    assert fed(Detokenizer(tokenizer), ids[:3])[-1] == "\ufffd"
    stream = Detokenizer(tokenizer, ["\ufffd"])
    assert "".join(fed(stream, ids[:3])) == "a" and stream.finish == FinishReason("stop", "\ufffd")


def test_the_finish_reason_is_set_and_pending_text_is_returned() -> None:
    tokenizer = trained("bpe")
    ids, end = tokenizer.encode("the cat", add_special=False), tokenizer.id_of("end")
    stream = Detokenizer(tokenizer, ["cat!", "dog"], [end])
    assert "".join(fed(stream, [*ids, end])) == "the cat" and stream.finish == FinishReason("end")
    stream = Detokenizer(tokenizer, ["cat!"], [end])
    assert "".join(fed(stream, ids)) == "the cat" and stream.finish == FinishReason("length")
    stream = Detokenizer(tokenizer, ["dog", "at"], [end])
    assert "".join(fed(stream, ids)) == "the c" and stream.finish == FinishReason("stop", "at")
    with pytest.raises(AssertionError, match="after the end"):
        stream.append(ids[0])
    with pytest.raises(AssertionError, match="has already ended"):
        stream.finalize()


def test_of_stops_that_end_together_the_longest_is_taken() -> None:
    assert first_stop("abcd", ["c", "abc", "bcd"]) == (0, "abc")
    assert first_stop("abcd", ["abcd", "b"]) == (1, "b")
    assert first_stop("abcd", ["x"]) is None


def test_special_tokens_have_no_text_but_can_be_stops() -> None:
    tokenizer = family("smollm json")
    ids = tokenizer.encode("hello<|im_end|>world", add_special=False, parse_special=True)
    assert "".join(fed(Detokenizer(tokenizer), ids)) == "helloworld"
    stream = Detokenizer(tokenizer, ["<|im_end|>"])
    assert "".join(fed(stream, ids)) == "hello" and stream.finish == FinishReason(
        "stop", "<|im_end|>"
    )
    spelled = tokenizer.encode("hello<|im_end|>world", add_special=False)
    stream = Detokenizer(tokenizer, ["<|im_end|>"])
    assert "".join(fed(stream, spelled)) == "hello" and stream.finish is not None


def test_visible_special_tokens_have_their_names_as_text() -> None:
    tokenizer = family("smollm json")
    text = "hello<|im_start|>world<|im_end|>"
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    visible = visible_special_ids(tokenizer, ["<|im_start|>", "[TOOL_CALLS]"])
    assert len(visible) == 1
    shown = fed(Detokenizer(tokenizer, visible_ids=visible), ids)
    assert "".join(shown) == "hello<|im_start|>world"
    everything = visible_special_ids(tokenizer)
    assert everything == special_ids(tokenizer).keys()
    assert "".join(fed(Detokenizer(tokenizer, visible_ids=everything), ids)) == text
    stream = Detokenizer(tokenizer, ["im_start"], visible_ids=everything)
    assert "".join(fed(stream, ids)) == "hello<|" and stream.finish is not None
    end = ids[-1]
    stream = Detokenizer(tokenizer, end_ids=[end], visible_ids=everything)
    assert "".join(fed(stream, ids)) == "hello<|im_start|>world", "an end token has no text"


def test_an_id_without_a_token_has_no_text() -> None:
    tokenizer = trained("bpe")
    assert fed(Detokenizer(tokenizer), [tokenizer.vocab_size + 3]) == ["", ""]


def test_stops_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="stop is the str 'end': pass a list"):
        Detokenizer(trained("bpe"), "end")
    with pytest.raises(UsageError, match="a stop is '': it must have at least one character"):
        Detokenizer(trained("bpe"), ["a", ""])
