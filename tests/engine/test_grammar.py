"""Grammars: whatever the logits say, the text fits; and the state is the request's own."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.engine.families import WRITERS, family
from tests.engine.tiny import tiny
from tests.text.material import trained
from weft.core.errors import ConfigError, UsageError
from weft.core.forward_batch import ForwardBatch
from weft.engine.grammar import GrammarVocabulary, Matcher, make_grammar, one_line
from weft.sampling.logits_processors import SamplingRow
from weft.sampling.params import SamplingParams
from weft.sampling.sampler import sample
from weft.text.tokenizer import Tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b c", "\u00e9"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
NESTED = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["next"],
    "additionalProperties": False,
}
CHOICE = {"anyOf": [{"type": "boolean"}, {"const": "maybe"}, {"type": "number", "maximum": 5}]}
DATE = r"\d{4}-(0[1-9]|1[0-2])-[0-3]\d"
MAIL = r"[a-z]{1,8}@[a-z]{1,8}\.(com|org)"

TEXTS = ["a", "ab", 'x"\n\\', "\u00e9/"]
SUM = 'start: term ("+" term){0,2}\nterm: /[0-9]/ | "(" start ")" // a comment (((\n'
GBNF = 'root ::= [0-9]+ x\nx ::= "b" | "cb" | "ccb"\n'


def is_person(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and {"name", "age"} <= set(value) <= {"name", "age", "tags"}
        and isinstance(value["name"], str)
        and len(value["name"]) <= 6
        and type(value["age"]) is int
        and 0 <= value["age"] <= 150
        and len(value.get("tags", [])) <= 3
        and set(value.get("tags", [])) <= {"a", "b c", "\u00e9"}
    )


def is_nested(value: Any) -> bool:
    return value is None or (set(value) == {"next"} and is_nested(value["next"]))


def is_choice(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, bool) or value == "maybe" or (is_number and value <= 5)


def parsed(check: Callable[[Any], bool]) -> Callable[[str], bool]:
    return lambda text: check(json.loads(text))


CASES: dict[str, tuple[str, Any, Callable[[str], bool]]] = {
    "person": ("json_schema", PERSON, parsed(is_person)),
    "nested": ("json_schema", NESTED, parsed(lambda value: value is not None and is_nested(value))),
    "choice": ("json_schema", CHOICE, parsed(is_choice)),
    "object": ("json_object", None, parsed(lambda value: isinstance(value, dict))),
    "date": ("regex", DATE, lambda text: re.fullmatch(DATE, text) is not None),
    "mail": ("regex", MAIL, lambda text: re.fullmatch(MAIL, text) is not None),
    "texts": ("choice", ["a", "ab", 'x"\n\\', "\u00e9/"], lambda text: text in TEXTS),
    "sum": (
        "lark",
        SUM,
        lambda text: re.fullmatch(r"\d(\+\d|\+\(.*\))*|\(.*\).*", text) is not None,
    ),
    "GBNF": ("lark", GBNF, lambda text: re.fullmatch(r"[0-9]+(b|cb|ccb)", text) is not None),
    "lines": ("regex", "(a/b\n){1,3}", lambda text: text in ("a/b\n" * n for n in (1, 2, 3))),
}

CLOSING = {'"', "}", "]", '"}', '":'}


@cache
def vocabulary_of(kind: str) -> GrammarVocabulary:
    """Of one of our kinds or of a family; the model has five ids more than the tokenizer."""
    tokenizer = tokenizer_of(kind)
    end = tokenizer.target.end_id
    return GrammarVocabulary(tokenizer, [] if end is None else [end], tokenizer.vocab_size + 5)


def tokenizer_of(kind: str) -> Tokenizer:
    return trained(kind) if kind in ("bpe", "byte", "character", "unigram") else family(kind)


@cache
def bias_of(kind: str) -> dict[int, float]:
    """Random logits rarely close what they have opened; these tokens do it more often."""
    writer = tokenizer_of(kind).target
    result = writer.token_bytes(range(writer.vocab_size))
    return {index: 4.0 for index, text in enumerate(result) if text.decode("latin-1") in CLOSING}


def write(
    matcher: Matcher, kind: str, config: SamplingParams, logits: Callable[[list[int]], Tensor]
) -> tuple[str, list[int]]:
    """The text that a model with these logits writes, and its ids."""
    ends, ids = matcher.vocabulary.end_ids, []
    while not matcher.is_finished and len(ids) < 400:
        row = SamplingRow(config, len(ids), (), ids, matcher.allowed())
        token = int(sample(logits(ids)[None], [row]))
        matcher.advance(token)
        if token not in ends:
            ids.append(token)
    writer = tokenizer_of(kind).target
    return b"".join(writer.token_bytes(ids)).decode(), ids


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["bpe", "byte", "llama", "smollm json"])
def test_random_logits_write_only_what_fits(case: str, kind: str) -> None:
    grammar_kind, source, fits = CASES[case]
    vocabulary, grammar = vocabulary_of(kind), make_grammar(grammar_kind, source)
    generator, texts = torch.Generator().manual_seed(7), set()
    for seed in range(10):
        config = SamplingParams(seed=seed, logit_bias=bias_of(kind))
        matcher = vocabulary.matcher(grammar)
        text, _ = write(
            matcher, kind, config, lambda _: torch.randn(vocabulary.size, generator=generator) * 2
        )
        assert matcher.is_finished, text
        assert fits(text), text
        texts.add(text)
    assert len(texts) > 2


@pytest.mark.parametrize("kind", sorted({*WRITERS, "character", "unigram"}))
def test_every_tokenizer_can_be_held_to_a_grammar(kind: str) -> None:
    vocabulary, grammar = vocabulary_of(kind), make_grammar("regex", "(the|quick|dog)( x = 1)?")
    for seed in range(4):
        generator, matcher = torch.Generator().manual_seed(seed), vocabulary.matcher(grammar)
        config = SamplingParams(seed=seed, temperature=0.5)
        text, _ = write(
            matcher, kind, config, lambda _, g=generator: torch.randn(vocabulary.size, generator=g)
        )
        assert re.fullmatch("(the|quick|dog)( x = 1)?", text), text


@torch.no_grad()
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("case", ["date", "mail", "lines"])
def test_a_real_model_writes_what_fits(case: str, temperature: float) -> None:
    checkpoint, (kind, source, fits) = tiny("decoder", max_len=60), CASES[case]
    model, tokenizer = checkpoint.model, checkpoint.tokenizer
    vocabulary = GrammarVocabulary(tokenizer, [tokenizer.id_of("end")])
    matcher, prompt = vocabulary.matcher(make_grammar(kind, source)), tokenizer.encode("the")[:-1]
    ids: list[int] = []
    while not matcher.is_finished:
        logits_V = model(ForwardBatch(torch.tensor([[*prompt, *ids]])))[0, -1]
        config = SamplingParams(temperature=temperature)
        row = SamplingRow(config, len(prompt) + len(ids), prompt, ids, matcher.allowed())
        token = int(sample(logits_V[None], [row]))
        matcher.advance(token)
        ids += [] if token in vocabulary.end_ids else [token]
    assert fits(b"".join(tokenizer.token_bytes(ids)).decode())


def test_the_mask_is_every_token_that_keeps_a_fit_possible() -> None:
    words, tokenizer = ["the cat", "the mat", "a cat sat"], trained("bpe")
    vocabulary = GrammarVocabulary(tokenizer, [tokenizer.id_of("end")])
    matcher, texts = vocabulary.matcher(make_grammar("regex", "|".join(words))), b""
    contents, rng = tokenizer.token_bytes(range(tokenizer.vocab_size)), random.Random(3)
    while not matcher.is_finished:
        starts = [texts + content for content in contents]
        expected = [
            any(word.encode().startswith(start) for word in words) and index > 4
            for index, start in enumerate(starts)
        ]
        expected[tokenizer.id_of("end")] = texts.decode() in words
        assert matcher.allowed().tolist() == expected
        token = rng.choice([index for index, is_allowed in enumerate(expected) if is_allowed])
        matcher.advance(token)
        texts += contents[token]


def test_an_end_may_come_only_when_the_text_is_whole() -> None:
    tokenizer = trained("byte")
    ends = [tokenizer.id_of("end"), tokenizer.id_of("pad")]
    matcher = GrammarVocabulary(tokenizer, ends).matcher(make_grammar("regex", "ab*"))
    a, b = (tokenizer.encode(letter, add_special=False)[0] for letter in "ab")
    assert not matcher.allowed()[ends].any() and not matcher.is_accepting
    with pytest.raises(AssertionError, match="before the grammar allows it"):
        matcher.advance(ends[0])
    with pytest.raises(AssertionError, match="is not allowed here"):
        matcher.advance(b)
    matcher.advance(a)
    assert matcher.allowed().nonzero().flatten().tolist() == sorted([*ends, b])
    assert matcher.is_accepting and not matcher.is_finished
    matcher.advance(ends[1])
    assert matcher.is_finished
    with pytest.raises(AssertionError, match="no token may follow an end"):
        matcher.allowed()
    matcher.rollback(1)
    assert not matcher.is_finished and matcher.allowed()[b]
    matcher.rollback(1)
    assert matcher.allowed().nonzero().flatten().tolist() == [a]


def test_a_model_without_end_tokens_is_finished_by_the_grammar() -> None:
    vocabulary = GrammarVocabulary(trained("byte"), [])
    matcher = vocabulary.matcher(make_grammar("regex", "ab"))
    for token in trained("byte").encode("ab", add_special=False):
        matcher.advance(token)
    assert matcher.is_finished and not matcher.allowed().any()


def test_states_are_apart_and_replaying_the_tokens_gives_the_same_masks() -> None:
    vocabulary, grammar = vocabulary_of("bpe"), make_grammar("json_schema", PERSON)
    first, generator = vocabulary.matcher(grammar), torch.Generator().manual_seed(1)
    other = vocabulary.matcher(grammar)
    start = other.allowed()
    config = SamplingParams(seed=3, logit_bias=bias_of("bpe"))
    _, ids = write(
        first, "bpe", config, lambda _: torch.randn(vocabulary.size, generator=generator)
    )
    assert torch.equal(other.allowed(), start), "another request moved this one's state"
    kept = vocabulary.matcher(grammar)
    for place, token in enumerate(ids):
        again = vocabulary.matcher(grammar)
        for earlier in ids[:place]:
            again.advance(earlier)
        assert torch.equal(again.allowed(), kept.allowed())
        kept.advance(token)


def test_masks_along_drafts_leave_the_matcher_where_it_was() -> None:
    vocabulary, tokenizer = vocabulary_of("byte"), trained("byte")
    grammar = make_grammar("regex", "ab(cd)?")
    end = tokenizer.id_of("end")
    a, b, c, d = tokenizer.encode("abcd", add_special=False)
    matcher = vocabulary.matcher(grammar)
    matcher.advance(a)
    before = matcher.allowed()
    assert len(matcher.allowed_along([])) == 1
    for drafts, count in (([b, c, d], 4), ([b, d, c], 2), ([c], 1), ([b, end, c], 2)):
        masks = matcher.allowed_along(drafts)
        assert len(masks) == count and torch.equal(matcher.allowed(), before)
        walker = vocabulary.matcher(grammar)
        for token, mask in zip([a, *drafts], masks, strict=False):
            walker.advance(token)
            assert torch.equal(walker.allowed(), mask)


def test_special_tokens_are_never_text() -> None:
    tokenizer = trained("bpe")
    matcher = GrammarVocabulary(tokenizer, []).matcher(make_grammar("regex", "(?s:.*)"))
    special = [tokenizer.id_of(role) for role in ("pad", "begin", "end", "unknown", "mask")]
    assert not matcher.allowed()[special].any()
    assert matcher.allowed().sum() > 200


@pytest.mark.parametrize(
    ("kind", "source", "message"),
    [
        ("regex", "(", "cannot be compiled: .*unclosed group"),
        ("regex", "(?=a)b", "cannot be compiled: .*look-around"),
        ("regex", "a\\", "ends in a single backslash"),
        ("regex", 7, "the regular expression is 7: it must be a str"),
        ("regex", r"[^\s\S]", "the grammar matches no text"),
        ("json_schema", {"type": "strin"}, "cannot be compiled: Invalid type: strin"),
        ("json_schema", {"not": {}}, "cannot be compiled: .*not"),
        ("json_schema", {"type": "string", "minLength": 5, "maxLength": 2}, "minLength .5. is gre"),
        ("json_schema", {"enum": []}, "cannot be compiled: Unsatisfiable schema"),
        ("json_schema", {"enum": [{1}]}, "the JSON schema is not JSON: .*set"),
        ("json_schema", "object", "the JSON schema is str 'object': it must be an object"),
        ("choice", [], r"choice is \[\]: it must be a list of texts"),
        ("choice", "a", "choice is 'a': it must be a list of texts"),
        ("choice", ["a", 5], r"choice is \['a', 5\]"),
        ("choice", ["a", ""], "a text of choice is ''"),
        ("choice", ["a\ud800"], r"'\\ud800', half of a surrogate pair"),
        ("choice", ["a" * 40_000, "b" * 40_000], "choice has 80000 bytes: at most 65536"),
        ("lark", 7, "the grammar is 7: it must be a str"),
        ("lark", "", "neither Lark .* nor GBNF"),
        ("lark", 'root ::= "a', "neither Lark .* nor GBNF.*Unexpected end"),
        ("lark", "start: x", 'cannot be compiled: unknown name: "x"'),
        ("lark", "start: <|secret|>", "cannot be compiled: unknown special token"),
        ("lark", "start: " + "(" * 65 + '"a"' + ")" * 65, "more than 64 nested brackets"),
        ("lark", 'start: "' + "a" * 70_000 + '"', "the grammar has 700.. bytes: at most 65536"),
    ],
)
def test_what_cannot_be_compiled_or_met_is_refused_with_the_reason(
    kind: str, source: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        vocabulary_of("bpe").matcher(make_grammar(kind, source))
    assert "\n" not in str(caught.value)


def test_an_unknown_kind_of_grammar_is_refused() -> None:
    with pytest.raises(ConfigError, match="'regexp' is not a known kind of grammar. Did you mean"):
        make_grammar("regexp", "a")


def test_what_the_tokens_cannot_spell_is_refused() -> None:
    tokenizer = trained("character", byte_fallback=False)
    vocabulary = GrammarVocabulary(tokenizer, [tokenizer.id_of("end")])
    assert not vocabulary.has_all_bytes
    assert vocabulary.matcher(make_grammar("regex", "(the|\u9f98)")).allowed().any()
    for pattern in ("\u9f98", "the \u9f98", "(a|b|\u82f9){2}\u9f98"):
        with pytest.raises(
            UsageError, match="no text that can be written with this model's tokens"
        ):
            vocabulary.matcher(make_grammar("regex", pattern))


def test_a_reason_is_one_line() -> None:
    drawn = (
        'at 1(8): invalid regex "(":\n    (\n    ^\nerror: unclosed\n   1 | start: /(/\n     ^\n'
    )
    assert one_line(drawn) == 'invalid regex "(": ( error: unclosed'
