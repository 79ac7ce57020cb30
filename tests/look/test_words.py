"""Words and tokens of a text: groups, bytes, spans."""

from __future__ import annotations

import pytest

from weft.core.errors import UsageError
from weft.look.trace_input import tokens_of_ids
from weft.look.words import occurrences, tokens_of_text, trace_tokens, words_of
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_training import TokenizerConfig

CHINESE = "\u6211\u5403\u4e86\u82f9\u679c"


def byte_tokenizer():
    return Tokenizer.train(["a"], TokenizerConfig(kind="byte"))


@pytest.mark.parametrize(
    ("text", "cuts", "words"),
    [
        ("I ate, twice", [0, 1, 5, 6, 12], ["I", "ate", ",", "twice"]),
        ("don't (x)", [0, 3, 5, 7, 8, 9], ["don't", "(", "x", ")"]),
        ("a...b", [0, 1, 4, 5], ["a", "...", "b"]),
        (CHINESE, [0, 1, 2, 3, 5], [CHINESE[0], CHINESE[1], CHINESE[2], CHINESE[3:]]),
        (CHINESE + " ok", [0, 1, 2, 3, 4, 5, 8], [*CHINESE, "ok"]),
        ("  \n", [0, 3], []),
        ("", [0], []),
    ],
)
def test_words_of_a_text(text, cuts, words):
    offsets = list(zip(cuts, cuts[1:], strict=False))
    found = words_of(text, offsets)
    assert [word.text for word in found] == words
    assert all(text[slice(*word.span)] == word.text for word in found)


def test_a_character_of_three_bytes_is_one_word_and_its_tokens_are_hex():
    tokenizer = byte_tokenizer()
    tokens, words = trace_tokens(tokenizer, tokenizer.tokens(CHINESE[3:], False), CHINESE[3:])
    assert [token.text for token in tokens] == ["E8", "8B", "B9", "E6", "9E", "9C"]
    assert "".join(token.bytes for token in tokens) == CHINESE[3:].encode().hex()
    assert [word.tokens for word in words] == [(0, 1, 2), (3, 4, 5)]
    assert [token.word for token in tokens] == [0, 0, 0, 1, 1, 1]
    assert not any("\ufffd" in token.text for token in tokens)


def test_special_tokens_belong_to_no_word():
    tokenizer = byte_tokenizer()
    tokens, words = trace_tokens(tokenizer, tokenizer.tokens("ab"), "ab")
    assert [token.is_special for token in tokens] == [True, False, False, True]
    assert [token.word for token in tokens] == [None, 0, 0, None]
    assert words[0].tokens == (1, 2)


def test_ids_have_the_text_of_their_bytes():
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode(CHINESE[3:] + "a")
    text, tokens = tokens_of_ids(tokenizer, ids)
    assert (text, tokens.ids) == (CHINESE[3:] + "a", ids)
    assert tokens.offsets == [(0, 0), *[(0, 1)] * 3, *[(1, 2)] * 3, (2, 3), (3, 3)]
    text, tokens = tokens_of_ids(tokenizer, [ids[1], ids[-2]])
    assert text == "\ufffda" and tokens.offsets == [(0, 1), (1, 2)]


def test_a_phrase_may_be_any_part_of_the_text():
    tokenizer = byte_tokenizer()
    text = "it is a bit: it"
    tokens, _ = trace_tokens(tokenizer, tokenizer.tokens(text, False), text)
    assert occurrences(text, "it") == [0, 9, 13]
    assert tokens_of_text(tokens, text, "a b") == (6, 7, 8)
    assert tokens_of_text(tokens, text, "it#3") == (13, 14)
    for wrong in ("", "x"):
        with pytest.raises(UsageError, match=f"'{wrong}' is not in the text. Use a part"):
            tokens_of_text(tokens, text, wrong)
    with pytest.raises(UsageError, match="'it#4' .* 'it' occurs 3 times there. Use it#1 to it#3"):
        tokens_of_text(tokens, text, "it#4")
