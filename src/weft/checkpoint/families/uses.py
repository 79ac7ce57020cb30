"""How a model with a source is used, from the settings that `transformers` generates by: start, end
and first tokens, and those that are never written."""

from __future__ import annotations

from typing import Any

from weft.checkpoint.families.base import Given, Use
from weft.core.errors import DataError


def read_use(given: Given, never: tuple[int, ...] = ()) -> Use:
    """The ids of a translation; `never`: ids that this family bans besides."""
    start, first = given.get("decoder_start_token_id"), given.get("forced_bos_token_id")
    banned = [*bad_words(given), *never]
    return Use(
        start=None if start is None else one_id(given, "decoder_start_token_id", start),
        ends=tuple(ids(given, "eos_token_id")),
        first=None if first is None else one_id(given, "forced_bos_token_id", first),
        banned=tuple(sorted(set(banned))),
    )


def ids(given: Given, name: str) -> list[int]:
    """One id or a list of them."""
    value = given.get(name, [])
    return [one_id(given, name, one) for one in (value if isinstance(value, list) else [value])]


def one_id(given: Given, name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise DataError(f"{name} is {value!r}: it must be the id of a token.", given.path)
    return value


def bad_words(given: Given) -> list[int]:
    """bad_words_ids is a list of words, each a list of ids."""
    words = given.get("bad_words_ids", [])
    if not isinstance(words, list) or not all(isinstance(w, list) and len(w) == 1 for w in words):
        raise DataError(
            f"bad_words_ids is {words!r}: Weft bans single tokens, each in a list of its own.",
            given.path,
        )
    return [one_id(given, "bad_words_ids", word[0]) for word in words]
