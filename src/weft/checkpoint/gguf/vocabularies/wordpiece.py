"""tokenizer.ggml.model = bert: WordPiece.

GGUF marks the start of a word (U+2581) where BERT marks its continuation (##). Newer files say
whether text is lowercased; in others, it is if the vocabulary has no capital letters.
"""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, normalizers, pre_tokenizers

from weft.checkpoint.gguf.header import CONTROL, NORMAL, UNKNOWN
from weft.checkpoint.gguf.vocabularies.base import (
    SPACE_MARK,
    BosEosFrame,
    GGUFVocabulary,
    TokenizerParts,
    add_special_tokens,
    cannot_write,
    check_unique,
)

CONTINUATION = "##"
MAX_LETTERS = 100
"""Longer words are unknown, as in BERT."""


def read(vocabulary: GGUFVocabulary) -> tuple[Backend, BosEosFrame]:
    """The tokenizer, and whether BOS ([CLS]) and EOS ([SEP]) are added."""
    typed_tokens = zip(vocabulary.tokens, vocabulary.types, strict=True)
    tokens = [bert_name(token, type_) for token, type_ in typed_tokens]
    check_unique(tokens, vocabulary.path)
    model = models.WordPiece(
        {token: index for index, token in enumerate(tokens)},
        unk_token=tokens[vocabulary.ids.get("unknown", 0)],
        continuing_subword_prefix=CONTINUATION,
        max_input_chars_per_word=MAX_LETTERS,
    )
    backend = Backend(model)
    lowercase = vocabulary.flag("normalizer.lowercase", not has_capitals(vocabulary))
    accents = vocabulary.flag("normalizer.strip_accents", lowercase)
    backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=accents)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(CONTINUATION)
    add_special_tokens(backend, vocabulary)
    has_end = vocabulary.flag("add_sep_token", True) or vocabulary.flag("add_eos_token", False)
    return backend, BosEosFrame(vocabulary.flag("add_bos_token", True), has_end)


def bert_name(token: str, type_: int) -> str:
    """A token as in BERT's vocabulary."""
    if token.startswith(SPACE_MARK):
        return token[1:]
    # files without token types have special tokens as they are: a mark alone, a bracketed name
    if type_ in (CONTROL, UNKNOWN) or (token.startswith("[") and token.endswith("]")):
        return token
    return CONTINUATION + token


def gguf_name(token: str, type_: int) -> str:
    """A token as GGUF has it: the inverse of `bert_name`."""
    if type_ == CONTROL:
        return token
    return token[2:] if token.startswith(CONTINUATION) else SPACE_MARK + token


def has_capitals(vocabulary: GGUFVocabulary) -> bool:
    """Whether a normal token has a capital letter."""
    return any(
        type_ == NORMAL and token != token.lower() and not token.startswith("[")
        for token, type_ in zip(vocabulary.tokens, vocabulary.types, strict=True)
    )


def matches(parts: TokenizerParts) -> bool:
    return parts.model["type"] == "WordPiece"


def write(parts: TokenizerParts, tokens: list[str]) -> dict[str, Any]:
    """Metadata of BERT's tokenizer; a UsageError for any other WordPiece."""
    model, steps = parts.model, [step["type"] for step in parts.steps]
    if steps != ["BertNormalizer", "BertPreTokenizer"]:
        raise cannot_write(f"GGUF's WordPiece splits text as BERT does, this one by {steps}")
    if model["continuing_subword_prefix"] != CONTINUATION:
        raise cannot_write(f"it marks parts of words with {model['continuing_subword_prefix']!r}")
    if model["max_input_chars_per_word"] != MAX_LETTERS:
        limit = model["max_input_chars_per_word"]
        raise cannot_write(f"words of more than {limit} letters are unknown")
    (normalizer,) = parts.normalizers
    if not normalizer["clean_text"] or not normalizer["handle_chinese_chars"]:
        raise cannot_write("it does not clean text and split Chinese characters, as BERT does")
    accents = normalizer["strip_accents"]
    return {
        "model": "bert",
        "pre": "default",
        "normalizer.lowercase": normalizer["lowercase"],
        "normalizer.strip_accents": normalizer["lowercase"] if accents is None else accents,
    }
