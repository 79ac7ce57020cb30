"""What all kinds of tokenizer in GGUF share: `GGUFVocabulary` for reading, `TokenizerParts` for
writing.

A `GGUFVocabulary` is tokenizer.ggml.* after validation. The type of a token decides how text
becomes it: normal tokens by the model (BPE, unigram, WordPiece), control tokens only where special
tokens are requested, user-defined ones wherever they occur. `TokenizerParts` are the steps of a
tokenizer.json (normalizer, pre-tokenizer, decoder) in order, with nested sequences flattened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from weft.checkpoint.gguf.header import CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED
from weft.core.errors import DataError, UsageError, shown
from weft.text.special_tokens import ROLES, Role, SpecialTokens, find_role
from weft.text.tokenizer import Tokenizer

SPACE_MARK = "\u2581"
"""Stands for the space before a word in SentencePiece, and in GGUF also in WordPiece."""
ID_KEYS: dict[Role, tuple[str, ...]] = {
    "pad": ("padding_token_id",),
    "begin": ("bos_token_id", "cls_token_id"),
    "end": ("eos_token_id", "seperator_token_id"),
    "unknown": ("unknown_token_id",),
    "mask": ("mask_token_id",),
}
"""Keys of the special tokens, in order of precedence. `seperator` is the format's spelling."""

TokenizerStep = dict[str, Any]
NESTED_STEPS = ("normalizers", "pretokenizers", "decoders")
"""Keys under which a sequence has its steps."""


class BosEosFrame(NamedTuple):
    """Whether BOS and EOS are added to a text."""

    begin: bool
    end: bool


@dataclass(frozen=True)
class GGUFVocabulary:
    """The vocabulary of a file."""

    path: Path
    metadata: Mapping[str, Any]
    tokens: list[str]
    types: list[int]
    ids: Mapping[Role, int] = field(default_factory=dict)
    """Special tokens that the file names."""

    def get(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"tokenizer.ggml.{key}", default)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            self.fail(key, shown(value), "true or false")
        return bool(value)

    def scores(self) -> list[float] | None:
        """One number per token; None if the file has none."""
        scores = self.get("scores")
        if scores is None:
            return None
        if not isinstance(scores, np.ndarray) or len(scores) < len(self.tokens):
            self.fail("scores", f"not {len(self.tokens)} numbers", "one number per token")
        numbers: list[float] = scores[: len(self.tokens)].astype(np.float64).tolist()
        return numbers

    def token_to_id(self) -> dict[str, int]:
        return dict(zip(self.tokens, range(len(self.tokens)), strict=True))

    def of_type(self, *types: int) -> list[int]:
        """Ids of all tokens of these types."""
        ids: list[int] = np.flatnonzero(np.isin(self.type_array, types)).tolist()
        return ids

    @cached_property
    def type_array(self) -> NDArray[np.int64]:
        return np.array(self.types)

    def fail(self, key: str, value: str, allowed: str) -> None:
        raise DataError(
            f"tokenizer.ggml.{key} is {value}: it must be {allowed}. Use another file.", self.path
        )


def read_vocabulary(metadata: Mapping[str, Any], path: Path) -> GGUFVocabulary:
    """The vocabulary of a file; a DataError if it is missing or inconsistent."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise DataError(
            "has no tokenizer: tokenizer.ggml.tokens is missing. Use a file with a whole model.",
            path,
        )
    # as llama.cpp does: empty strings are not tokens, and names must be unique
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
    check_unique(tokens, path)
    ids = read_ids(metadata, len(tokens))
    types = metadata.get("tokenizer.ggml.token_type")
    if types is None:
        special = set(ids.values())
        types = np.array([CONTROL if i in special else NORMAL for i in range(len(tokens))])
    elif not isinstance(types, np.ndarray) or len(types) < len(tokens):
        raise DataError(
            f"tokenizer.ggml.token_type does not have one number for each of {len(tokens)} "
            "tokens. Use another file.",
            path,
        )
    return GGUFVocabulary(path, metadata, tokens, types[: len(tokens)].tolist(), ids)


def check_unique(tokens: list[str], path: Path) -> None:
    if len(set(tokens)) == len(tokens):
        return
    first: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token in first:
            raise DataError(
                f"token {shown(token)} has two ids, {first[token]} and {index}: it must have one. "
                "Use another file.",
                path,
            )
        first[token] = index


def read_ids(metadata: Mapping[str, Any], count: int) -> dict[Role, int]:
    """Ids of the special tokens. An id outside the vocabulary means that there is none."""
    ids: dict[Role, int] = {}
    for role, keys in ID_KEYS.items():
        values = [metadata.get(f"tokenizer.ggml.{key}") for key in keys]
        integers = [i for i in values if isinstance(i, int) and not isinstance(i, bool)]
        inside = [i for i in integers if 0 <= i < count]
        if inside:
            ids[role] = inside[0]
    return ids


def add_special_tokens(backend: Backend, vocabulary: GGUFVocabulary) -> None:
    """Make the backend recognize control tokens (on request) and user-defined ones in text."""
    for types, special in (((CONTROL, UNKNOWN), True), ((USER_DEFINED,), False)):
        names = [backend.id_to_token(index) for index in vocabulary.of_type(*types)]
        tokens = [AddedToken(name, special=special, normalized=False) for name in names]
        backend.add_special_tokens(tokens) if special else backend.add_tokens(tokens)


def read_specials(backend: Backend, vocabulary: GGUFVocabulary) -> SpecialTokens:
    """Special tokens that the file names, otherwise by customary names."""
    named = {role: backend.id_to_token(index) for role, index in vocabulary.ids.items()}
    return SpecialTokens(
        **{role: named.get(role) or find_role(backend, {}, role) for role in ROLES}
    )


def read_frame(vocabulary: GGUFVocabulary, begin: bool, end: bool) -> BosEosFrame:
    """Whether BOS and EOS are added; `begin`, `end`: the defaults of this kind of tokenizer."""
    return BosEosFrame(
        vocabulary.flag("add_bos_token", begin), vocabulary.flag("add_eos_token", end)
    )


def frame_processor(
    frame: BosEosFrame, specials: SpecialTokens, backend: Backend
) -> processors.PostProcessor | None:
    """<BOS> text <EOS>; for pairs of texts: <BOS> first <EOS> second <EOS>."""
    names = {"begin": specials.begin if frame.begin else None}
    names |= {"end": specials.end if frame.end else None}
    tokens = {name: token for name, token in names.items() if token is not None}
    if not tokens:
        return None
    begin, end = [n for n in tokens if n == "begin"], [n for n in tokens if n == "end"]
    single = [*begin, "$A", *end]
    return processors.TemplateProcessing(
        single=single,
        pair=[*single, "$B:1", *(f"{name}:1" for name in end)],
        # under names of our own: a colon in a token's text would have a meaning here
        special_tokens=[
            {"id": name, "ids": [backend.token_to_id(token)], "tokens": [token]}
            for name, token in tokens.items()
        ],
    )


@dataclass(frozen=True)
class TokenizerParts:
    """What a tokenizer.json contains."""

    model: TokenizerStep
    normalizers: list[TokenizerStep]
    pre_tokenizers: list[TokenizerStep]
    decoders: list[TokenizerStep]
    added: list[TokenizerStep]
    """Added tokens, which are matched in text before anything else."""

    @property
    def steps(self) -> list[TokenizerStep]:
        """Steps before the model."""
        return [*self.normalizers, *self.pre_tokenizers]


def parse_tokenizer(tokenizer: Tokenizer) -> TokenizerParts:
    if tokenizer.target is not tokenizer:
        raise cannot_write("source and target have different vocabularies")
    values = json.loads(tokenizer.backend.to_str())
    for token in values["added_tokens"]:
        if token["lstrip"] or token["rstrip"] or token["single_word"]:
            raise cannot_write(f"its token {token['content']!r} includes the spaces around it")
    return TokenizerParts(
        values["model"],
        flatten_steps(values["normalizer"]),
        flatten_steps(values["pre_tokenizer"]),
        flatten_steps(values["decoder"]),
        values["added_tokens"],
    )


def flatten_steps(step: TokenizerStep | None) -> list[TokenizerStep]:
    """The steps of a sequence, or the single step."""
    if step is None:
        return []
    for key in NESTED_STEPS:
        if key in step:
            return [inner for nested in step[key] for inner in flatten_steps(nested)]
    return [step]


def cannot_write(reason: str) -> UsageError:
    return UsageError(
        f"this tokenizer cannot be written into a GGUF file: {reason}. Convert to hf instead."
    )


def list_tokens(parts: TokenizerParts, size: int) -> tuple[list[str], list[int]]:
    """`size` tokens in the order of their ids, and their types. Ids without a token get a name
    that no text becomes."""
    vocab = parts.model["vocab"]
    if isinstance(vocab, list):
        names = {index: piece for index, (piece, _) in enumerate(vocab)}
    else:
        names = {index: token for token, index in vocab.items()}
    types = dict.fromkeys(names, NORMAL)
    for token in parts.added:
        names[token["id"]] = token["content"]
        types[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    if names and max(names) >= size:
        raise UsageError(
            f"the tokenizer has an id {max(names)} but the model has {size} tokens. Use the "
            "tokenizer that belongs to the model."
        )
    tokens = [names.get(index, f"[PAD{index}]") for index in range(size)]
    return tokens, [types.get(index, UNUSED) for index in range(size)]
