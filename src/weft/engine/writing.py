"""What a caller asks for (`Writing`), what comes back (`Update`), and the lines in between.

    Writing    prompt, source, sampling or beams, stops, grammar          frozen, the caller's
    Line       one sample on its way: its tokens, its text, its grammar, its drafts
    Update     what one step added to one sample

A line survives preemption: the scheduler drops pages, never what was written.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from weft.core.errors import UsageError
from weft.engine.beam import BeamConfig, Hypothesis
from weft.engine.drafts import Drafter
from weft.engine.grammar import Grammar, Matcher
from weft.engine.logprobs import TokenLogprob
from weft.engine.stops import Finish, IdStream, TextStream
from weft.sampling.logits_processors import SamplingRow
from weft.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True)
class Writing:
    """One request: continue a prompt, or write what belongs to a source."""

    prompt: tuple[int, ...]
    max_tokens: int
    source: tuple[int, ...] | None = None
    sampling: SamplingParams = GREEDY
    ends: frozenset[int] = frozenset()
    """Ids that end a text; they are not part of it."""
    stops: tuple[str, ...] = ()
    """Texts that end a text; they are not part of it."""
    grammar: Grammar | None = None
    n: int = 1
    """Samples; sample i draws with seed + i."""
    beam: BeamConfig | None = None
    """A beam search instead of sampling: greedy in its steps, one result at the end."""
    salt: str = ""
    """Requests with different salts share nothing in the cache."""

    def check_ids(self, vocab_size: int) -> None:
        """Refuse ids that the vocabulary does not have."""
        self.sampling.check_ids(vocab_size)
        if self.beam is not None:
            first = () if self.beam.first is None else (self.beam.first,)
            for name, ids in (("banned", self.beam.banned), ("first", first), ("ends", self.ends)):
                wrong = [index for index in ids if not 0 <= index < vocab_size]
                if wrong:
                    raise UsageError(
                        f"{name} of a search names id {wrong[0]}, but ids go from 0 to "
                        f"{vocab_size - 1}. Use ids of this model's vocabulary."
                    )


@dataclass(frozen=True)
class Update:
    """What one step added to one sample. The last one has `finish`."""

    request_id: str
    index: int = 0
    tokens: list[int] = field(default_factory=list)
    """New tokens, without the one that ended the text."""
    text: str = ""
    """New whole characters that no stop can claim."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish: Finish | None = None
    hypotheses: list[Hypothesis] = field(default_factory=list)
    """The result of a beam search, best first."""
    vectors_TD: Tensor | None = None
    """The result of an embedding."""
    error: str | None = None
    """Why this request could not go on; the others do."""


@dataclass
class Line:
    """One sample of a request while it is written."""

    writing: Writing
    stream: TextStream | IdStream
    matcher: Matcher | None = None
    drafter: Drafter | None = None
    index: int = 0
    output: list[int] = field(default_factory=list)

    def row(self, drafts: list[int], allowed_V: Tensor | None) -> SamplingRow:
        """What the choice behind `drafts` reads."""
        sampling = self.writing.sampling
        if self.index:
            sampling = sampling.model_copy(update={"seed": sampling.seed + self.index})
        output = [*self.output, *drafts]
        position = len(self.writing.prompt) + len(output)
        return SamplingRow(sampling, position, self.writing.prompt, output, allowed_V)

    def rows(self, drafts: list[int]) -> list[SamplingRow]:
        """A row for each draft and one behind them; fewer where a grammar rules out a draft."""
        if self.matcher is None:
            return [self.row(drafts[:i], None) for i in range(len(drafts) + 1)]
        masks = self.matcher.allowed_along(drafts)
        return [self.row(drafts[:i], allowed_V) for i, allowed_V in enumerate(masks)]

    def take(self, token: int) -> str:
        """Take in a chosen token; the text that may be shown now. `stream.finish` tells whether it
        was the last."""
        text = self.stream.feed(token)
        is_end = self.stream.finish is not None and self.stream.finish.reason == "end"
        if not is_end:
            self.output.append(token)
            if self.matcher is not None:
                self.matcher.advance(token)
        if self.stream.finish is None and len(self.output) == self.writing.max_tokens:
            text += self.stream.close("length")
        return text
