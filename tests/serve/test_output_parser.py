"""Generated text becomes text, reasoning and calls, and how the text is split changes nothing."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.serve.output_parser import (
    REASONING_FORMATS,
    Delta,
    OutputParser,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStart,
    detect_reasoning_format,
    random_alphanumeric,
)
from weft.serve.tool_formats import TOOL_FORMATS

NAMES = ["weather", "add", "get", "get_time"]
THINK = REASONING_FORMATS["think"]
Parts = list[tuple[str, ...]]


def make(tool_format: str | None = "hermes", **options: Any) -> OutputParser:
    made = TOOL_FORMATS[tool_format]() if tool_format else None
    return OutputParser(made, THINK, NAMES, new_id=lambda length: "i" * length, **options)


def parse(parts: list[str], tool_format: str | None = "hermes", **options: Any) -> Parts:
    """("text", ...), ("reasoning", ...) and ("call", name, arguments), in order."""
    parser, joined = make(tool_format, **options), []
    for delta in [*(one for part in parts for one in parser.feed(part)), *parser.finish()]:
        add(joined, delta)
    return [tuple(one) for one in joined]


def add(joined: list[list[str]], delta: Delta) -> None:
    kind = {TextDelta: "text", ReasoningDelta: "reasoning"}.get(type(delta))
    if isinstance(delta, ToolCallStart):
        assert delta.index == sum(one[0] == "call" for one in joined)
        joined.append(["call", delta.name, ""])
    elif isinstance(delta, ToolCallDelta):
        assert joined[-1][0] == "call"
        assert delta.index == sum(one[0] == "call" for one in joined) - 1
        joined[-1][2] += delta.arguments_fragment
    elif joined and joined[-1][0] == kind:
        joined[-1][1] += delta.text
    else:
        joined.append([kind, delta.text])


def text(content: str) -> tuple[str, str]:
    return "text", content


def call(name: str, arguments: str = "{}") -> tuple[str, str, str]:
    return "call", name, arguments


def tag(body: str) -> str:
    return f"<tool_call>{body}</tool_call>"


RAIN = '{"city": "Rome", "days": [1, {"a": "}"}]}'
WEATHER = '{"name": "weather", "arguments": ' + RAIN + "}"
EMPTY = '{"name": "get_time", "arguments": {}}'
TAGS = json.dumps({"x": '<tool_call>{"name": "add"}</tool_call> "\\ \u00e9 </think>'})
ESCAPES = r'{"a": "\u00e9\ud83d\ude00\n\"\\"}'
OTHER = WEATHER.replace("arguments", "parameters")

HERMES: dict[str, tuple[str, Parts]] = {
    "only text": ("Hello <b> & {x} <tool", [text("Hello <b> & {x} <tool")]),
    "nothing": ("", []),
    "white space": (" \n", [text(" \n")]),
    "one call": (tag(f"\n{WEATHER}\n"), [call("weather", RAIN)]),
    "text before": ("Let me see.\n" + tag(WEATHER), [text("Let me see.\n"), call("weather", RAIN)]),
    "space before": ("\n\n" + tag(WEATHER), [call("weather", RAIN)]),
    "text after": (tag(EMPTY) + "\nDone. ", [call("get_time"), text("\nDone. ")]),
    "space after": (tag(EMPTY) + "\n \n", [call("get_time")]),
    "two calls": (tag(EMPTY) + "\n" + tag(WEATHER), [call("get_time"), call("weather", RAIN)]),
    "text between": (
        f"a{tag(EMPTY)} b {tag(WEATHER)}c",
        [text("a"), call("get_time"), text(" b "), call("weather", RAIN), text("c")],
    ),
    "no arguments": (tag('{"name": "add"}'), [call("add")]),
    "null arguments": (tag('{"name": "add", "arguments": null}'), [call("add")]),
    "parameters": (tag(OTHER), [call("weather", RAIN)]),
    "arguments first": (tag('{"arguments": {"a": 1}, "name": "add"}'), [call("add", '{"a": 1}')]),
    "id and type": (
        tag('{"id": 5, "type": "function", "name": "add", "arguments": {} }'),
        [call("add")],
    ),
    "escaped name": (tag(r'{"n\u0061me": "\u0061dd", "arguments": {}}'), [call("add")]),
    "tags as strings": (
        tag('{"name": "add", "arguments": ' + TAGS + "}") + "x",
        [call("add", TAGS), text("x")],
    ),
    "escapes": (tag('{"name": "add", "arguments": ' + ESCAPES + "}"), [call("add", ESCAPES)]),
    "no closing at the end": ("<tool_call>" + WEATHER, [call("weather", RAIN)]),
    "half a closing": (f"<tool_call>{WEATHER}\n</tool", [call("weather", RAIN)]),
    "no closing before a call": (
        f"<tool_call>{EMPTY}\n<tool_call>{WEATHER}",
        [call("get_time"), call("weather", RAIN)],
    ),
    "text for a closing": (f"<tool_call>{EMPTY} </x>", [call("get_time"), text(" </x>")]),
    "a call after a malformed one": (
        "a <tool_call>{bad} " + tag(EMPTY),
        [text("a <tool_call>{bad} "), call("get_time")],
    ),
    "an opening twice": ("<tool_call>" + tag(EMPTY), [text("<tool_call>"), call("get_time")]),
    "reasoning": (
        f"<think>\nhm, {tag(EMPTY)} <\n</think>\n\nHello</think>",
        [("reasoning", f"hm, {tag(EMPTY)} <"), text("Hello</think>")],
    ),
    "reasoning and a call": (
        f" <think>hm</think>\n\n{tag(EMPTY)}",
        [("reasoning", "hm"), call("get_time")],
    ),
    "empty reasoning": ("<think>\n\n</think>\n\nHello", [text("Hello")]),
    "unfinished reasoning": ("<think>\nhm </thi", [("reasoning", "hm </thi")]),
    "late reasoning": ("a <think>b</think>", [text("a <think>b</think>")]),
    "half a tag of reasoning": ("<thin", [text("<thin")]),
    "reasoning and half a tag": ("<think>a</think> <tool_c", [("reasoning", "a"), text("<tool_c")]),
}
MALFORMED = [
    tag('{"name": "weather", "arguments": {"a": 1}'),
    tag('{"name": "weather", "arguments": {"a": }}'),
    tag('{"name": "weather", "arguments": "{}"}'),
    tag('{"name": "weather", "arguments": [1]}'),
    tag('{"name": "unknown", "arguments": {}}'),
    tag('{"name": 5, "arguments": {}}'),
    tag('{"function": "weather", "arguments": {}}'),
    tag('{"name": "weather", "name": "add", "arguments": {}}'),
    tag('{"name": "weather", "arguments": {}, "parameters": {}}'),
    tag('{"arguments": {}}'),
    tag("{}"),
    tag("weather"),
    tag('{"name": "weather", "arguments": {"a": "line\nbreak"}}'),
    " \n" + tag("[]"),
    '<tool_call>{"name": "weather", "arguments": {"a": "unfinished',
    '<tool_call>{"name": "wea',
    "<tool_call>",
    "<tool_call> \n",
]
LLAMA3: dict[str, tuple[str, Parts]] = {
    "bare": (OTHER, [call("weather", RAIN)]),
    "space before": (" \n" + OTHER + "\n", [call("weather", RAIN)]),
    "with a tag": ("<|python_tag|>" + OTHER, [call("weather", RAIN)]),
    "text before": ("I look.<|python_tag|>" + OTHER, [text("I look."), call("weather", RAIN)]),
    "two": (f"{OTHER}; {EMPTY}", [call("weather", RAIN), call("get_time")]),
    "two tags": (
        f"<|python_tag|>{OTHER}\n<|python_tag|>{EMPTY}",
        [call("weather", RAIN), call("get_time")],
    ),
    "text after": (OTHER + " ok", [call("weather", RAIN), text(" ok")]),
    "a JSON answer": ('{"city": "Rome"} ', [text('{"city": "Rome"} ')]),
    "a JSON answer with a name": ('{"name": "Bob", "age": 5}', [text('{"name": "Bob", "age": 5}')]),
    "a brace in text": ("a " + OTHER, [text("a " + OTHER)]),
    "a malformed second": (
        EMPTY + '; {"name": "no"}',
        [call("get_time"), text('; {"name": "no"}')],
    ),
    "reasoning": (f"<think>a</think>\n{EMPTY}", [("reasoning", "a"), call("get_time")]),
}
MISTRAL: dict[str, tuple[str, Parts]] = {
    "an array": (
        f"[TOOL_CALLS][{WEATHER}, {EMPTY}]",
        [call("weather", RAIN), call("get_time")],
    ),
    "space": (f"[TOOL_CALLS] [ {EMPTY} , {EMPTY} ] ", [call("get_time"), call("get_time")]),
    "with ids": (
        '[TOOL_CALLS] [{"name": "add", "arguments": {}, "id": "abc"}]',
        [call("add")],
    ),
    "an open array": (f"[TOOL_CALLS][{WEATHER}", [call("weather", RAIN)]),
    "one object": (f"a[TOOL_CALLS]{WEATHER}b", [text("a"), call("weather", RAIN), text("b")]),
    "a name": ("[TOOL_CALLS]weather[ARGS]" + RAIN, [call("weather", RAIN)]),
    "two names": (
        f"[TOOL_CALLS]get[ARGS]{RAIN}[TOOL_CALLS]get_time[ARGS]" + "{}",
        [call("get", RAIN), call("get_time")],
    ),
    "a call id": ("[TOOL_CALLS]add[CALL_ID]x1y2z3abc[ARGS]{}", [call("add")]),
    "without [ARGS]": (
        "hm [TOOL_CALLS]get_time{} ok",
        [text("hm "), call("get_time"), text(" ok")],
    ),
    "an unknown name": ("[TOOL_CALLS]got[ARGS]{}", [text("[TOOL_CALLS]got[ARGS]{}")]),
    "a longer name": ("[TOOL_CALLS]get_times[ARGS]{}", [text("[TOOL_CALLS]get_times[ARGS]{}")]),
    "a sentence": ("[TOOL_CALLS]get me out", [text("[TOOL_CALLS]get me out")]),
    "bad arguments": ("[TOOL_CALLS]add[ARGS]{1}", [text("[TOOL_CALLS]add[ARGS]{1}")]),
    "an empty array": ("[TOOL_CALLS][] x", [text("[TOOL_CALLS][] x")]),
    "a malformed second": (
        f"[TOOL_CALLS][{EMPTY}, {{1}}]",
        [call("get_time"), text(", {1}]")],
    ),
    "a comma at the end": (f"[TOOL_CALLS][{EMPTY},]", [call("get_time"), text(",]")]),
    "unfinished": ("[TOOL_CALLS]add[AR", [text("[TOOL_CALLS]add[AR")]),
}
CASES = [
    *(("hermes", *case) for case in HERMES.values()),
    *(("hermes", one, [text(one)]) for one in MALFORMED),
    *(("llama3", *case) for case in LLAMA3.values()),
    *(("mistral", *case) for case in MISTRAL.values()),
]


@pytest.mark.parametrize(("tool_format", "output", "expected"), CASES)
def test_the_parts_of_a_text(tool_format: str, output: str, expected: Parts) -> None:
    assert parse([output], tool_format) == expected


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(("tool_format", "output", "expected"), CASES)
def test_no_split_changes_the_parts(
    tool_format: str, output: str, expected: Parts, streams: bool
) -> None:
    whole = parse([output], tool_format, stream_arguments=streams)
    assert parse(list(output), tool_format, stream_arguments=streams) == whole
    for at in range(len(output) + 1):
        parts = [output[:at], output[at:]]
        assert parse(parts, tool_format, stream_arguments=streams) == whole
        parts = [output[:at], output[at : at + 1], output[at + 1 :]]
        assert parse(parts, tool_format, stream_arguments=streams) == whole


PIECES = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        "<|python_tag|>",
        "[TOOL_CALLS]",
        "[ARGS]",
    ]
    + [WEATHER, EMPTY, OTHER, RAIN, "{", "}", "[", "]", ",", ";", '"', '"name": ', "weather", "add"]
    + [" ", "\n", "x", "<", "\u00e9", "\\", "<tool_", "hello "]
)


@given(
    st.sampled_from(sorted(TOOL_FORMATS)),
    st.lists(PIECES, max_size=12).map("".join),
    st.sets(st.integers(0, 200)),
    st.booleans(),
    st.booleans(),
)
def test_no_split_changes_the_parts_of_any_text(
    tool_format: str, output: str, cuts: set[int], streams: bool, is_in_reasoning: bool
) -> None:
    options = {"stream_arguments": streams, "is_in_reasoning": is_in_reasoning}
    borders = [0, *sorted(cut for cut in cuts if cut < len(output)), len(output)]
    parts = [output[a:b] for a, b in zip(borders, borders[1:], strict=False)]
    whole = parse([output], tool_format, **options)
    assert parse(parts, tool_format, **options) == whole
    assert parse(list(output), tool_format, **options) == whole
    for one in whole:
        if one[0] == "call" and not streams:
            assert one[1] in NAMES and isinstance(json.loads(one[2]), dict)


@given(st.lists(PIECES, max_size=12).map("".join), st.sets(st.integers(0, 200)))
def test_without_formats_all_is_text(output: str, cuts: set[int]) -> None:
    for parser in (OutputParser(None, None, NAMES), OutputParser(TOOL_FORMATS["hermes"](), None)):
        deltas = [*parser.feed(output), *parser.finish()]
        assert deltas == ([TextDelta(output)] if output else [])


def test_text_is_returned_as_soon_as_it_cannot_be_a_tag() -> None:
    parser = make()
    shown = [parser.feed(part) for part in ("a", " <", "b<tool", "_cal", "m ", "c")]
    texts = ["".join(delta.text for delta in one) for one in shown]
    assert texts == ["a", " ", "<b", "", "<tool_calm ", "c"]
    parser = make("llama3")
    assert parser.feed('{"name": "B') == [] and parser.feed('ob", ') == [
        TextDelta('{"name": "Bob", ')
    ]


def test_arguments_are_streamed_where_they_may_be() -> None:
    parser = make(stream_arguments=True)
    assert parser.feed('<tool_call>{"name": "add", "arguments": ') == []
    assert parser.feed('{"a"') == [ToolCallStart(0, "call_" + "i" * 24, "add"), delta_of('{"a"')]
    assert parser.feed(": [1") == [delta_of(": [1")]
    assert parser.feed("]}") == [delta_of("]}")]
    assert parser.feed("}</tool_call>") == [] == parser.finish()
    assert parser.num_calls == 1


def delta_of(fragment: str) -> ToolCallDelta:
    return ToolCallDelta(0, fragment)


def test_streamed_arguments_that_become_invalid_or_end_early_stay() -> None:
    start = '<tool_call>{"name": "add", "arguments": {"a": '
    assert parse([start + "x</tool_call>"], stream_arguments=True) == [
        call("add", '{"a": '),
        text("x</tool_call>"),
    ]
    assert parse([start + "12"], stream_arguments=True) == [call("add", '{"a": 12')]


def test_calls_beyond_the_maximum_are_dropped() -> None:
    output = f"a{tag(EMPTY)}b{tag(WEATHER)}c"
    expected = [text("a"), call("get_time"), text("bc")]
    for streams in (False, True):
        assert parse([output], max_calls=1, stream_arguments=streams) == expected
    parser = make(max_calls=1)
    parser.feed(output)
    assert parser.num_calls == 1


@pytest.mark.parametrize(
    ("name", "prefix", "length"),
    [("hermes", "call_", 24), ("llama3", "call_", 24), ("mistral", "", 9)],
)
def test_ids_have_the_form_of_the_family(name: str, prefix: str, length: int) -> None:
    output = {"hermes": tag(EMPTY), "llama3": EMPTY, "mistral": f"[TOOL_CALLS][{EMPTY}]"}[name]
    ids = set()
    for _ in range(20):
        parser = OutputParser(TOOL_FORMATS[name](), None, NAMES)
        start = parser.feed(output)[0]
        assert isinstance(start, ToolCallStart) and start.id.startswith(prefix)
        rest = start.id.removeprefix(prefix)
        assert len(rest) == length and rest.isalnum() and rest.isascii()
        ids.add(start.id)
    assert len(ids) == 20 and len(random_alphanumeric(9)) == 9


def test_a_text_that_continues_reasoning_begins_in_it() -> None:
    output = "hm\n</think>\n\nHello"
    expected = [("reasoning", "hm"), text("Hello")]
    assert parse([output], is_in_reasoning=True) == expected
    assert parse([output]) == [text(output)]
    assert THINK.is_open_after("<|im_start|>assistant\n<think>\n")
    assert not THINK.is_open_after("<think>\n\n</think>\n\n")
    assert THINK.is_open_in("<think>\nI was") and not THINK.is_open_in("<think>a</think> b")


def test_reasoning_formats_are_detected_in_templates() -> None:
    qwen = "{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}"
    assert detect_reasoning_format(qwen) == "think"
    assert detect_reasoning_format("[THINK]{{ x }}[/THINK]") == "mistral"
    assert detect_reasoning_format("{{ messages }}") is None is detect_reasoning_format(None)


@pytest.mark.parametrize("streams", [False, True])
def test_the_time_is_linear_in_the_length(streams: bool) -> None:
    long = json.dumps({"x": 'line "a"\n' * 40_000})
    output = tag('{"name": "add", "arguments": ' + long + "}") + "<tool_call>{" * 20_000
    parts = [output[at : at + 4] for at in range(0, len(output), 4)]
    start = time.process_time()
    result = parse(parts, stream_arguments=streams)
    assert time.process_time() - start < 10.0
    assert result[0] == call("add", long) and result[1] == text("<tool_call>{" * 20_000)
