r"""Grammars: a JSON schema, a regular expression or any JSON object -> which tokens may come next.

    vocabulary = GrammarVocabulary(tokenizer, end_ids, vocab_size)      once for a model
    matcher = vocabulary.matcher(make_grammar("regex", r"\d{4}-\d{2}-\d{2}"))     for each request
    matcher.allowed()        a mask for the logits
    matcher.advance(id)      what was chosen

The work is done by `llguidance` (an Earley parser over derivatives of regular expressions, run down
a tree of all tokens). Differs from its default: where the grammar leaves only one text, the model
still chooses how it is cut into tokens, because not every tokenizer can say which cut it would have
made; and white space in JSON is bounded, because small models lose themselves in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer, regex_to_lark
from torch import Tensor

from weft.core.choices import pick
from weft.core.errors import UsageError
from weft.engine.stops import special_ids
from weft.text.tokenizer import Tokenizer

HEAD = '%llguidance {"no_forcing": true}\nstart: '
WHITE_SPACE = r"[\x20\x0A\x0D\x09]{1,20}"
DEAD_END = "NoExtensionBias"
"""How llguidance reports that no token can follow."""
PROBES = 200
"""Tokens that are tried to find one text that fits, where the tokenizer cannot spell every byte."""


@dataclass(frozen=True)
class Grammar:
    """A language of texts, in llguidance's own notation (Lark). Needs no tokenizer yet."""

    lark: str


def json_schema(schema: dict[str, Any]) -> str:
    """Texts that are JSON and fit the schema."""
    if not isinstance(schema, dict):
        raise UsageError(
            f"the JSON schema is {type(schema).__name__} {str(schema)[:40]!r}: it must be an "
            'object. Give a dict such as {"type": "object"}.'
        )
    return "%json " + dumps({"x-guidance": {"whitespace_pattern": WHITE_SPACE}, **schema})


def json_object(_: object = None) -> str:
    """Any JSON object."""
    return json_schema({"type": "object"})


def regex(pattern: str) -> str:
    r"""Texts that the expression matches from beginning to end. Rust's syntax: no look-around, no
    references back; \d is 0 to 9, as in JavaScript."""
    if not isinstance(pattern, str):
        raise UsageError(
            f"the regular expression is {pattern!r}: it must be a str. Give a pattern."
        )
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise UsageError(
            f"the regular expression {pattern!r} ends in a lone backslash. Write two of them."
        )
    return f"/{regex_to_lark(pattern, 'd')}/"


GRAMMARS: dict[str, Callable[[Any], str]] = {
    "json_schema": json_schema,
    "json_object": json_object,
    "regex": regex,
}


def make_grammar(kind: str, source: Any = None) -> Grammar:
    """The grammar of a kind: a dict for json_schema, nothing for json_object, a str for regex."""
    return Grammar(HEAD + pick(GRAMMARS, kind, "kind of grammar")(source))


def dumps(schema: dict[str, Any]) -> str:
    try:
        return json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the JSON schema is not JSON: {error}. Use plain values.") from None


class GrammarVocabulary:
    """The tokens of a model as llguidance reads them, made once. End tokens are told from outside:
    a chat model has other ones than its tokenizer knows."""

    def __init__(
        self, tokenizer: Tokenizer, end_ids: Collection[int], vocab_size: int | None = None
    ) -> None:
        writer = tokenizer.target
        self.size = vocab_size or writer.vocab_size
        self.end_ids = frozenset(end_ids)
        tokens = writer.token_bytes(range(min(writer.vocab_size, self.size)))
        self.spells_all = {bytes([byte]) for byte in range(256)} <= set(tokens)
        self.tokens = describe(tokens, {*special_ids(writer), *self.end_ids}, self.size)
        self.compiled = lru_cache(maxsize=64)(self.compile)

    def matcher(self, grammar: Grammar) -> Matcher:
        """A matcher at the beginning, its state its own. A grammar that cannot be compiled, or that
        no text of this vocabulary meets, is a UsageError."""
        return Matcher(self, self.compiled(grammar).deep_copy())

    def compile(self, grammar: Grammar) -> LLMatcher:
        state = LLMatcher(self.tokens, grammar.lark, log_level=0)
        if state.is_error():
            raise UsageError(
                f"the grammar cannot be used: {one_line(state.get_error())}. Change the schema or "
                "the regular expression."
            )
        if not can_be_met(Matcher(self, state.deep_copy()), self.spells_all):
            raise UsageError(
                "the grammar cannot be met: no text that this model's tokens can spell fits it. "
                "Change the schema or the regular expression."
            )
        return state


class Description:
    """What LLTokenizer asks of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: list[bytes], special: list[int], end: int) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special, end

    def __call__(self, text: str) -> list[int]:
        raise AssertionError(f"llguidance asked to cut {text!r}, which no_forcing rules out")


def describe(tokens: list[bytes], silent: Collection[int], size: int) -> LLTokenizer:
    """`size` tokens, of which the silent ones and those without a name are no text. The end is one
    more behind them: the real ends are dealt with here, not there."""
    padded = [*tokens, *[b""] * (size - len(tokens)), b"<end>"]
    special = [index for index in sorted(silent) if index < size]
    return LLTokenizer(Description(padded, [*special, size], size))  # type: ignore[arg-type]


class Matcher:
    """Where one request stands in its grammar. The same tokens lead to the same place, so that it
    can be kept through a preemption or made anew by advancing through the output."""

    def __init__(self, vocabulary: GrammarVocabulary, state: LLMatcher) -> None:
        self.vocabulary, self.state = vocabulary, state
        self.is_ended = False

    @property
    def is_accepting(self) -> bool:
        """Whether the text so far is whole: only then may an end token come."""
        return self.state.is_accepting()

    @property
    def is_finished(self) -> bool:
        """Whether nothing but an end can follow, or has."""
        return self.is_ended or (self.is_accepting and self.state.is_stopped())

    def allowed(self) -> Tensor:
        """allowed_V: True for the ids that may come next. All False if the tokens of the model
        cannot go on, which happens only where they do not spell every byte."""
        assert not self.is_ended, "nothing may follow an end token"
        # a state that finds no way on is lost: where that can happen, a copy is asked
        state = self.state if self.vocabulary.spells_all else self.state.deep_copy()
        bits = np.frombuffer(state.compute_bitmask(), dtype=np.uint8)
        if not state.get_error().startswith(DEAD_END):
            check(state)
        size = self.vocabulary.size
        allowed_V = torch.from_numpy(np.unpackbits(bits, count=size, bitorder="little").view(bool))
        allowed_V[list(self.vocabulary.end_ids)] = self.is_accepting
        return allowed_V

    def advance(self, token: int) -> None:
        """Take in a token that was allowed."""
        if token in self.vocabulary.end_ids:
            assert self.is_accepting, f"end token {token} before the grammar allows it"
            self.is_ended = True
            return
        assert self.state.validate_tokens([token]) == 1, f"token {token} is not allowed here"
        self.state.consume_token(token)
        check(self.state)

    def rollback(self, count: int) -> None:
        """Forget the last `count` tokens."""
        if self.is_ended and count > 0:
            self.is_ended, count = False, count - 1
        if count > 0:
            self.state.rollback(count)
            check(self.state)

    def allowed_along(self, drafts: Sequence[int]) -> list[Tensor]:
        """The masks before each draft and behind the last. Shorter where a draft is not allowed or
        an end: what stands behind it can never be accepted. The matcher stays where it is."""
        masks = [self.allowed()]
        for token in drafts:
            if token in self.vocabulary.end_ids or not masks[-1][token]:
                break
            self.advance(token)
            masks.append(self.allowed())
        self.rollback(len(masks) - 1)
        return masks


def check(state: LLMatcher) -> None:
    """llguidance reports by its state: too large a grammar shows only while it is used."""
    if state.is_error():
        reason = one_line(state.get_error())
        raise UsageError(f"the grammar cannot be followed: {reason}. Use a simpler one.")


def can_be_met(matcher: Matcher, spells_all: bool) -> bool:
    """Whether some text fits, searched depth first; yes where the search is too long. A vocabulary
    with every byte can write whatever the grammar can, if that is anything."""
    paths = [choices(matcher)]
    for _ in range(1 if spells_all else PROBES):
        if matcher.is_accepting:
            return True
        token = next(paths[-1], None)
        if token is not None:
            matcher.advance(token)
            paths.append(choices(matcher))
        elif len(paths) > 1:
            paths.pop()
            matcher.rollback(1)
        else:
            return False
    return True


def choices(matcher: Matcher) -> Iterator[int]:
    return iter(matcher.allowed().nonzero().squeeze(-1).tolist())


def one_line(reason: str) -> str:
    """llguidance's message without where it is in our text, its state and its drawing."""
    text = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", reason)
    lines = text.split("<state>")[0].split("<backtrace>")[0].splitlines()
    kept = [line.strip() for line in lines if line.strip(" ^|") and not re.match(r" *\d+ \|", line)]
    return " ".join(kept)[:200].rstrip(".")
