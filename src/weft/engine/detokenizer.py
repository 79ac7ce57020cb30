"""Incremental detokenizer: the tokens of one sample, one at a time -> text to output, and why the
sample ended.

Held back are the bytes of an incomplete character and text that may be the beginning of a stop
string, so nothing that was output has to be withdrawn, and a stop string is found across token
boundaries. If several stop strings occur, the one that is complete first ends the text, however the
text is split into tokens. Differs from decoding all ids again in each step: the time is linear, and
an invalid byte affects one character only.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from weft.core.errors import UsageError, shown
from weft.text.tokenizer import Tokenizer

Reason = Literal["end", "stop", "length"]
MAX_STOPS, MAX_STOP_BYTES = 64, 512


@dataclass(frozen=True)
class FinishReason:
    """Why a sample ended: an end token, a stop string (`stop`), or max_tokens."""

    reason: Reason
    stop: str | None = None


class Detokenizer:
    """Text of one sample. `finish` is None until the sample ends; then no token may follow.

    `is_continuation`: the text continues a prompt, so a leading space belongs to it. Otherwise the
    text stands alone, as `Tokenizer.decode` returns it. `visible_ids`: special tokens whose names
    are part of the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        end_ids: Collection[int] = (),
        is_continuation: bool = True,
        visible_ids: Collection[int] = (),
    ) -> None:
        check_stops(stops)
        self.tokenizer = tokenizer.target
        self.special = special_ids(self.tokenizer)
        self.hidden = self.special.keys() - frozenset(visible_ids)
        self.stops, self.end_ids = tuple(stops), frozenset(end_ids)
        self.stop_ids = {index: name for index, name in self.special.items() if name in stops}
        """Stop strings that are the name of a special token, which has no text to search in."""
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.pending = ""
        self.is_at_start = not is_continuation
        self.finish: FinishReason | None = None

    def append(self, token: int) -> str:
        """Append a token; returns the text that can be output now, often none."""
        assert self.finish is None, f"token {token} after the end: {self.finish}"
        if token in self.end_ids:
            return self.finalize("end")
        if token in self.stop_ids:
            return self.finalize("stop", self.stop_ids[token])
        return self.add_text(self.decoder.decode(self.bytes_of(token)))

    def finalize(self, reason: Reason = "length", stop: str | None = None) -> str:
        """End the text; returns the pending text. An incomplete stop string is ordinary text."""
        assert self.finish is None, f"the text has already ended: {self.finish}"
        text = self.add_text(self.decoder.decode(b"", final=True))
        if self.finish is not None:  # the replacement of an incomplete character completed a stop
            return text
        self.finish = FinishReason(reason, stop)
        return text + self.release()

    def add_text(self, text: str) -> str:
        """Add decoded text; returns what cannot be part of a stop string any more."""
        self.pending += text
        match = first_stop(self.pending, self.stops)
        if match is not None:
            start, stop = match
            self.finish, self.pending = FinishReason("stop", stop), self.pending[:start]
            return self.release()
        keep = max((overlap(self.pending, stop) for stop in self.stops), default=0)
        return self.release(keep)

    def release(self, keep: int = 0) -> str:
        """Remove and return the pending text except for its last `keep` characters."""
        length = len(self.pending) - keep
        text, self.pending = self.pending[:length], self.pending[length:]
        return text

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token; none for hidden special tokens and for ids beyond the tokenizer's
        vocabulary, which models have where they round its size up."""
        if token in self.hidden or token >= self.tokenizer.vocab_size:
            return b""
        content = self.tokenizer.token_bytes([token])[0]
        if not self.is_at_start:
            return content
        self.is_at_start = False
        # some tokenizers mark the start of a text with a space, which `decode` removes
        return content if not content.startswith(b" ") else self.tokenizer.decode([token]).encode()


class NullDetokenizer:
    """For an engine without a tokenizer: no text, and only end tokens end a sample early."""

    def __init__(self, end_ids: Collection[int] = ()) -> None:
        self.end_ids = frozenset(end_ids)
        self.finish: FinishReason | None = None

    def append(self, token: int) -> str:
        if token in self.end_ids:
            self.finish = FinishReason("end")
        return ""

    def finalize(self, reason: Reason = "length", stop: str | None = None) -> str:
        self.finish = FinishReason(reason, stop)
        return ""


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Start of the first stop string in the text, and the string: the first to be complete, and of
    those that end at the same character the longest."""
    matches = [(text.find(stop), stop) for stop in stops if stop in text]
    return min(matches, key=lambda match: (match[0] + len(match[1]), match[0]), default=None)


def overlap(text: str, stop: str) -> int:
    """Length of the longest suffix of the text that is a proper prefix of the stop string."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if stop.startswith(text[-n:])), 0)


def check_stops(stops: Sequence[str]) -> None:
    """Raise a UsageError for a str instead of a list, for too many stop strings, and for one that
    is no text, empty or too long: they are searched for after every token."""
    if isinstance(stops, str):
        raise UsageError(f"stop is the str {stops!r}: pass a list of them. Use [stop] for one.")
    if not isinstance(stops, Collection) or not all(isinstance(stop, str) for stop in stops):
        raise UsageError(f"stop is {shown(stops)}: it must be a list of str. Use texts.")
    if "" in stops:
        raise UsageError("a stop is '': it must have at least one character. Leave it out.")
    if len(stops) > MAX_STOPS:
        raise UsageError(
            f"stop has {len(stops)} strings: at most {MAX_STOPS} are allowed. Use fewer."
        )
    longest = max(stops, key=num_bytes, default="")
    if num_bytes(longest) > MAX_STOP_BYTES:
        raise UsageError(
            f"the stop {longest[:20]!r}... has {num_bytes(longest)} bytes in UTF-8: at most "
            f"{MAX_STOP_BYTES} are allowed. Use a part of it."
        )


def num_bytes(text: str) -> int:
    """Length in UTF-8; half of a surrogate pair, which is never generated, counts 3."""
    return len(text.encode("utf-8", "surrogatepass"))


@lru_cache(maxsize=8)
def special_ids(tokenizer: Tokenizer) -> dict[int, str]:
    """The special tokens of a tokenizer: id -> name. Shared: do not modify."""
    added = tokenizer.backend.get_added_tokens_decoder()
    return {index: token.content for index, token in added.items() if token.special}


def visible_special_ids(
    tokenizer: Tokenizer, names: Collection[str] | None = None
) -> frozenset[int]:
    """`visible_ids` of the special tokens with these names, as far as there are any; None: all."""
    special = special_ids(tokenizer.target)
    return frozenset(index for index, name in special.items() if names is None or name in names)
