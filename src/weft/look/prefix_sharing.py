"""Why a prompt did not share the cached prefix of an earlier one: two prompts -> `PrefixSharing`.

    sharing = compare_prefixes(CachedPrompt(ids_a), CachedPrompt(ids_b), page_size=16)
    sharing.num_equal, sharing.num_shared          37 equal leading tokens, 32 of them shareable
    sharing.reasons                                what limits it, in the order of importance

Only whole pages of one namespace are shared, and the last token of a prompt is always computed,
because its logits are needed (cache/prefix_cache.py). What was evicted meanwhile is known to the
engine alone: `num_cached` is its answer, if it was asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from weft.text.tokenizer import Tokenizer

Code = Literal[
    "cache_disabled",
    "api_key",
    "cache_salt",
    "source",
    "different_token",
    "page_boundary",
    "last_token",
    "not_cached",
]


@dataclass(frozen=True)
class CachedPrompt:
    """A prompt and what its namespace in the prefix cache is made of."""

    ids: Sequence[int]
    key: str = ""
    """Name of the API key."""
    salt: str = ""
    """cache_salt of the request."""
    source: Sequence[int] | None = None
    """Tokens of the source, for an encoder-decoder: the rows of its decoder depend on them."""


@dataclass(frozen=True)
class Reason:
    """One thing that keeps tokens from being shared."""

    code: Code
    message: str


@dataclass(frozen=True)
class DifferentToken:
    """The first position where two prompts differ; None: that prompt ends there."""

    position: int
    first: int | None
    second: int | None
    first_text: str | None
    second_text: str | None


@dataclass(frozen=True)
class PrefixSharing:
    """How much of the second prompt can come from the pages of the first."""

    num_first: int
    num_second: int
    num_equal: int
    """Equal leading tokens."""
    num_shared: int
    """Tokens of whole pages that the second prompt can take from the first."""
    num_cached: int | None
    """Leading tokens of the second prompt that are cached now; None: not looked up."""
    page_size: int
    difference: DifferentToken | None
    """None: one prompt is the beginning of the other."""
    reasons: tuple[Reason, ...]

    def to_json(self) -> dict[str, Any]:
        difference = None if self.difference is None else vars(self.difference)
        return {
            **vars(self),
            "difference": difference,
            "reasons": [vars(reason) for reason in self.reasons],
        }


def compare_prefixes(
    first: CachedPrompt,
    second: CachedPrompt,
    page_size: int,
    tokenizer: Tokenizer | None = None,
    prefix_cache: str = "radix",
    num_cached: int | None = None,
) -> PrefixSharing:
    """What the second prompt can share with the first, and why not more. `prefix_cache`: a name in
    PREFIX_CACHES; `num_cached`: what the engine has of the second prompt now."""
    num_equal = num_equal_tokens(first.ids, second.ids)
    different = namespace_reasons(first, second)
    if prefix_cache == "none":
        different.insert(0, Reason("cache_disabled", "the prefix cache is off: prefix_cache=none."))
    limit = min(num_equal, max(0, len(second.ids) - 1))
    num_shared = 0 if different else limit // page_size * page_size
    difference = different_token(first.ids, second.ids, num_equal, tokenizer)
    reasons = [*different, *token_reasons(second, num_equal, difference, page_size)]
    if num_cached is not None and num_cached < num_shared:
        reasons.append(
            Reason(
                "not_cached",
                f"{num_cached} of the {num_shared} shareable tokens are cached now: the others "
                "were never computed, or were evicted because pages were needed.",
            )
        )
    return PrefixSharing(
        len(first.ids),
        len(second.ids),
        num_equal,
        num_shared,
        num_cached,
        page_size,
        difference,
        tuple(reasons),
    )


def namespace_reasons(first: CachedPrompt, second: CachedPrompt) -> list[Reason]:
    """Why two prompts are in different namespaces: then not even equal tokens are shared."""
    reasons = []
    if first.key != second.key:
        reasons.append(
            Reason("api_key", "the requests have different API keys, which never share anything.")
        )
    if first.salt != second.salt:
        reasons.append(
            Reason(
                "cache_salt",
                f"cache_salt is {first.salt!r} and {second.salt!r}: requests share only with the "
                "same one.",
            )
        )
    if (first.source is None) != (second.source is None) or (
        first.source is not None and list(first.source) != list(second.source or ())
    ):
        reasons.append(
            Reason(
                "source",
                "the sources differ: keys and values of the decoder depend on the whole source.",
            )
        )
    return reasons


def token_reasons(
    second: CachedPrompt, num_equal: int, difference: DifferentToken | None, page_size: int
) -> list[Reason]:
    """What the tokens themselves limit."""
    reasons = []
    if difference is not None:
        texts = f"{shown(difference.first_text)} and {shown(difference.second_text)}"
        reasons.append(
            Reason(
                "different_token",
                f"the prompts differ at token {difference.position}: {difference.first} and "
                f"{difference.second} ({texts}).",
            )
        )
    if num_equal >= len(second.ids):
        reasons.append(
            Reason(
                "last_token",
                "the whole second prompt is in the first, but its last token is always computed: "
                "its logits are needed.",
            )
        )
    limit = min(num_equal, max(0, len(second.ids) - 1))
    if limit % page_size:
        reasons.append(
            Reason(
                "page_boundary",
                f"{limit} tokens are equal, and only whole pages of {page_size} tokens are shared: "
                f"{limit // page_size * page_size}.",
            )
        )
    return reasons


def num_equal_tokens(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of equal leading tokens."""
    for index, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return index
    return min(len(first), len(second))


def different_token(
    first: Sequence[int], second: Sequence[int], position: int, tokenizer: Tokenizer | None
) -> DifferentToken | None:
    """The tokens at the first position where both prompts have one and they differ."""
    if position >= min(len(first), len(second)):
        return None
    a, b = first[position], second[position]
    return DifferentToken(position, a, b, text_of(a, tokenizer), text_of(b, tokenizer))


def text_of(token: int, tokenizer: Tokenizer | None) -> str | None:
    """The text of a token; bytes that are no whole characters in hex."""
    if tokenizer is None or not 0 <= token < tokenizer.vocab_size:
        return None
    (data,) = tokenizer.token_bytes([token])
    try:
        return data.decode() or tokenizer.pieces([token])[0]
    except UnicodeDecodeError:
        return data.hex(" ").upper()


def shown(text: str | None) -> str:
    return "unknown" if text is None else repr(text)
