"""Tokenizers in a GGUF file: tokenizer.ggml.* <-> `Tokenizer`. The table of kinds is here.

base            the vocabulary of a file; the parts of a tokenizer to be written
byte_level, sentencepiece, unigram, wordpiece    one kind each: `read`, `write`, `matches`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from weft.checkpoint.gguf.header import BYTE, CONTROL, UNKNOWN
from weft.checkpoint.gguf.vocabularies import byte_level, sentencepiece, unigram, wordpiece
from weft.checkpoint.gguf.vocabularies.base import (
    ID_KEYS,
    BosEosFrame,
    GGUFVocabulary,
    TokenizerParts,
    cannot_write,
    frame_processor,
    list_tokens,
    parse_tokenizer,
    read_specials,
    read_vocabulary,
)
from weft.checkpoint.gguf.vocabularies.wordpiece import gguf_name
from weft.core.errors import DataError, shown
from weft.core.gc_pause import gc_pause
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_kinds import BYTE_NAMES

BYTE_TOKENS = frozenset(BYTE_NAMES)


@dataclass(frozen=True)
class VocabularyKind:
    """One entry of VOCABULARY_KINDS."""

    read: Callable[[GGUFVocabulary], tuple[Backend, BosEosFrame]]
    write: Callable[[TokenizerParts, list[str]], dict[str, Any]]
    """Metadata without its prefix, for tokens in the order of their ids."""
    matches: Callable[[TokenizerParts], bool]


VOCABULARY_KINDS: dict[str, VocabularyKind] = {
    "gpt2": VocabularyKind(byte_level.read, byte_level.write, byte_level.matches),
    "llama": VocabularyKind(sentencepiece.read, sentencepiece.write, sentencepiece.matches),
    "t5": VocabularyKind(unigram.read, unigram.write, unigram.matches),
    "bert": VocabularyKind(wordpiece.read, wordpiece.write, wordpiece.matches),
}
"""By the value of tokenizer.ggml.model."""


def read_tokenizer(metadata: Mapping[str, Any], path: Path) -> Tokenizer:
    """The tokenizer of a file; a DataError says why there is none."""
    name = metadata.get("tokenizer.ggml.model")
    if not isinstance(name, str) or name not in VOCABULARY_KINDS:
        known = ", ".join(VOCABULARY_KINDS)
        raise DataError(
            f"tokenizer.ggml.model is {shown(name)}: Weft reads {known}. Use another file.", path
        )
    vocabulary = read_vocabulary(metadata, path)
    try:
        with gc_pause():
            backend, frame = VOCABULARY_KINDS[name].read(vocabulary)
    except DataError:
        raise
    except Exception as error:  # the library raises nothing narrower
        raise DataError(
            f"has a tokenizer that cannot be built ({error}). Use another file.", path
        ) from None
    specials = read_specials(backend, vocabulary)
    processor = frame_processor(frame, specials, backend)
    if processor is not None:
        backend.post_processor = processor
    return Tokenizer(backend, specials)


def write_tokenizer(tokenizer: Tokenizer, size: int) -> dict[str, Any]:
    """Metadata for a tokenizer and a model with `size` tokens; a UsageError if GGUF cannot
    represent it."""
    parts = parse_tokenizer(tokenizer)
    kind = next((kind for kind in VOCABULARY_KINDS.values() if kind.matches(parts)), None)
    if kind is None:
        raise cannot_write(
            f"its kind ({parts.model['type']} without byte-level letters or marks for spaces) is "
            "not one of GGUF's: byte-level BPE, SentencePiece and WordPiece"
        )
    tokens, types = list_tokens(parts, size)
    values = kind.write(parts, tokens)
    model = values["model"]
    if model == "bert":
        tokens = [gguf_name(token, type_) for token, type_ in zip(tokens, types, strict=True)]
    elif model != "gpt2":
        types = with_sentencepiece_types(tokens, types, tokenizer)
    values |= {"tokens": tokens, "token_type": types, **write_special_ids(tokenizer, model)}
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()}


def with_sentencepiece_types(
    tokens: list[str], types: list[int], tokenizer: Tokenizer
) -> list[int]:
    """Types with those that only SentencePiece has: bytes and the unknown token."""
    types = [
        BYTE if token in BYTE_TOKENS else type_ for token, type_ in zip(tokens, types, strict=True)
    ]
    if tokenizer.unknown_id is not None and types[tokenizer.unknown_id] == CONTROL:
        types[tokenizer.unknown_id] = UNKNOWN
    return types


def write_special_ids(tokenizer: Tokenizer, model: str) -> dict[str, Any]:
    """Ids of the special tokens, and whether BOS and EOS are added to a text."""
    keys = {role: names[0] for role, names in ID_KEYS.items()}
    end_key = "add_eos_token"
    if model == "bert":
        keys["end"], end_key = "seperator_token_id", "add_sep_token"
    ids = {key: tokenizer.find_id(role) for role, key in keys.items()}
    before, after = tokenizer.frame
    if before not in ([], [tokenizer.begin_id]) or after not in ([], [tokenizer.end_id]):
        raise cannot_write(f"it adds {before} before and {after} after a text, not BOS and EOS")
    present: dict[str, Any] = {key: index for key, index in ids.items() if index is not None}
    return {**present, "add_bos_token": bool(before), end_key: bool(after)}
