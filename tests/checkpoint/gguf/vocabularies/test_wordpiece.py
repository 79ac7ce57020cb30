"""tokenizer.ggml.model = bert: ids as `transformers` gives them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models, normalizers, pre_tokenizers, trainers
from transformers.models.bert.tokenization_bert import BertTokenizer

from weft.checkpoint.gguf.vocabularies import read_tokenizer, write_tokenizer
from weft.core.errors import UsageError
from weft.text.tokenizer import Tokenizer

from ..hard_texts import hard_texts
from .corpus import LINES, western
from .test_sentencepiece import as_read

PLACE = Path("x.gguf")
SPECIAL = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MARK = "\u2581"


@cache
def vocabulary(lowercase: bool) -> dict[str, int]:
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=900, special_tokens=SPECIAL, show_progress=False)
    backend.train_from_iterator(western(LINES), trainer)
    return backend.get_vocab()


def theirs(lowercase: bool) -> Any:
    tokenizer = BertTokenizer(vocab=vocabulary(lowercase), do_lower_case=lowercase)
    tokenizer.backend_tokenizer.encode_special_tokens = True
    return tokenizer


def described(lowercase: bool, **more: Any) -> dict[str, Any]:
    """What llama.cpp's converter writes: words marked, parts of words not."""
    vocab = vocabulary(lowercase)
    tokens = sorted(vocab, key=vocab.__getitem__)
    control = [token in SPECIAL and token != "[unused1]" for token in tokens]
    words = [
        token if is_control else token[2:] if token.startswith("##") else MARK + token
        for token, is_control in zip(tokens, control, strict=True)
    ]
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": np.where(control, 3, 1).astype(np.int32),
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.unknown_token_id": 2,
        "tokenizer.ggml.bos_token_id": 3,
        "tokenizer.ggml.seperator_token_id": 4,
        "tokenizer.ggml.mask_token_id": 5,
        **{f"tokenizer.ggml.{key}": value for key, value in more.items()},
    }


@pytest.mark.parametrize("lowercase", [True, False])
def test_ids_are_those_of_transformers(lowercase: bool) -> None:
    ours, other = read_tokenizer(described(lowercase), PLACE), theirs(lowercase)
    assert ours.frame == ([3], [4])
    assert ours.special_tokens.mask == "[MASK]"
    for text in hard_texts(1000):
        expected = other.backend_tokenizer.encode(text).ids
        assert ours.encode(text) == expected, ascii(text)


def test_a_file_may_say_how_text_is_written() -> None:
    upper = read_tokenizer(described(False), PLACE)
    lower = read_tokenizer(described(False, **{"normalizer.lowercase": True}), PLACE)
    assert lower.encode("THE \u00c9t\u00e9") == upper.encode("the ete")
    keep = {"normalizer.lowercase": True, "normalizer.strip_accents": False}
    kept = read_tokenizer(described(False, **keep), PLACE)
    assert kept.encode("\u00c9t\u00e9") == upper.encode("\u00e9t\u00e9")


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_tokenizer_is_written_so_that_it_reads_the_same(lowercase: bool) -> None:
    result = described(lowercase)
    first = read_tokenizer(result, PLACE)
    back = write_tokenizer(first, len(result["tokenizer.ggml.tokens"]))
    assert back["tokenizer.ggml.tokens"] == result["tokenizer.ggml.tokens"]
    assert back["tokenizer.ggml.normalizer.lowercase"] is lowercase
    assert back["tokenizer.ggml.seperator_token_id"] == 4
    assert "tokenizer.ggml.eos_token_id" not in back
    again = read_tokenizer(as_read(back), PLACE)
    for text in hard_texts(300):
        assert again.encode(text) == first.encode(text), ascii(text)


def test_transformers_own_bert_is_written_too() -> None:
    other = Tokenizer(theirs(True).backend_tokenizer)
    again = read_tokenizer(as_read(write_tokenizer(other, 910)), PLACE)
    for text in hard_texts(300):
        assert again.encode(text) == other.encode(text), ascii(text)


def test_another_wordpiece_is_refused() -> None:
    vocab = vocabulary(True)
    backend = Backend(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(UsageError, match="splits text as BERT does, this one by .*Whitespace"):
        write_tokenizer(Tokenizer(backend), 900)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.normalizer = normalizers.BertNormalizer(handle_chinese_chars=False)
    with pytest.raises(UsageError, match="does not clean text and split Chinese"):
        write_tokenizer(Tokenizer(backend), 900)
    backend.normalizer = normalizers.BertNormalizer()
    backend.model = models.WordPiece(vocab, unk_token="[UNK]", continuing_subword_prefix="@@")
    with pytest.raises(UsageError, match="it marks parts of words with '@@'"):
        write_tokenizer(Tokenizer(backend), 900)
    backend.model = models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=9)
    with pytest.raises(UsageError, match="words of more than 9 letters"):
        write_tokenizer(Tokenizer(backend), 900)
