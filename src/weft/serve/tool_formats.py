"""Tool formats: how the families of models write tool calls in their text.

    hermes    <tool_call>{"name": "f", "arguments": {...}}</tool_call>       Hermes, Qwen
    llama3    {"name": "f", "parameters": {...}}, as the whole text or after <|python_tag|>
    mistral   [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...] or [TOOL_CALLS]f[ARGS]{...}

A format has a reader for its calls (output_parser) and rules of a grammar that allows nothing else
(tool_grammars). A marker that is a special token of the model is written as that token.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import ClassVar

from weft.serve.call_readers import CallsReader, ListReader, MistralReader, TagReader

MAX_CALLS = 32
"""Calls in one text, where a grammar constrains it."""
MORE = f"{{0,{MAX_CALLS - 1}}}"


class ToolFormat:
    """One format. `markers` are the texts that open calls; `visible_special` are the names of
    tokens whose text the detokenizer must keep, although they are special in many tokenizers."""

    name: ClassVar[str]
    markers: ClassVar[tuple[str, ...]]
    visible_special: ClassVar[tuple[str, ...]]
    has_bare_calls: ClassVar[bool] = False
    """Whether a text that begins with "{" may be a call without a marker."""
    id_prefix: ClassVar[str] = "call_"
    id_length: ClassVar[int] = 24
    """Alphanumeric characters of a tool call's id after its prefix."""

    def reader(self, names: Collection[str]) -> CallsReader:
        """A reader of the text after a marker, or of a text that begins with "{"."""
        raise NotImplementedError

    # --- rules of a grammar; `call` is any call, WS white space, `special` the special tokens ---

    argument_key: ClassVar[str] = "arguments"

    def call_rule(self, name: str, arguments: str, special: Mapping[str, int]) -> str:
        """The call of one function; `arguments` is the rule of its arguments."""
        parts = ["{", '"name"', ":", json.dumps(name), ",", json.dumps(self.argument_key), ":"]
        return " WS ".join([*map(literal, parts), arguments, literal("}")])

    def after_marker(self, special: Mapping[str, int], is_parallel: bool) -> str:
        """What follows a marker, up to the end of its calls."""
        raise NotImplementedError

    def repeats(self, special: Mapping[str, int]) -> bool:
        """Whether each call has a marker."""
        return True


def literal(text: str) -> str:
    """A text in a rule."""
    return json.dumps(text)


def mark(name: str, special: Mapping[str, int]) -> str:
    """A marker in a rule: the special token, or its text if there is none."""
    return f"<[{special[name]}]>" if name in special else literal(name)


class HermesFormat(ToolFormat):
    name = "hermes"
    markers = ("<tool_call>",)
    visible_special = ("<tool_call>", "</tool_call>")

    def reader(self, names: Collection[str]) -> CallsReader:
        return TagReader(names, "</tool_call>")

    def after_marker(self, special: Mapping[str, int], is_parallel: bool) -> str:
        return f"WS call WS {mark('</tool_call>', special)}"


class Llama3Format(ToolFormat):
    name = "llama3"
    markers = ("<|python_tag|>",)
    visible_special = ("<|python_tag|>",)
    has_bare_calls = True
    argument_key = "parameters"

    def reader(self, names: Collection[str]) -> CallsReader:
        return ListReader(names)

    def after_marker(self, special: Mapping[str, int], is_parallel: bool) -> str:
        return f'call ("; " call){MORE}' if is_parallel else "call"

    def repeats(self, special: Mapping[str, int]) -> bool:
        return False


class MistralFormat(ToolFormat):
    name = "mistral"
    markers = ("[TOOL_CALLS]",)
    visible_special = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    id_prefix, id_length = "", 9  # Mistral's templates reject other ids

    def reader(self, names: Collection[str]) -> CallsReader:
        return MistralReader(names)

    def call_rule(self, name: str, arguments: str, special: Mapping[str, int]) -> str:
        if self.repeats(special):
            return f"{literal(name)} {mark('[ARGS]', special)} {arguments}"
        return super().call_rule(name, arguments, special)

    def after_marker(self, special: Mapping[str, int], is_parallel: bool) -> str:
        if self.repeats(special):
            return "call"
        more = f'(WS "," WS call){MORE}' if is_parallel else ""
        return f'"[" WS call {more} WS "]"'

    def repeats(self, special: Mapping[str, int]) -> bool:
        return "[ARGS]" in special


TOOL_FORMATS: dict[str, type[ToolFormat]] = {
    "hermes": HermesFormat,
    "llama3": Llama3Format,
    "mistral": MistralFormat,
}


def detect_tool_format(template: str | None, vocabulary: Collection[str] = ()) -> str:
    """The name of the format that a chat template writes; `vocabulary`: names of the tokens, which
    decide where the template only mentions tools. Default: hermes."""
    source = template or ""
    places = [source, vocabulary] if "tools" in source else [source]
    for place in places:
        for name, tool_format in TOOL_FORMATS.items():
            if any(marker in place for marker in tool_format.markers):
                return name
    return "hermes"
