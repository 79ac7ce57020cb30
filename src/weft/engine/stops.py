"""`TextStream`: the tokens of one request, one at a time -> the text that may be shown, and why it
ended.

Held back are the bytes of a character that is not whole yet, and what may be the beginning of a
stop; so nothing that was shown has to be taken back, and a stop is found across the borders of
tokens. The first stop is the one whose last character comes first: the text is the same however
it is cut into tokens. Differs from decoding all ids anew at each step: time stays linear, and one
wrong byte spoils one character.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from weft.core.errors import UsageError
from weft.text.tokenizer import Tokenizer

Reason = Literal["end", "stop", "length"]


@dataclass(frozen=True)
class Finish:
    """Why a text ended: an end token, a stop (this one), or the number of tokens."""

    reason: Reason
    stop: str | None = None


class TextStream:
    """Text of one request. `finish` is None until it has ended; then nothing more may be fed.

    `is_continuation`: the text goes on behind another one, so that a space in front is its own.
    Without it the text stands alone, as `decode` writes it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        end_ids: Collection[int] = (),
        is_continuation: bool = True,
    ) -> None:
        check_stops(stops)
        self.tokenizer = tokenizer.target
        self.special = special_ids(self.tokenizer)
        self.stops, self.end_ids = tuple(stops), frozenset(end_ids)
        self.stop_ids = {index: name for index, name in self.special.items() if name in stops}
        """A stop that is the name of a special token, which has no text to be found in."""
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.held = ""
        self.is_at_start = not is_continuation
        self.finish: Finish | None = None

    def feed(self, token: int) -> str:
        """The text that may be shown now that this token is there, often none."""
        assert self.finish is None, f"token {token} after the end: {self.finish}"
        if token in self.end_ids:
            return self.close("end")
        if token in self.stop_ids:
            return self.close("stop", self.stop_ids[token])
        return self.show(self.decoder.decode(self.bytes_of(token)))

    def close(self, reason: Reason = "length", stop: str | None = None) -> str:
        """End here; returns what was held back. A stop that was only begun is text."""
        assert self.finish is None, f"the text has ended already: {self.finish}"
        shown = self.show(self.decoder.decode(b"", final=True))
        if self.finish is not None:  # the last, broken character made a stop whole
            return shown
        self.finish = Finish(reason, stop)
        return shown + self.release()

    def show(self, text: str) -> str:
        """Take in text; give out what no stop can claim any more."""
        self.held += text
        found = first_stop(self.held, self.stops)
        if found is not None:
            cut, stop = found
            self.finish, self.held = Finish("stop", stop), self.held[:cut]
            return self.release()
        return self.release(keep=max((overlap(self.held, stop) for stop in self.stops), default=0))

    def release(self, keep: int = 0) -> str:
        """What is held, but for the last `keep` characters."""
        border = len(self.held) - keep
        text, self.held = self.held[:border], self.held[border:]
        return text

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token's text. A special token has none, nor has an id without a token:
        models have more ids than their tokenizer, rounded up."""
        if token in self.special or token >= self.tokenizer.vocab_size:
            return b""
        content = self.tokenizer.token_bytes([token])[0]
        if not self.is_at_start:
            return content
        self.is_at_start = False
        # some tokenizers mark the beginning of a text with a space, which `decode` leaves out
        return content if not content.startswith(b" ") else self.tokenizer.decode([token]).encode()


class IdStream:
    """The same for a caller who wants ids alone: it has no text, and only an end token ends it."""

    def __init__(self, end_ids: Collection[int] = ()) -> None:
        self.end_ids = frozenset(end_ids)
        self.finish: Finish | None = None

    def feed(self, token: int) -> str:
        if token in self.end_ids:
            self.finish = Finish("end")
        return ""

    def close(self, reason: Reason = "length", stop: str | None = None) -> str:
        self.finish = Finish(reason, stop)
        return ""


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Where in the text the first stop begins, and which it is: the first to be whole, and of those
    that end together the longest."""
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    return min(found, key=lambda place: (place[0] + len(place[1]), place[0]), default=None)


def overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text are the beginning of the stop."""
    most = min(len(text), len(stop) - 1)
    return next((n for n in range(most, 0, -1) if stop.startswith(text[-n:])), 0)


def check_stops(stops: Sequence[str]) -> None:
    """Refuse what could never be a stop."""
    if isinstance(stops, str):
        raise UsageError(f"stops is one str, {stops!r}: give a list of them. Use [stop] for one.")
    if "" in stops:
        raise UsageError("a stop is '': it must have at least one character. Leave it out.")


@lru_cache(maxsize=8)
def special_ids(tokenizer: Tokenizer) -> dict[int, str]:
    """The special tokens of a tokenizer: id -> name. Do not change it."""
    added = tokenizer.backend.get_added_tokens_decoder()
    return {index: token.content for index, token in added.items() if token.special}
