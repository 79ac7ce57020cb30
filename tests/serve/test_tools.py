"""Definitions of tools are checked, and a template without tools still tells the model of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.text.chat_templates import CHATML, LLAMA2
from weft.core.errors import UsageError
from weft.serve.tools import NO_PARAMETERS, check_tools, with_tool_section
from weft.text.chat_encoding import ChatEncoder
from weft.text.chat_template import ChatTemplate
from weft.text.special_tokens import SpecialTokens
from weft.text.tokenizer import Tokenizer
from weft.text.tokenizer_training import TokenizerConfig


def function(name: Any = "f", **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": "\u00e9"}'}}
CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "I look.", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "1", "tool_call_id": "1"},
    {"role": "tool", "content": "2", "tool_call_id": "2"},
    {"role": "user", "content": "Thanks"},
]


def test_a_definition_is_a_function_with_a_schema() -> None:
    schema = {"properties": {"a": {"type": "string"}}}
    first, second = check_tools([function(parameters=schema, strict=True), function("g", x=1)])
    assert first.name == "f" and first.is_strict
    assert first.parameters == {"type": "object", **schema}
    assert second.parameters == NO_PARAMETERS and not second.is_strict
    assert second.definition == {"type": "function", "function": {"name": "g", "x": 1}}
    assert check_tools([]) == []


@pytest.mark.parametrize(
    ("tools", "reason"),
    [
        ("f", "tools is str: it must be a list of functions"),
        ({"f": 1}, "tools is dict"),
        ([5], r"tools\[0\] is 5: it must be a function"),
        ([function(), {"type": "web_search"}], r"tools\[1\] is .*web_search.*must be a function"),
        ([{"type": "function"}], r"tools\[0\] is"),
        ([function(None)], r"tools\[0\].function.name is None: it must be 1 to 128 letters"),
        ([function("a b")], "name is 'a b'"),
        ([function("a" * 129)], "it must be 1 to 128 letters"),
        ([function("\u00e9")], "Rename it"),
        ([function(), function()], "tools has 'f' twice"),
        ([function(parameters=[1])], r"parameters is \[1\]: it must be a JSON schema"),
        ([function(parameters={"type": "string"})], "has type 'string': arguments are an object"),
        ([function(strict="yes")], "strict is 'yes': it must be true or false"),
        ([function(f"f{n}") for n in range(1025)], "tools has 1025 functions: at most 1024"),
    ],
)
def test_a_wrong_definition_is_named_in_one_sentence(tools: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=reason) as error:
        check_tools(tools)
    assert "\n" not in str(error.value)


def test_a_system_section_has_the_tools_and_content_the_calls_and_results() -> None:
    tools = check_tools([function(description="\u00e9 {x}"), function("g")])
    before = json.dumps(CONVERSATION)
    system, user, call, results, thanks = with_tool_section(CONVERSATION, tools)
    assert json.dumps(CONVERSATION) == before
    assert system["content"].startswith("Be brief.\n\n# Tools\n")
    assert (
        '\n{"type": "function", "function": {"name": "f", "description": "\u00e9 {x}"}}\n'
        in (system["content"])
    )
    written = '<tool_call>\n{"name": "f", "arguments": {"a": "\u00e9"}}\n</tool_call>'
    assert call["content"] == f"I look.\n{written}\n{written}" and "tool_calls" not in call
    assert results == {
        "role": "user",
        "content": "<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>",
    }
    assert (user, thanks) == (CONVERSATION[1], CONVERSATION[-1])
    without = with_tool_section(CONVERSATION[1:2], tools)
    assert [one["role"] for one in without] == ["system", "user"]
    assert with_tool_section(CONVERSATION[:2], []) == CONVERSATION[:2]


def test_templates_without_tools_render_such_a_conversation() -> None:
    tools = check_tools([function()])
    messages = with_tool_section(CONVERSATION[:4], tools)
    for source in (CHATML, LLAMA2):
        text = ChatTemplate(source, SpecialTokens(begin="<s>", end="</s>")).render(messages)
        assert "<tools>" in text and "<tool_call>" in text and "<tool_response>" in text


def test_special_tokens_in_arguments_are_text_there_too() -> None:
    tokenizer = Tokenizer.train(["any text"], TokenizerConfig(kind="byte"))
    end = tokenizer.special_tokens.end
    assert end is not None
    encoder = ChatEncoder(ChatTemplate(CHATML, tokenizer.special_tokens), tokenizer)
    call = {"function": {"name": "f", "arguments": {"a": end}}}
    messages = [{"role": "user", "content": end}, {"role": "assistant", "tool_calls": [call]}]
    written = with_tool_section(messages, check_tools([function(description=end)]))
    ids = encoder.encode(written)
    assert tokenizer.end_id not in ids and end in str(written)
    assert tokenizer.end_id in encoder.encode([{"role": "assistant", "content": end}])
