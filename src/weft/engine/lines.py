"""A Writing -> its lines: one a sample, each with the stream, grammar and drafts that it needs."""

from __future__ import annotations

from weft.engine.drafts import Drafter
from weft.engine.grammar import GrammarVocabulary
from weft.engine.stops import IdStream, TextStream
from weft.engine.writing import Line, Writing
from weft.text.tokenizer import Tokenizer


class LineMaker:
    """Makes lines for one model. What a grammar reads of its vocabulary is made when first
    needed."""

    def __init__(self, tokenizer: Tokenizer | None, vocab_size: int, speculate: bool) -> None:
        self.tokenizer, self.vocab_size, self.speculate = tokenizer, vocab_size, speculate
        self.vocabularies: dict[frozenset[int], GrammarVocabulary] = {}

    def lines(self, writing: Writing) -> dict[int, Line]:
        """By number of the sample."""
        return {index: self.line(writing, index) for index in range(writing.n)}

    def line(self, writing: Writing, index: int) -> Line:
        line = Line(writing, self.stream(writing), index=index)
        if writing.grammar is not None:
            line.matcher = self.vocabulary(writing.ends).matcher(writing.grammar)
        if self.speculate:
            line.drafter = Drafter(writing.prompt)
        return line

    def stream(self, writing: Writing) -> TextStream | IdStream:
        if self.tokenizer is None:
            assert not writing.stops, "stops are texts, and this engine has no tokenizer"
            return IdStream(writing.ends)
        is_continuation = writing.source is None
        return TextStream(self.tokenizer, writing.stops, writing.ends, is_continuation)

    def vocabulary(self, ends: frozenset[int]) -> GrammarVocabulary:
        """The model's tokens as a grammar reads them."""
        if ends not in self.vocabularies:
            assert self.tokenizer is not None, "a grammar needs the tokenizer's texts"
            self.vocabularies[ends] = GrammarVocabulary(self.tokenizer, ends, self.vocab_size)
        return self.vocabularies[ends]
