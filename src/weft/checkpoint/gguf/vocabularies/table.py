"""The table of kinds, and the two functions that use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from weft.checkpoint.gguf.vocabularies import byte_level, sentencepiece, unigram, wordpiece
from weft.checkpoint.gguf.vocabularies.base import (
    BYTE,
    CONTROL,
    ID_KEYS,
    UNKNOWN,
    BosEosFrame,
    GGUFVocabulary,
    frame_processor,
    read_specials,
    read_vocabulary,
)
from weft.checkpoint.gguf.vocabularies.pieces import (
    TokenizerParts,
    cannot_write,
    list_tokens,
    parse_tokenizer_json,
)
from weft.checkpoint.gguf.vocabularies.wordpiece import gguf_name
from weft.core.errors import DataError
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_kinds import BYTE_NAMES


@dataclass(frozen=True)
class VocabularyKind:
    """One entry of KINDS."""

    read: Callable[[GGUFVocabulary], tuple[Backend, BosEosFrame]]
    write: Callable[[TokenizerParts, list[str]], dict[str, Any]]
    """Metadata without its prefix, for tokens in the order of their ids."""
    matches: Callable[[TokenizerParts], bool]


KINDS: dict[str, VocabularyKind] = {
    "gpt2": VocabularyKind(byte_level.read, byte_level.write, byte_level.matches),
    "llama": VocabularyKind(sentencepiece.read, sentencepiece.write, sentencepiece.matches),
    "t5": VocabularyKind(unigram.read, unigram.write, unigram.matches),
    "bert": VocabularyKind(wordpiece.read, wordpiece.write, wordpiece.matches),
}
"""By the value of tokenizer.ggml.model."""


def read_tokenizer(metadata: Mapping[str, Any], path: Path) -> Tokenizer:
    """The tokenizer that a file's metadata describes; a DataError says why there is none."""
    name = metadata.get("tokenizer.ggml.model")
    if not isinstance(name, str) or name not in KINDS:
        raise DataError(
            f"tokenizer.ggml.model is {name!r}: Weft reads {', '.join(KINDS)}. Use another file.",
            path,
        )
    words = read_vocabulary(metadata, path)
    try:
        backend, frame = KINDS[name].read(words)
    except DataError:
        raise
    except Exception as error:  # the library raises nothing narrower
        raise DataError(f"has a tokenizer that cannot be built ({error}).", path) from None
    specials = read_specials(backend, words)
    processor = frame_processor(frame, specials, backend)
    if processor is not None:
        backend.post_processor = processor
    return Tokenizer(backend, specials)


def write_tokenizer(tokenizer: Tokenizer, size: int) -> dict[str, Any]:
    """Metadata for a tokenizer and a model of `size` words; a UsageError where GGUF has none."""
    parts = parse_tokenizer_json(tokenizer)
    kind = next((kind for kind in KINDS.values() if kind.matches(parts)), None)
    if kind is None:
        raise cannot_write(
            f"its kind ({parts.model['type']} without byte-level letters or marks for spaces) is "
            "none that GGUF has. It has byte-level BPE, SentencePiece and WordPiece"
        )
    tokens, types = list_tokens(parts, size)
    told = kind.write(parts, tokens)
    if told["model"] == "bert":
        tokens = [gguf_name(token, type_) for token, type_ in zip(tokens, types, strict=True)]
    else:
        types = mark_sentencepiece_types(tokens, types, told["model"], tokenizer)
    told |= {"tokens": tokens, "token_type": types, **write_roles(tokenizer, told["model"])}
    return {f"tokenizer.ggml.{key}": value for key, value in told.items()}


def mark_sentencepiece_types(
    tokens: list[str], types: list[int], model: str, tokenizer: Tokenizer
) -> list[int]:
    """Types with those that only SentencePiece has: bytes and the unknown token."""
    if model == "gpt2":
        return types
    found = list(types)
    for index, token in enumerate(tokens):
        if token in BYTES:
            found[index] = BYTE
    if tokenizer.unknown_id is not None and found[tokenizer.unknown_id] == CONTROL:
        found[tokenizer.unknown_id] = UNKNOWN
    return found


BYTES = frozenset(BYTE_NAMES)


def write_roles(tokenizer: Tokenizer, model: str) -> dict[str, Any]:
    """Ids of the special tokens, and whether begin and end are put around a text."""
    names = {role: keys[0] for role, keys in ID_KEYS.items()}
    end = "add_eos_token"
    if model == "bert":
        names["end"], end = "seperator_token_id", "add_sep_token"
    ids = {name: tokenizer.find_id(role) for role, name in names.items()}
    before, after = tokenizer.frame
    if before not in ([], [tokenizer.begin_id]) or after not in ([], [tokenizer.end_id]):
        raise cannot_write(
            f"it puts {before} before and {after} after a text, more than begin and end"
        )
    found: dict[str, Any] = {name: index for name, index in ids.items() if index is not None}
    return {**found, "add_bos_token": bool(before), end: bool(after)}
