"""`GGUFVocabulary`: tokenizer.ggml.* after validation, and what all kinds of tokenizer share.

A token's type decides how text becomes it: ordinary tokens by the model (BPE, unigram, WordPiece),
control tokens only where special tokens are asked for, user-defined ones wherever they stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from weft.core.errors import DataError
from weft.text.special_tokens import ROLES, Role, SpecialTokens, find_role

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Values of tokenizer.ggml.token_type."""
MARK = "\u2581"
"""What SentencePiece, and GGUF for WordPiece, write for the space before a word."""
ID_KEYS: dict[Role, tuple[str, ...]] = {
    "pad": ("padding_token_id",),
    "begin": ("bos_token_id", "cls_token_id"),
    "end": ("eos_token_id", "seperator_token_id"),
    "unknown": ("unknown_token_id",),
    "mask": ("mask_token_id",),
}
"""Keys of the roles, the first one first. The spelling of `seperator` is the format's."""


class BosEosFrame(NamedTuple):
    """Whether a text is put between begin and end."""

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
    """The roles that the file names, and their tokens."""

    def get(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(f"tokenizer.ggml.{key}", default)

    def flag(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            self.fail(key, repr(value), "true or false")
        return bool(value)

    def scores(self) -> list[float] | None:
        """One number a token, where the file has them."""
        given = self.get("scores")
        if given is None:
            return None
        if not isinstance(given, np.ndarray) or len(given) < len(self.tokens):
            self.fail("scores", f"not {len(self.tokens)} numbers", "one number a token")
        return [float(score) for score in given[: len(self.tokens)].tolist()]

    def vocabulary(self) -> dict[str, int]:
        return {token: index for index, token in enumerate(self.tokens)}

    def of_type(self, *types: int) -> list[int]:
        """Ids of all tokens of these types."""
        wanted = set(types)
        return [index for index, kind in enumerate(self.types) if kind in wanted]

    def fail(self, key: str, value: str, allowed: str) -> None:
        raise DataError(
            f"tokenizer.ggml.{key} is {value}: it must be {allowed}. Use another file.", self.path
        )


def read_vocabulary(metadata: Mapping[str, Any], path: Path) -> GGUFVocabulary:
    """The vocabulary of a file; a DataError where it is missing or contradicts itself."""
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not isinstance(tokens[0], str):
        raise DataError(
            "has no tokenizer: tokenizer.ggml.tokens is missing. Use the file of a whole model.",
            path,
        )
    # empty texts stand for nothing; as llama.cpp, give them a name, as names must differ
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(tokens)]
    check_unique(tokens, path)
    ids = read_ids(metadata, len(tokens))
    given = metadata.get("tokenizer.ggml.token_type")
    if given is None:
        types = [NORMAL] * len(tokens)
        for index in ids.values():
            types[index] = CONTROL
    elif not isinstance(given, np.ndarray) or len(given) < len(tokens):
        raise DataError(
            f"tokenizer.ggml.token_type does not have one number for each of {len(tokens)} "
            "tokens. Use another file.",
            path,
        )
    else:
        types = given[: len(tokens)].tolist()
    return GGUFVocabulary(path, metadata, tokens, types, ids)


def check_unique(tokens: list[str], path: Path) -> None:
    seen: dict[str, int] = {}
    if len(set(tokens)) == len(tokens):
        return
    for index, token in enumerate(tokens):
        if token in seen:
            raise DataError(
                f"token {token!r} has two ids, {seen[token]} and {index}: each token has one. "
                "Use another file.",
                path,
            )
        seen[token] = index


def read_ids(metadata: Mapping[str, Any], count: int) -> dict[Role, int]:
    """The token of each role. Ids outside the vocabulary mean that there is none."""
    found: dict[Role, int] = {}
    for role, keys in ID_KEYS.items():
        given = [metadata.get(f"tokenizer.ggml.{key}") for key in keys]
        good = [i for i in given if isinstance(i, int) and not isinstance(i, bool)]
        inside = [i for i in good if 0 <= i < count]
        if inside:
            found[role] = inside[0]
    return found


def add_tokens(backend: Backend, words: GGUFVocabulary) -> None:
    """Make the backend find control tokens (when asked to) and user-defined ones in text."""
    for kinds, special in (((CONTROL, UNKNOWN), True), ((USER_DEFINED,), False)):
        names = [backend.id_to_token(index) for index in words.of_type(*kinds)]
        tokens = [AddedToken(name, special=special, normalized=False) for name in names]
        backend.add_special_tokens(tokens) if special else backend.add_tokens(tokens)


def read_specials(backend: Backend, words: GGUFVocabulary) -> SpecialTokens:
    """The roles as the file has them, else by customary names."""
    named = {role: backend.id_to_token(index) for role, index in words.ids.items()}
    return SpecialTokens(
        **{role: named.get(role) or find_role(backend, {}, role) for role in ROLES}
    )


def read_frame(words: GGUFVocabulary, begin: bool, end: bool) -> BosEosFrame:
    """What goes around a text; `begin`, `end`: what this kind of tokenizer does by default."""
    return BosEosFrame(words.flag("add_bos_token", begin), words.flag("add_eos_token", end))


def frame_processor(
    frame: BosEosFrame, specials: SpecialTokens, backend: Backend
) -> processors.PostProcessor | None:
    """<begin> text <end>; of two texts: <begin> first <end> second <end>."""
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
        # under names of our own: a token's text may have a colon in it, which means something here
        special_tokens=[
            {"id": name, "ids": [backend.token_to_id(token)], "tokens": [token]}
            for name, token in tokens.items()
        ],
    )
