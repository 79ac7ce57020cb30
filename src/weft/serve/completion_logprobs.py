"""Log-probabilities in the form of /v1/completions: parallel lists of tokens, log-probabilities,
the most likely tokens, and offsets in the text.

    writer = CompletionLogprobs(served, visible_ids)       one for each text
    writer.part(ids, entries)                              the lists of the next tokens

`bytes`, which OpenAI has in chats only, tells tokens apart that are parts of a character.
Offsets count characters from the beginning of the text, in a stream too. Tokens of one character
have the same offset, and special tokens that are not part of the text take no room.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Sequence
from typing import Any

from weft.engine.detokenizer import special_ids
from weft.engine.logprobs import TokenLogprob
from weft.serve.openai_fields import token_text
from weft.serve.served_model import ServedModel


class CompletionLogprobs:
    """The log-probabilities of one text, part by part."""

    def __init__(self, served: ServedModel, visible_ids: Collection[int] = ()) -> None:
        self.served = served
        self.hidden = special_ids(served.tokenizer.target).keys() - set(visible_ids)
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.position = 0

    def part(self, ids: Sequence[int], entries: Sequence[TokenLogprob | None]) -> dict[str, Any]:
        """The lists of the next tokens. An entry is None if nothing precedes its token."""
        contents = token_text(self.served, ids)
        return {
            "tokens": [one.decode("utf-8", "replace") for one in contents],
            "token_logprobs": [one and one.logprob for one in entries],
            "top_logprobs": [one and self.top(one) for one in entries],
            "text_offset": [self.advance(*one) for one in zip(ids, contents, strict=True)],
            "bytes": [list(one) for one in contents],
        }

    def prompt(
        self, ids: Sequence[int], entries: Sequence[TokenLogprob | None], text: str
    ) -> dict[str, Any]:
        """The lists of a prompt that comes before the text. Some tokenizers put a space before a
        text, which its first token has and the text has not."""
        lists = self.part(ids, entries)
        surplus = self.position - len(text)
        self.position = len(text)
        lists["text_offset"] = [max(0, one - surplus) for one in lists["text_offset"]]
        return lists

    def advance(self, token: int, content: bytes) -> int:
        """The offset of a token; the next one follows it."""
        offset = self.position
        if token not in self.hidden:
            self.position += len(self.decoder.decode(content))
        return offset

    def top(self, entry: TokenLogprob) -> dict[str, float]:
        """The most likely tokens, and the token itself, as OpenAI does."""
        logprobs = {**dict(entry.top), entry.id: entry.logprob}
        names = token_text(self.served, list(logprobs))
        pairs = zip(names, logprobs.values(), strict=True)
        best: dict[str, float] = {}
        for name, logprob in pairs:  # parts of characters may have the same text
            text = name.decode("utf-8", "replace")
            best[text] = max(logprob, best.get(text, logprob))
        return best


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The lists of successive parts."""
    return {name: [one for part in parts for one in part[name]] for name in parts[0]}
