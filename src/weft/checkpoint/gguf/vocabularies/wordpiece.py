"""tokenizer.ggml.model = bert: WordPiece.

GGUF marks the beginning of a word (U+2581) where BERT marks its continuation (##). Whether text is
put into lower case is said by newer files; in others, a vocabulary without capitals says it.
"""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from weft.checkpoint.gguf.vocabularies.base import (
    CONTROL,
    MARK,
    NORMAL,
    UNKNOWN,
    BosEosFrame,
    GGUFVocabulary,
    add_tokens,
    check_unique,
)
from weft.checkpoint.gguf.vocabularies.pieces import TokenizerParts, cannot_write

CONTINUED = "##"
MAX_LETTERS = 100
"""Longer words are unknown, in BERT and here."""


def read(words: GGUFVocabulary) -> tuple[Backend, BosEosFrame]:
    """The tokenizer, and what it puts around a text."""
    tokens = [bert_name(token, kind) for token, kind in zip(words.tokens, words.types, strict=True)]
    check_unique(tokens, words.path)
    unknown = tokens[words.ids.get("unknown", 0)]
    model = models.WordPiece(
        {token: index for index, token in enumerate(tokens)},
        unk_token=unknown,
        continuing_subword_prefix=CONTINUED,
        max_input_chars_per_word=MAX_LETTERS,
    )
    backend = Backend(model)
    lowercase = words.flag("normalizer.lowercase", not has_capitals(words))
    accents = words.flag("normalizer.strip_accents", lowercase)
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=accents)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(CONTINUED)
    add_tokens(backend, words)
    ends = words.flag("add_sep_token", True) or words.flag("add_eos_token", False)
    return backend, BosEosFrame(words.flag("add_bos_token", True), ends)


def bert_name(token: str, kind: int) -> str:
    """A token as BERT's own vocabulary has it."""
    if token.startswith(MARK):
        return token[1:]
    # a mark alone, a bracketed name: files before token types were kept left these as they are
    if kind in (CONTROL, UNKNOWN) or (token.startswith("[") and token.endswith("]")):
        return token
    return CONTINUED + token


def has_capitals(words: GGUFVocabulary) -> bool:
    """Whether an ordinary token has a capital letter in it."""
    return any(
        kind == NORMAL and token != token.lower() and not token.startswith("[")
        for token, kind in zip(words.tokens, words.types, strict=True)
    )


def gguf_name(token: str, kind: int) -> str:
    """The way back."""
    if kind == CONTROL:
        return token
    return token[2:] if token.startswith(CONTINUED) else MARK + token


def matches(parts: TokenizerParts) -> bool:
    return parts.model["type"] == "WordPiece"


def write(parts: TokenizerParts, tokens: list[str]) -> dict[str, Any]:
    """Metadata of BERT's tokenizer; a UsageError where it is another WordPiece."""
    model = parts.model
    if parts.kinds != (["BertNormalizer"], ["BertPreTokenizer"]):
        raise cannot_write(f"GGUF's WordPiece cuts as BERT does, this one by {parts.kinds}")
    if model["continuing_subword_prefix"] != CONTINUED:
        raise cannot_write(f"it marks parts of words with {model['continuing_subword_prefix']!r}")
    if model["max_input_chars_per_word"] != MAX_LETTERS:
        raise cannot_write(
            f"words of more than {model['max_input_chars_per_word']} letters are unknown"
        )
    (normal,) = parts.normalizers
    if not normal["clean_text"] or not normal["handle_chinese_chars"]:
        raise cannot_write("it does not clean text and cut Chinese characters apart, as BERT does")
    accents = normal["strip_accents"]
    return {
        "model": "bert",
        "pre": "default",
        "normalizer.lowercase": normal["lowercase"],
        "normalizer.strip_accents": normal["lowercase"] if accents is None else accents,
    }
