"""How a text is to be written: keywords -> `Options`. No model is needed, so that a wrong value is
refused before one is loaded.

    Options.of(max_tokens=50, n=2, stop=["\\n"], regex=r"\\d+", temperature=0.7)

Differs from SamplingParams, which says how one token is chosen: these are about the whole text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Unpack

from weft.core.errors import UsageError
from weft.engine.grammar import Grammar, GrammarVocabulary, make_grammar
from weft.engine.stops import check_stops
from weft.engine.writing import GREEDY
from weft.sampling.params import SamplingKeywords, SamplingParams
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_training import TokenizerConfig


class WritingKeywords(SamplingKeywords, total=False):
    """What can be asked of a text by keywords, besides its length."""

    stop: Sequence[str]
    """Texts that end it; they are not part of it."""
    json_schema: Mapping[str, Any] | None
    """The text is JSON that fits this schema."""
    regex: str | None
    """The text matches this expression from beginning to end (Rust's syntax)."""


@dataclass(frozen=True)
class Options:
    """All that a request is told besides what it goes on from. Stops and grammar are usable."""

    max_tokens: int | None = None
    """None: 128, as far as the model reaches."""
    n: int = 1
    """Answers to each prompt; answer i draws with seed + i."""
    sampling: SamplingParams = GREEDY
    stops: tuple[str, ...] = ()
    grammar: Grammar | None = None

    @classmethod
    def of(
        cls, max_tokens: int | None = None, n: int = 1, **keywords: Unpack[WritingKeywords]
    ) -> Options:
        """Options from keywords; a ConfigError or UsageError names one that cannot work."""
        values: dict[str, Any] = dict(keywords)
        stops = values.pop("stop", ())
        check_stops(stops)
        grammar = grammar_of(values.pop("json_schema", None), values.pop("regex", None))
        return cls(max_tokens, n, SamplingParams.from_dict(values), tuple(stops), grammar)


def drawing(
    num_best: int, beam: int, max_tokens: int | None, sampling: SamplingKeywords
) -> Options:
    """Options that draw translations. Their scores are made of log-probabilities."""
    if beam != 1:
        raise UsageError(
            f"beam is {beam}, but {', '.join(sampling)} asks for samples: a beam search draws "
            "nothing. Use beam 1 with them, or leave them out."
        )
    settings = SamplingParams.from_dict({**sampling, "logprobs": sampling.get("logprobs") or 0})
    return Options(max_tokens, num_best, settings)


def grammar_of(json_schema: Mapping[str, Any] | None, regex: str | None) -> Grammar | None:
    """The grammar of a schema or of an expression; None for neither."""
    if json_schema is not None and regex is not None:
        raise UsageError(
            "json_schema and regex are both given: a text keeps to one grammar. Choose one."
        )
    if json_schema is not None:
        schema = dict(json_schema) if isinstance(json_schema, Mapping) else json_schema
        return checked(make_grammar("json_schema", schema))
    return None if regex is None else checked(make_grammar("regex", regex))


def checked(grammar: Grammar) -> Grammar:
    """The grammar, unless no tokens whatever could keep to it."""
    all_bytes().matcher(grammar)
    return grammar


@cache
def all_bytes() -> GrammarVocabulary:
    """A vocabulary that spells every text: what fails on it fails on every model's."""
    return GrammarVocabulary(Tokenizer.train(["any text"], TokenizerConfig(kind="byte")), ())
