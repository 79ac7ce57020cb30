"""Tool formats: how the families of models write tool calls in their text.

hermes    <tool_call>{"name": "f", "arguments": {...}}</tool_call>       Hermes, Qwen
llama3    {"name": "f", "parameters": {...}}, as the whole text or after <|python_tag|>
mistral   [TOOL_CALLS][{"name": "f", "arguments": {...}}, ...] or [TOOL_CALLS]f[ARGS]{...}
"""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from weft.serve.call_readers import CallsReader, ListReader, MistralReader, TagReader


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


class HermesFormat(ToolFormat):
    name = "hermes"
    markers = ("<tool_call>",)
    visible_special = ("<tool_call>", "</tool_call>")

    def reader(self, names: Collection[str]) -> CallsReader:
        return TagReader(names, "</tool_call>")


class Llama3Format(ToolFormat):
    name = "llama3"
    markers = ("<|python_tag|>",)
    visible_special = ("<|python_tag|>",)
    has_bare_calls = True

    def reader(self, names: Collection[str]) -> CallsReader:
        return ListReader(names)


class MistralFormat(ToolFormat):
    name = "mistral"
    markers = ("[TOOL_CALLS]",)
    visible_special = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
    id_prefix, id_length = "", 9  # Mistral's templates reject other ids

    def reader(self, names: Collection[str]) -> CallsReader:
        return MistralReader(names)


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
