"""Log-probabilities of tokens by the part of an answer that they belong to: text, or reasoning.

    PendingLogprobs    entries of tokens, taken when the text that they belong to is returned
    ReasoningFilter    the events of a choice without its reasoning

The parser holds text back that may be the beginning of a tag, so the entries of an engine step may
belong to the text of a later one.
"""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Collection, Sequence
from dataclasses import replace

from weft.engine.detokenizer import special_ids
from weft.engine.logprobs import TokenLogprob
from weft.serve.generation import ChoiceEvent
from weft.serve.openai_fields import token_text
from weft.serve.output_parser import Delta, ReasoningDelta, TextDelta
from weft.serve.served_model import ServedModel


class PendingLogprobs:
    """Log-probabilities of tokens whose text has not been returned yet: the parser holds text back
    that may be the beginning of a tag."""

    def __init__(self, served: ServedModel, visible_ids: Collection[int]) -> None:
        self.served = served
        self.hidden = special_ids(served.tokenizer).keys() - visible_ids
        self.entries: list[TokenLogprob] = []

    def take(self, text: str) -> Sequence[TokenLogprob]:
        """The entries of a text. Those before it belong to tags and are dropped; tokens without a
        character of their own (parts of characters, hidden special tokens) belong to the next."""
        if not self.entries:
            return []
        decoder, shown, ends = getincrementaldecoder("utf-8")("replace"), "", []
        ids = [entry.id for entry in self.entries]
        for token, part in zip(ids, token_text(self.served, ids), strict=True):
            shown += "" if token in self.hidden else decoder.decode(part)
            ends.append(len(shown))
        start = shown.rfind(text)
        if start < 0:  # the text ends within a character
            return self.take_all()
        starts = [0, *ends[:-1]]
        first = next(place for place, end in enumerate(ends) if end > start)
        while first and starts[first - 1] == ends[first - 1] >= start:
            first -= 1
        last = next(place for place, end in enumerate(ends) if end >= start + len(text)) + 1
        taken, self.entries = self.entries[first:last], self.entries[last:]
        return taken

    def take_all(self) -> Sequence[TokenLogprob]:
        """The entries that are left."""
        taken, self.entries = self.entries, []
        return taken


class ReasoningFilter:
    """Removes the reasoning of one choice: its deltas, and the entries of its tokens."""

    def __init__(self, served: ServedModel, visible_ids: Collection[int]) -> None:
        self.pending = PendingLogprobs(served, visible_ids)

    def without_reasoning(self, event: ChoiceEvent) -> ChoiceEvent:
        """An event without reasoning; its tokens are those that have an entry."""
        deltas: list[Delta] = [one for one in event.deltas if not isinstance(one, ReasoningDelta)]
        self.pending.entries += event.logprobs[: len(event.tokens)]
        entries: Sequence[TokenLogprob] = []
        text = "".join(one.text for one in deltas if isinstance(one, TextDelta))
        if event.is_reasoning and not text:
            self.pending.entries.clear()
        elif event.is_reasoning:  # the end of the reasoning and the beginning of the text
            entries = self.pending.take(text)
        elif deltas or event.finish is not None:
            entries = self.pending.take_all()
        tokens = [one.id for one in entries]
        return replace(event, deltas=deltas, tokens=tokens, logprobs=list(entries))
