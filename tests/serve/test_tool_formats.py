"""Each format is detected, its grammar allows calls of the given tools and no others, and whatever
a model generates under the grammar is parsed into these calls."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from tests.text.chat_templates import CHATML, LLAMA3, QWEN25
from weft.core.errors import UsageError
from weft.engine.detokenizer import Detokenizer, visible_special_ids
from weft.engine.grammar import Grammar, GrammarVocabulary, make_grammar
from weft.serve.output_parser import (
    REASONING_FORMATS,
    OutputParser,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
)
from weft.serve.tool_formats import TOOL_FORMATS, detect_tool_format
from weft.serve.tool_grammars import (
    after_reasoning,
    special_by_name,
    tool_grammar,
    without_descriptions,
)
from weft.serve.tools import FunctionTool, check_tools
from weft.text.special_tokens import SpecialTokens
from weft.text.tokenizer import Tokenizer

SPECIAL = {
    "none": [],
    "hermes": ["<tool_call>", "</tool_call>"],
    "llama3": ["<|python_tag|>"],
    "mistral": ["[TOOL_CALLS]"],
    "mistral args": ["[TOOL_CALLS]", "[ARGS]"],
    "think": ["<think>", "</think>"],
}
"""Special tokens of the tokenizers, beside their end token."""
COMBINATIONS = [
    ("hermes", "none"),
    ("hermes", "hermes"),
    ("llama3", "none"),
    ("llama3", "llama3"),
    ("mistral", "none"),
    ("mistral", "mistral"),
    ("mistral", "mistral args"),
]
UNIT = {"enum": ["C", "F", '"q"', "\u00e9\n"], "description": "</tool_call>"}
TOOLS = check_tools(
    [
        {
            "type": "function",
            "function": {
                "name": "get",
                "strict": True,
                "parameters": {
                    "type": "object",
                    "properties": {"unit": {"$ref": "#/$defs/unit"}, "n": {"type": "boolean"}},
                    "required": ["unit"],
                    "additionalProperties": False,
                    "$defs": {"unit": UNIT},
                },
            },
        },
        {"type": "function", "function": {"name": "get_time"}},
    ]
)
GET, TIME = '{"unit": "C", "n": true}', "{}"


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Backend(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    names = ["</s>", *SPECIAL[kind]]
    backend.add_special_tokens([AddedToken(name, special=True) for name in names])
    return Tokenizer(backend, SpecialTokens(end="</s>"))


@cache
def vocabulary_of(kind: str) -> GrammarVocabulary:
    tokenizer = tokenizer_of(kind)
    return GrammarVocabulary(tokenizer, [tokenizer.id_of("end")])


def grammar_of(
    name: str, kind: str, tools: Sequence[FunctionTool] = TOOLS, **options: Any
) -> Grammar:
    special = special_by_name(tokenizer_of(kind))
    return tool_grammar(TOOL_FORMATS[name](), tools, special=special, **options)


def accepts(grammar: Grammar, kind: str, text: str) -> bool:
    """Whether the grammar allows the tokens of a text, and then an end."""
    matcher, tokenizer = vocabulary_of(kind).matcher(grammar), tokenizer_of(kind)
    for token in tokenizer.encode(text, False, 10_000, parse_special=True):
        if matcher.is_finished or not matcher.allowed()[token]:
            return False
        matcher.advance(token)
    return matcher.is_accepting


def written(name: str, kind: str, *calls: tuple[str, str]) -> str:
    """Calls as a model of this format writes them."""
    if kind == "mistral args":
        return "".join(f"[TOOL_CALLS]{call}[ARGS]{arguments}" for call, arguments in calls)
    key = "parameters" if name == "llama3" else "arguments"
    objects = [f'{{"name": "{call}", "{key}": {arguments}}}' for call, arguments in calls]
    if name == "hermes":
        return "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in objects)
    if name == "llama3":
        return "; ".join(objects)
    return f"[TOOL_CALLS][{', '.join(objects)}]"


# --- detection ------------------------------------------------------------------------------

MISTRAL = '{% for tool in tools %}{{ tool }}{% endfor %}{{ "[TOOL_CALLS]" }}'


@pytest.mark.parametrize(
    ("template", "vocabulary", "name"),
    [
        (QWEN25, [], "hermes"),
        (QWEN25, ["<|python_tag|>", "[TOOL_CALLS]"], "hermes"),
        (LLAMA3, ["<|python_tag|>", "<|eot_id|>"], "llama3"),
        (LLAMA3 + "<|python_tag|>", [], "llama3"),
        (LLAMA3, [], "hermes"),
        (MISTRAL, [], "mistral"),
        ("{{ tools }}[INST]", ["[TOOL_CALLS]"], "mistral"),
        (CHATML, ["<|python_tag|>"], "hermes"),
        (None, ["[TOOL_CALLS]"], "hermes"),
    ],
)
def test_the_format_is_that_of_the_template(
    template: str | None, vocabulary: list[str], name: str
) -> None:
    assert detect_tool_format(template, vocabulary) == name


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_a_format_keeps_its_markers_visible(name: str) -> None:
    tool_format = TOOL_FORMATS[name]()
    assert tool_format.name == name and set(tool_format.markers) <= set(tool_format.visible_special)


# --- grammars -------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kind"), COMBINATIONS)
def test_required_calls_are_calls_of_the_tools_and_nothing_else(name: str, kind: str) -> None:
    both, one = (grammar_of(name, kind, is_required=True, is_parallel=p) for p in (True, False))
    get, time = ("get", GET), ("get_time", TIME)
    for calls in ([get], [time]):
        assert accepts(both, kind, written(name, kind, *calls))
        assert accepts(one, kind, written(name, kind, *calls))
    assert accepts(both, kind, written(name, kind, get, time, get))
    assert not accepts(one, kind, written(name, kind, get, time))
    wrong = [("got", TIME), ("get", TIME), ("get", '{"unit": "K"}'), ("get_time", '{"a": 1}')]
    for call in [*wrong, ("get", "5"), ("get", GET + ",")]:
        assert not accepts(both, kind, written(name, kind, call))
    for text in ("", "Hello", "Hello " + written(name, kind, get), written(name, kind, get) + "x"):
        assert not accepts(both, kind, text)
    named = grammar_of(name, kind, TOOLS[1:], is_required=True)
    assert accepts(named, kind, written(name, kind, time))
    assert not accepts(named, kind, written(name, kind, get))


@pytest.mark.parametrize(("name", "kind"), COMBINATIONS)
def test_optional_calls_are_free_text_up_to_the_marker(name: str, kind: str) -> None:
    both, one = (grammar_of(name, kind, is_required=False, is_parallel=p) for p in (True, False))
    get, time = ("get", GET), ("get_time", TIME)
    for grammar in (both, one):
        for text in ("", "Hello <tool> [x] \n{", " ok", written(name, kind, get)):
            assert accepts(grammar, kind, text), text
        assert not accepts(grammar, kind, written(name, kind, ("got", TIME)))
        assert not accepts(grammar, kind, written(name, kind, ("get", TIME)))
    assert accepts(both, kind, written(name, kind, get, time))
    assert not accepts(one, kind, written(name, kind, get, time))
    if name != "llama3":
        assert accepts(both, kind, "I look. " + written(name, kind, get))
        assert accepts(one, kind, "I look. " + written(name, kind, get))
        assert not accepts(both, kind, "I look. " + written(name, kind, ("got", TIME)))
    elif kind == "llama3":
        assert accepts(both, kind, "I look. <|python_tag|>" + written(name, kind, get))
        assert not accepts(both, kind, "I look. <|python_tag|>x")
    if name == "hermes":
        assert accepts(both, kind, written(name, kind, get) + " Done. " + written(name, kind, time))
        assert not accepts(one, kind, written(name, kind, get) + " Done.")


@pytest.mark.parametrize("is_required", [True, False])
@pytest.mark.parametrize(("name", "kind"), COMBINATIONS)
def test_what_is_generated_under_a_grammar_is_parsed_into_its_calls(
    name: str, kind: str, is_required: bool
) -> None:
    tokenizer, rng = tokenizer_of(kind), random.Random(1)
    tool_format, names = TOOL_FORMATS[name](), [tool.name for tool in TOOLS]
    grammar = grammar_of(name, kind, is_required=is_required)
    visible = visible_special_ids(tokenizer, tool_format.visible_special)
    num_calls = 0
    for number in range(12):
        ids = generate(grammar, kind, rng, "" if is_required else written_start(name, kind, number))
        stream = Detokenizer(tokenizer, visible_ids=visible)
        parser = OutputParser(tool_format, None, names, stream_arguments=True)
        deltas = [one for token in ids for one in parser.feed(stream.append(token))]
        deltas += [*parser.feed(stream.finalize()), *parser.finish()]
        assert not is_required or not any(isinstance(one, TextDelta) for one in deltas)
        for start in (one for one in deltas if isinstance(one, ToolCallStart)):
            parts = [one for one in deltas if isinstance(one, ToolCallDelta)]
            mine = [one.arguments_fragment for one in parts if one.index == start.index]
            check_arguments(start.name, json.loads("".join(mine)))
            num_calls += 1
    assert num_calls >= 12


def written_start(name: str, kind: str, number: int) -> str:
    """The beginning of an answer up to a call, which random tokens would hardly generate."""
    text = written(name, kind, ("get", GET))
    before = {"llama3 none": "", "llama3 llama3": "Hm. <|python_tag|>"}
    prefix = before.get(f"{name} {kind}", "Hm. ") if number % 2 else ""
    return prefix + text[: text.index("get")]


def generate(grammar: Grammar, kind: str, rng: random.Random, start: str) -> list[int]:
    """Random tokens that the grammar allows after a beginning; an end as soon as it is allowed."""
    matcher, tokenizer = vocabulary_of(kind).matcher(grammar), tokenizer_of(kind)
    ids = tokenizer.encode(start, False, 10_000, parse_special=True)
    for token in ids:
        assert matcher.allowed()[token]
        matcher.advance(token)
    num_more = 0
    while not matcher.is_finished and (num_more == 0 or not matcher.is_accepting):
        allowed = matcher.allowed().nonzero().flatten().tolist()
        allowed = [one for one in allowed if one != tokenizer.id_of("end")]
        token = rng.choice(allowed)
        matcher.advance(token)
        ids.append(token)
        num_more += 1
        assert num_more < 2000
    return ids


def check_arguments(name: str, arguments: dict[str, Any]) -> None:
    if name == "get_time":
        assert arguments == {}
    else:
        assert name == "get" and {"unit"} <= set(arguments) <= {"unit", "n"}
        assert arguments["unit"] in UNIT["enum"] and arguments.get("n", True) in (True, False)


# --- schemas --------------------------------------------------------------------------------


def tool(parameters: dict[str, Any], **more: Any) -> list[FunctionTool]:
    definition = {"name": "f", "parameters": parameters, **more}
    return check_tools([{"type": "function", "function": definition}])


def test_a_schema_that_cannot_be_a_grammar_is_any_object_unless_it_is_strict() -> None:
    schema = {"properties": {"a": {"not": {"type": "string"}}}}
    grammar = grammar_of("hermes", "none", tool(schema), is_required=True)
    assert accepts(grammar, "none", written("hermes", "none", ("f", '{"b": [1]}')))
    with pytest.raises(UsageError, match="the parameters of tool 'f': the grammar cannot be comp"):
        grammar_of("hermes", "none", tool(schema, strict=True), is_required=True)


def test_descriptions_do_not_count_but_properties_of_that_name_do() -> None:
    long = {"type": "string", "description": "x" * 100_000, "title": "y"}
    schema = {"properties": {"description": long, "title": {"enum": ["a"]}}, "default": {"a": 1}}
    grammar = grammar_of("hermes", "none", tool(schema, strict=True), is_required=True)
    assert "xxx" not in grammar.lark
    assert not accepts(grammar, "none", written("hermes", "none", ("f", '{"title": "b"}')))
    data = {"enum": [{"description": "kept"}]}
    assert without_descriptions(data) == data


def test_too_many_schemas_and_none_are_refused() -> None:
    with pytest.raises(UsageError, match="tools is empty: a tool call needs at least one"):
        grammar_of("hermes", "none", [], is_required=True)
    schemas = {f"f{n}": {"properties": {"a": {"enum": [f"{n}" * 9_000]}}} for n in range(10, 60)}
    definitions = [{"function": {"name": n, "parameters": one}} for n, one in schemas.items()]
    with pytest.raises(UsageError, match="bytes together: at most 524288 are allowed"):
        grammar_of("hermes", "none", check_tools(definitions), is_required=True)
    deep: dict[str, Any] = {}
    for _ in range(70):
        deep = {"items": deep}
    with pytest.raises(UsageError, match="tool 'f': the JSON schema is more than 64 levels deep"):
        grammar_of("hermes", "none", tool(deep, strict=True), is_required=True)


# --- reasoning ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["none", "think"])
def test_any_grammar_can_follow_reasoning(kind: str) -> None:
    think, special = REASONING_FORMATS["think"], special_by_name(tokenizer_of(kind))
    for grammar, answer in (
        (make_grammar("json_schema", {"enum": [1, 2]}), "2"),
        (make_grammar("regex", "ab?"), "ab"),
        (make_grammar("choice", ["x", "y"]), "y"),
        (make_grammar("lark", 'start: "(" start ")" | "x"'), "((x))"),
        (grammar_of("hermes", kind, is_required=True), written("hermes", kind, ("get_time", TIME))),
    ):
        inside = after_reasoning(grammar, think, is_in_reasoning=True, special=special)
        maybe = after_reasoning(grammar, think, is_in_reasoning=False, special=special)
        assert accepts(inside, kind, f"hm 1 {{ \n</think>\n\n{answer}")
        assert accepts(maybe, kind, f"<think>\nhm</think>{answer}")
        assert accepts(maybe, kind, answer)
        assert not accepts(inside, kind, "hm </think>no")
        assert not accepts(inside, kind, "hm") and not accepts(maybe, kind, "hm")


def test_reasoning_and_required_calls_are_parsed() -> None:
    think, output = (
        REASONING_FORMATS["think"],
        "hm</think>\n" + written("hermes", "none", ("get", GET)),
    )
    parser = OutputParser(TOOL_FORMATS["hermes"](), think, ["get"], is_in_reasoning=True)
    reasoning, start, delta = [*parser.feed(output), *parser.finish()]
    assert reasoning == ReasoningDelta("hm") and isinstance(start, ToolCallStart)
    assert isinstance(delta, ToolCallDelta) and delta.arguments_fragment == GET
