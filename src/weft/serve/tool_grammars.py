"""Grammars of tool calls: format and functions -> the texts that a model may generate.

    required    one call or more and nothing else: known names, arguments valid under their schemas
    optional    any text; from a marker on, a call as above
    either      a call as above, or an answer in the caller's format

Where the output also may have reasoning, `after_reasoning` puts it before any grammar.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from weft.core.errors import UsageError
from weft.engine.detokenizer import special_ids
from weft.engine.grammar import OPTIONS, Grammar, json_lark, make_grammar
from weft.engine.grammar_limits import DATA, MAX_DEPTH
from weft.engine.request_builder import byte_vocabulary
from weft.serve.output_parser import ReasoningFormat
from weft.serve.tool_formats import MORE, ToolFormat, mark
from weft.serve.tools import FunctionTool
from weft.text.tokenizer import Tokenizer

MAX_GRAMMAR_BYTES = 512 << 10
"""Of the schemas of all tools together; each has at most 64 KB."""
TEXT = "TEXT: /(?s:.*)/\n"
SPACE = "WS: /[ \\t\\n\\r]{0,8}/\n"
TEXT_WITHOUT_BRACE = "FREE: /\\s*([^{\\s](?s:.*))?/\n"
DESCRIPTIONS = ("title", "description", "examples", "default", "$comment")
"""Keywords that restrict nothing and are long."""
NAMED_SCHEMAS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords with schemas by name."""


def tool_grammar(
    tool_format: ToolFormat,
    tools: Sequence[FunctionTool],
    *,
    is_required: bool,
    is_parallel: bool = True,
    special: Mapping[str, int] | None = None,
) -> Grammar:
    """The grammar of calls of these tools, or of text with calls if they are not required; one call
    if not `is_parallel`. `special`: ids of the model's special tokens by name.

    A function that is not strict may have any arguments if its schema cannot be a grammar. Raises a
    UsageError for a strict one, and if the schemas are too large together.
    """
    if not tools:
        raise UsageError("tools is empty: a tool call needs at least one function. Add it.")
    ids = special or {}
    rules = [start_rules(tool_format, ids, is_required, is_parallel)]
    rules += ["call: " + " | ".join(f"call_{index}" for index in range(len(tools)))]
    for index, tool in enumerate(tools):
        rules.append(f"call_{index}: {tool_format.call_rule(tool.name, f'args_{index}', ids)}")
        rules.append(f"args_{index}: {arguments_rule(tool)}")
    text = "\n".join(rules)
    if len(text.encode()) > MAX_GRAMMAR_BYTES:
        raise UsageError(
            f"the schemas of the tools have {len(text.encode())} bytes together: at most "
            f"{MAX_GRAMMAR_BYTES} are allowed. Use fewer tools."
        )
    return Grammar(f"{OPTIONS}{text}\n{SPACE}")


def start_rules(
    tool_format: ToolFormat, ids: Mapping[str, int], is_required: bool, is_parallel: bool
) -> str:
    """The rule `start`, in terms of `call`."""
    marker = tool_format.markers[0]
    after = tool_format.after_marker(ids, is_parallel)
    repeats = is_parallel and tool_format.repeats(ids)
    if is_required:
        opening = mark(marker, ids)
        if tool_format.has_bare_calls:
            opening = f"({opening})?" if marker in ids else ""
        block = f"{opening} {after}"
        return f"start: WS {block}" + (f" (WS {block}){MORE}" if repeats else "")
    if tool_format.has_bare_calls:
        with_marker = f" | FREE {mark(marker, ids)} {after}" if marker in ids else ""
        return f"start: FREE | WS {after}{with_marker}\n{TEXT_WITHOUT_BRACE}"
    # lazy: the text ends at the first marker
    is_lazy = "" if marker in ids else "[lazy]"
    opening = f"opening{is_lazy}: TEXT {mark(marker, ids)}\n{TEXT}"
    # after the only block, text could contain a marker again
    start = f"(opening {after})* TEXT" if repeats else f"TEXT | opening {after} WS"
    return f"start: {start}\n{opening}"


def arguments_rule(tool: FunctionTool) -> str:
    """The arguments of a function."""
    try:
        return schema_rule(json.dumps(without_descriptions(tool.parameters)))
    except UsageError as error:
        if tool.is_strict:
            raise UsageError(f"the parameters of tool {tool.name!r}: {error}") from None
    return json_lark({"type": "object"})


@lru_cache(maxsize=1024)
def schema_rule(schema: str) -> str:
    """A JSON schema in a rule; raises a UsageError if it exceeds limits or cannot be compiled."""
    parsed = json.loads(schema)
    byte_vocabulary().matcher(make_grammar("json_schema", parsed))
    return json_lark(parsed)


def without_descriptions(schema: Any, depth: int = 0) -> Any:
    """A schema without texts for the reader, which may be longer than all the rest."""
    if depth > MAX_DEPTH:
        raise UsageError(
            f"the JSON schema is more than {MAX_DEPTH} levels deep: at most {MAX_DEPTH} are "
            "allowed. Use $ref and $defs for parts that repeat."
        )
    if isinstance(schema, (list, tuple)):
        return [without_descriptions(item, depth + 1) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: without_in(key, item, depth + 1)
        for key, item in schema.items()
        if key not in DESCRIPTIONS
    }


def without_in(key: str, item: Any, depth: int) -> Any:
    """The same for the value of a keyword."""
    if key in DATA:
        return item
    if key in NAMED_SCHEMAS and isinstance(item, Mapping):
        return {name: without_descriptions(one, depth + 1) for name, one in item.items()}
    return without_descriptions(item, depth)


def either(calls: Grammar, answer: Grammar) -> Grammar:
    """Calls, or an answer in the format that the caller asks for."""
    outer = {"name": "answer", "lark_grammar": f"{OPTIONS}start: @calls | @format\n"}
    named = {"calls": calls, "format": answer}
    parts = [{"name": name, "lark_grammar": one.lark} for name, one in named.items()]
    return Grammar(json.dumps({"grammars": [outer, *parts]}))


def parts_of(grammar: Grammar) -> list[dict[str, str]]:
    """The grammars of `either`, or a single one, as `answer`."""
    if grammar.lark.startswith('{"grammars"'):
        parts: list[dict[str, str]] = json.loads(grammar.lark)["grammars"]
        return parts
    return [{"name": "answer", "lark_grammar": grammar.lark}]


def after_reasoning(
    grammar: Grammar,
    reasoning: ReasoningFormat,
    *,
    is_in_reasoning: bool,
    special: Mapping[str, int] | None = None,
) -> Grammar:
    """The grammar after reasoning. Unless the prompt ends inside of it, the model may leave it
    out."""
    ids = special or {}
    is_lazy = "" if reasoning.end in ids else "[lazy]"
    body = "reasoning WS @answer"
    start = body if is_in_reasoning else f"(WS {mark(reasoning.start, ids)} {body}) | @answer"
    rules = f"start: {start}\nreasoning{is_lazy}: TEXT {mark(reasoning.end, ids)}\n"
    outer = {"name": "outer", "lark_grammar": f"{OPTIONS}{rules}{TEXT}{SPACE}"}
    return Grammar(json.dumps({"grammars": [outer, *parts_of(grammar)]}))


def special_by_name(tokenizer: Tokenizer) -> dict[str, int]:
    """`special` of these functions for a tokenizer."""
    return {name: index for index, name in special_ids(tokenizer.target).items()}
