r"""Constrained decoding: a schema, a regular expression, texts or a grammar -> allowed tokens.

    vocabulary = GrammarVocabulary(tokenizer, end_ids, vocab_size)                   once per model
    matcher = vocabulary.matcher(make_grammar("regex", r"\d{4}-\d{2}-\d{2}"))     once per sample
    matcher.allowed()        mask for the logits
    matcher.advance(id)      the chosen token

The matching is done by `llguidance` (an Earley parser over derivatives of regular expressions,
applied to a trie of all tokens). Differs from its default in two ways: where the grammar allows
only one text, the model still chooses the tokenization, because not every tokenizer can tell which
one it would have used; and white space in JSON is bounded, because small models tend to repeat it
without end.
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
from llguidance.gbnf_to_lark import any_to_lark
from torch import Tensor

from weft.core.errors import UsageError, shortened, shown
from weft.core.registry import pick
from weft.engine.detokenizer import special_ids
from weft.engine.grammar_limits import (
    check_bytes,
    check_lark,
    check_regex,
    check_schema,
    check_text,
    probe,
)
from weft.text.tokenizer import Tokenizer

OPTIONS = '%llguidance {"no_forcing": true}\n'
WHITE_SPACE = r"[\x20\x0A\x0D\x09]{1,20}"
CONJUNCTION_ADVICE = (
    ", because parts of the JSON schema must all hold (allOf, or anyOf and $ref beside other "
    "keywords). Use a simpler schema."
)
DEAD_END = "NoExtensionBias"
"""Prefix of llguidance's message when no token can follow."""
PROBES = 200
"""Tokens tried when searching for a matching text with a vocabulary that lacks some bytes."""


@dataclass(frozen=True)
class Grammar:
    """A grammar in llguidance's notation (Lark), independent of a tokenizer."""

    lark: str


def json_schema(schema: dict[str, Any]) -> str:
    """JSON texts that are valid under the schema."""
    if not isinstance(schema, dict):
        raise UsageError(
            f"the JSON schema is {type(schema).__name__} {str(schema)[:40]!r}: it must be an "
            'object. Use a dict such as {"type": "object"}.'
        )
    is_conjunction = check_schema(schema)
    rules = "start: " + json_lark(schema)
    if is_conjunction:
        probe(OPTIONS + rules, CONJUNCTION_ADVICE)
    return rules


def json_lark(schema: dict[str, Any]) -> str:
    """A schema as part of a rule. Its limits are not checked."""
    return "%json " + dumps({"x-guidance": {"whitespace_pattern": WHITE_SPACE}, **schema})


def json_object(_: object = None) -> str:
    """Any JSON object."""
    return json_schema({"type": "object"})


def regex(pattern: str) -> str:
    r"""Texts that match the expression as a whole. Rust's syntax: no look-around, no
    back-references; \d is 0 to 9, as in JavaScript."""
    if not isinstance(pattern, str):
        raise UsageError(f"the regular expression is {pattern!r}: it must be a str. Use a pattern.")
    check_regex(pattern)
    if (len(pattern) - len(pattern.rstrip("\\"))) % 2:
        raise UsageError(
            f"the regular expression {pattern!r} ends in a single backslash. Write two of them."
        )
    return f"start: /{regex_to_lark(pattern, 'd')}/"


def choice(texts: Sequence[str]) -> str:
    """One of several texts."""
    if isinstance(texts, str) or not texts or not all(isinstance(one, str) for one in texts):
        raise UsageError(f"choice is {shown(texts)}: it must be a list of texts. Use [text, ...].")
    for text in texts:
        check_text(text, "a text of choice")
    check_bytes(sum(len(text.encode()) for text in texts), "choice")
    if "" in texts:
        raise UsageError("a text of choice is '': it must have at least one character. Remove it.")
    return "start: CHOICE\nCHOICE: " + " | ".join(json.dumps(text) for text in texts)


def lark(source: str) -> str:
    """Texts of a grammar in Lark with the rule `start`, in llguidance's dialect, or in GBNF with
    the rule `root`."""
    if not isinstance(source, str):
        raise UsageError(f"the grammar is {shown(source)}: it must be a str. Use Lark or GBNF.")
    check_lark(source)
    try:
        rules = any_to_lark(source) + "\n" + OPTIONS
    except Exception as error:  # its parser raises Exception itself
        raise UsageError(
            f"the grammar is neither Lark with a rule `start:` nor GBNF with a rule `root ::=`: "
            f"{shortened(error)}. Correct it."
        ) from None
    # with another vocabulary, one that was rejected here could exceed the limits
    reason = probe(OPTIONS + rules, ". Use a simpler one.")
    if reason:
        raise UsageError(f"the grammar cannot be compiled: {one_line(reason)}. Correct it.")
    return rules


GRAMMARS: dict[str, Callable[[Any], str]] = {
    "json_schema": json_schema,
    "json_object": json_object,
    "regex": regex,
    "choice": choice,
    "lark": lark,
}


def make_grammar(kind: str, source: Any = None) -> Grammar:
    """Build a grammar: `source`: dict for json_schema, nothing for json_object, str for regex and
    lark, list for choice."""
    return Grammar(OPTIONS + pick(GRAMMARS, kind, "kind of grammar")(source))


def dumps(schema: dict[str, Any]) -> str:
    try:
        return json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise UsageError(f"the JSON schema is not JSON: {error}. Use plain values.") from None


class GrammarVocabulary:
    """The tokens of a model as llguidance reads them. End tokens are an argument because chat
    models have others than their tokenizer."""

    def __init__(
        self, tokenizer: Tokenizer, end_ids: Collection[int], vocab_size: int | None = None
    ) -> None:
        target = tokenizer.target
        self.size = vocab_size or target.vocab_size
        self.end_ids = frozenset(end_ids)
        tokens = target.token_bytes(range(min(target.vocab_size, self.size)))
        self.has_all_bytes = {bytes([byte]) for byte in range(256)} <= set(tokens)
        self.tokens = make_tokens(tokens, {*special_ids(target), *self.end_ids}, self.size)
        self.compiled = lru_cache(maxsize=64)(self.compile)

    def matcher(self, grammar: Grammar) -> Matcher:
        """A new matcher. Raises a UsageError for a grammar that cannot be compiled or that no text
        of this vocabulary matches."""
        return Matcher(self, self.compiled(grammar).deep_copy())

    def compile(self, grammar: Grammar) -> LLMatcher:
        state = LLMatcher(self.tokens, grammar.lark, log_level=0)
        if state.is_error():
            raise UsageError(
                f"the grammar cannot be compiled: {one_line(state.get_error())}. Change the schema "
                "or the grammar."
            )
        if not is_satisfiable(Matcher(self, state.deep_copy()), self.has_all_bytes):
            raise UsageError(
                "the grammar matches no text that can be written with this model's tokens. "
                "Change the schema or the regular expression."
            )
        return state


class GrammarTokens:
    """The tokenizer interface that LLTokenizer expects."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: list[bytes], special: list[int], end: int) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special, end

    def __call__(self, text: str) -> list[int]:
        raise AssertionError(f"llguidance tokenizes {text!r}, although no_forcing is set")


def make_tokens(tokens: list[bytes], special: Collection[int], size: int) -> LLTokenizer:
    """`size` tokens, of which the special ones and those beyond the tokenizer have no text. An end
    token for llguidance is added after them: the real end tokens are handled by Matcher."""
    padded = [*tokens, *[b""] * (size - len(tokens)), b"<end>"]
    textless = [index for index in sorted(special) if index < size]
    return LLTokenizer(GrammarTokens(padded, [*textless, size], size))  # type: ignore[arg-type]


class Matcher:
    """Grammar state of one sample. It depends only on the tokens so far, so it can be kept through
    a preemption or rebuilt by advancing through the output."""

    def __init__(self, vocabulary: GrammarVocabulary, state: LLMatcher) -> None:
        self.vocabulary, self.state = vocabulary, state
        self.is_ended = False

    @property
    def is_accepting(self) -> bool:
        """Whether the text so far matches: only then is an end token allowed."""
        return self.state.is_accepting()

    @property
    def is_finished(self) -> bool:
        """Whether only an end token can follow, or the sample has ended."""
        return self.is_ended or (self.is_accepting and self.state.is_stopped())

    def allowed(self) -> Tensor:
        """allowed_V: True for the ids that may come next. All False if no token fits, which happens
        only for vocabularies without all single bytes."""
        assert not self.is_ended, "no token may follow an end token"
        # a state without allowed tokens becomes unusable: where that can happen, use a copy
        state = self.state if self.vocabulary.has_all_bytes else self.state.deep_copy()
        bits = np.frombuffer(state.compute_bitmask(), dtype=np.uint8)
        if not state.get_error().startswith(DEAD_END):
            check(state)
        size = self.vocabulary.size
        allowed_V = torch.from_numpy(np.unpackbits(bits, count=size, bitorder="little").view(bool))
        allowed_V[list(self.vocabulary.end_ids)] = self.is_accepting
        return allowed_V

    def advance(self, token: int) -> None:
        """Append an allowed token."""
        if token in self.vocabulary.end_ids:
            assert self.is_accepting, f"end token {token} before the grammar allows it"
            self.is_ended = True
            return
        assert self.state.validate_tokens([token]) == 1, f"token {token} is not allowed here"
        self.state.consume_token(token)
        check(self.state)

    def rollback(self, count: int) -> None:
        """Remove the last `count` tokens."""
        if self.is_ended and count > 0:
            self.is_ended, count = False, count - 1
        if count > 0:
            self.state.rollback(count)
            check(self.state)

    def allowed_along(self, drafts: Sequence[int]) -> list[Tensor]:
        """The masks before each draft and after the last. Shorter if a draft is not allowed or is
        an end token: the drafts after it cannot be accepted. The state does not change."""
        masks = [self.allowed()]
        for token in drafts:
            if token in self.vocabulary.end_ids or not masks[-1][token]:
                break
            self.advance(token)
            masks.append(self.allowed())
        self.rollback(len(masks) - 1)
        return masks


def check(state: LLMatcher) -> None:
    """Raise a UsageError if llguidance failed: a grammar that is too large fails only in use."""
    if state.is_error():
        reason = one_line(state.get_error())
        raise UsageError(f"the grammar failed during generation: {reason}. Use a simpler one.")


def is_satisfiable(matcher: Matcher, has_all_bytes: bool) -> bool:
    """Whether some text matches, by depth-first search; True if PROBES tokens do not decide it.
    With all single bytes in the vocabulary one probe is enough."""
    paths = [choices(matcher)]
    for _ in range(1 if has_all_bytes else PROBES):
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
    """llguidance's message in one line, without location, parser state and source excerpt."""
    text = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", reason)
    lines = text.split("<state>")[0].split("<backtrace>")[0].splitlines()
    kept = [line.strip() for line in lines if line.strip(" ^|") and not re.match(r" *\d+ \|", line)]
    return " ".join(kept)[:200].rstrip(".")
