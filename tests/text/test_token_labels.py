"""Tokens as text: byte-level vocabularies, bytes that are not whole characters, special tokens."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE

from weft.text.token_labels import token_label, token_labels
from weft.text.tokenizer import GPT2_BYTES, Tokenizer
from weft.text.tokenizer_training import TokenizerConfig

TEXT = "the cat\n\u5b83"


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    """A token for each byte in the alphabet of GPT-2, and one for " \\xe5"."""
    letters = {byte: letter for letter, byte in GPT2_BYTES.items()}
    vocab = {letters[byte]: byte for byte in range(256)} | {letters[0x20] + letters[0xE5]: 256}
    backend = Backend(BPE(vocab, [(letters[0x20], letters[0xE5])]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend)


def test_the_alphabet_of_byte_level_tokens_is_not_shown(byte_level: Tokenizer) -> None:
    ids = byte_level.encode(TEXT, add_special=False)
    assert byte_level.pieces(ids)[3] != " ", "this vocabulary spells a space as another letter"
    assert "".join(token_labels(byte_level, ids[:-3])) == TEXT[:-1]
    assert token_labels(byte_level, ids[-3:]) == ["<0xE5>", "<0xAE>", "<0x83>"]
    assert token_labels(byte_level, [256]) == [" <0xE5>"]


def test_byte_fallback_and_special_tokens_have_their_names() -> None:
    tokenizer = Tokenizer.train(["the cat"] * 3, TokenizerConfig(byte_fallback=True))
    labels = token_labels(tokenizer, tokenizer.encode("the cat\u00e9"))
    assert labels[0] == "<begin>" and labels[-3:] == ["<0xC3>", "<0xA9>", "<end>"]
    assert "".join(labels[1:-3]) == "the cat"


def test_an_id_beyond_the_tokenizer_has_no_text(byte_level: Tokenizer) -> None:
    assert token_label(byte_level, 257) == ""
    assert token_label(byte_level, 65) == "A"
