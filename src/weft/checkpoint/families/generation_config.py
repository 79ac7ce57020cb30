"""How a model with a source is used, from the settings that `transformers` generates by: start, end
and first tokens, and those that are never written."""

from __future__ import annotations

from typing import Any

from weft.checkpoint.families.base import GenerationConfig, HFConfig
from weft.core.errors import DataError


def read_generation(hf: HFConfig, never: tuple[int, ...] = ()) -> GenerationConfig:
    """The ids of a translation; `never`: ids that this family bans besides."""
    start, first = hf.get("decoder_start_token_id"), hf.get("forced_bos_token_id")
    banned = [*bad_words(hf), *never]
    return GenerationConfig(
        start=None if start is None else one_id(hf, "decoder_start_token_id", start),
        ends=tuple(ids(hf, "eos_token_id")),
        first=None if first is None else one_id(hf, "forced_bos_token_id", first),
        banned=tuple(sorted(set(banned))),
    )


def ids(hf: HFConfig, name: str) -> list[int]:
    """One id or a list of them."""
    value = hf.get(name, [])
    return [one_id(hf, name, one) for one in (value if isinstance(value, list) else [value])]


def one_id(hf: HFConfig, name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise DataError(f"{name} is {value!r}: it must be the id of a token.", hf.path)
    return value


def bad_words(hf: HFConfig) -> list[int]:
    """bad_words_ids is a list of words, each a list of ids."""
    words = hf.get("bad_words_ids", [])
    if not isinstance(words, list) or not all(isinstance(w, list) and len(w) == 1 for w in words):
        raise DataError(
            f"bad_words_ids is {words!r}: Weft bans single tokens, each in a list of its own.",
            hf.path,
        )
    return [one_id(hf, "bad_words_ids", word[0]) for word in words]
