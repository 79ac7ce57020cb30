"""`OutputParser`: generated text, as it arrives -> text, reasoning and tool calls, as deltas.

    parser = OutputParser(HermesFormat(), REASONING_FORMATS["think"], ["weather"])
    parser.feed("<think>hm</think>Let me see.<tool")     [ReasoningDelta, TextDelta]
    parser.feed('_call>{"name": "weather", ...')         [ToolCallStart, ToolCallDelta]
    parser.finish()

The joined deltas do not depend on how the text is split. Held back is only what may be the
beginning of a tag, and white space that is dropped where a tag follows:

- A call whose text is malformed (no JSON, an unknown function or structure, or not complete at the
  end) is text, exactly as generated. So its deltas are returned when it is complete. With
  `stream_arguments`, they are returned as they arrive; this is meant for text that a grammar
  constrains. If such a call turns out to be malformed after its arguments have begun, they stay as
  they are, and the text goes on after them.
- A closing tag that is missing, at the end or elsewhere, does not make a complete call malformed.
- White space next to a tag of reasoning is dropped, as templates do it when they write an earlier
  answer; so is white space between calls, and text before or after a call that is only white space.
- Reasoning is recognized at the beginning of a text, and calls only outside of it.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal

from weft.engine.detokenizer import overlap
from weft.serve.call_readers import Call, CallsReader
from weft.serve.tool_formats import ToolFormat

ALPHANUMERIC = string.ascii_letters + string.digits


@dataclass(frozen=True)
class TextDelta:
    text: str


@dataclass(frozen=True)
class ReasoningDelta:
    text: str


@dataclass(frozen=True)
class ToolCallStart:
    index: int
    """Number of the call in this text, from 0."""
    id: str
    name: str


@dataclass(frozen=True)
class ToolCallDelta:
    index: int
    arguments_fragment: str
    """JSON text, as generated."""


Delta = TextDelta | ReasoningDelta | ToolCallStart | ToolCallDelta


@dataclass(frozen=True)
class ReasoningFormat:
    """The tags of a model's reasoning, which precedes its answer."""

    start: str
    end: str

    @property
    def visible_special(self) -> tuple[str, ...]:
        """Special tokens whose text the detokenizer must output for this parser."""
        return self.start, self.end

    def is_open_after(self, prompt: str) -> bool:
        """Whether the generated text continues reasoning: the prompt ends with its start tag."""
        return prompt.rstrip().endswith(self.start)

    def is_open_in(self, content: str) -> bool:
        """The same for a message of the assistant that is continued."""
        return content.rfind(self.start) > content.rfind(self.end)


REASONING_FORMATS = {
    "think": ReasoningFormat("<think>", "</think>"),
    "mistral": ReasoningFormat("[THINK]", "[/THINK]"),
}
"""think: Qwen 3, DeepSeek R1 and models derived from them; mistral: Magistral."""


def detect_reasoning_format(template: str | None) -> str | None:
    """The name of the reasoning format that a chat template mentions; None: it has none."""
    source = template or ""
    matches = (name for name, tags in REASONING_FORMATS.items() if tags.end in source)
    return next(matches, None)


def random_alphanumeric(length: int) -> str:
    return "".join(secrets.choice(ALPHANUMERIC) for _ in range(length))


class OutputParser:
    """Parses one generated text. Without a tool format or reasoning format, calls or reasoning are
    returned as text."""

    def __init__(
        self,
        tool_format: ToolFormat | None,
        reasoning: ReasoningFormat | None,
        tools: Collection[str] = (),
        *,
        is_in_reasoning: bool = False,
        stream_arguments: bool = False,
        max_calls: int | None = None,
        new_id: Callable[[int], str] = random_alphanumeric,
    ) -> None:
        """`tools`: names of the functions. `is_in_reasoning`: the prompt ends inside of reasoning.
        `max_calls`: further calls are dropped. `new_id`: returns n random characters for the id of
        a call."""
        self.tool_format, self.reasoning, self.tools = tool_format, reasoning, frozenset(tools)
        self.stream_arguments, self.max_calls, self.new_id = stream_arguments, max_calls, new_id
        self.markers = tool_format.markers if tool_format is not None and tools else ()
        self.num_started = 0
        """Number of calls so far, including dropped ones."""
        self.pending = ""
        """Text that is not assigned to a delta yet."""
        self.deltas: list[Delta] = []
        self.mode: Literal["reasoning", "before text", "text", "call"] = "before text"
        self.before: Literal["start", "reasoning", "call"] = "start"
        """What precedes the white space in the mode "before text"."""
        self.has_reasoned = reasoning is None or is_in_reasoning
        self.is_reasoning_empty = True
        self.reader: CallsReader | None = None
        self.raw: list[str] = []
        """Text since the marker, or since the last complete call; returned as text if the call is
        malformed."""
        self.streamed: Call | None = None
        """The call whose ToolCallStart was returned and that is not complete."""
        if reasoning is not None and is_in_reasoning:
            self.mode = "reasoning"

    def feed(self, text: str) -> list[Delta]:
        """Add generated text; returns the deltas that are certain."""
        self.pending += text
        while self.pending and self.step():
            pass
        return self.take_deltas()

    def finish(self) -> list[Delta]:
        """End the text; returns the remaining deltas."""
        if self.mode == "call":
            assert self.reader is not None, "a call without a reader"
            if not self.reader.is_closing and self.streamed is None:
                self.emit_text("".join(self.raw))
        elif self.mode == "reasoning":
            self.emit_reasoning(self.pending.rstrip())
        elif self.mode == "text" or self.before == "start" or self.pending.strip():
            self.emit_text(self.pending)  # white space alone is dropped after reasoning or a call
        self.pending = ""
        return self.take_deltas()

    @property
    def num_calls(self) -> int:
        """Number of returned calls, on which the finish reason of some protocols depends."""
        return self.num_started if self.max_calls is None else min(self.num_started, self.max_calls)

    def step(self) -> bool:
        """Process some of the pending text; returns whether more can be processed."""
        match self.mode:
            case "reasoning":
                return self.read_reasoning()
            case "before text":
                return self.read_before_text()
            case "text":
                return self.read_text()
            case "call":
                return self.read_call()

    def read_reasoning(self) -> bool:
        assert self.reasoning is not None, "reasoning without a format"
        body, tag, rest = self.pending.partition(self.reasoning.end)
        if tag:
            self.emit_reasoning(body.rstrip())
            self.mode, self.before, self.pending = "before text", "reasoning", rest
            return True
        body = body[: len(body) - overlap(body, self.reasoning.end)].rstrip()
        self.emit_reasoning(body)
        self.pending = self.pending[len(body) :]
        return False

    def read_before_text(self) -> bool:
        """White space at the beginning, after reasoning or after a call. It is dropped if a tag
        follows, and after reasoning."""
        body, tags = self.pending.lstrip(), self.opening_tags()
        self.pending = body if self.before == "reasoning" else self.pending
        tag = next((tag for tag in tags if body.startswith(tag)), None)
        if tag is not None and self.reasoning is not None and tag == self.reasoning.start:
            self.mode, self.has_reasoned, self.pending = "reasoning", True, body[len(tag) :]
        elif tag is not None:
            self.begin_call(len(self.pending) - len(body), tag)
        elif any(tag.startswith(body) for tag in tags) or not body:
            return False  # the whole body may be the beginning of a tag
        else:
            self.mode = "text"
        return True

    def opening_tags(self) -> list[str]:
        """The tags that are recognized in the mode "before text"."""
        tags = list(self.markers)
        if self.reasoning is not None and not self.has_reasoned and self.before == "start":
            tags.append(self.reasoning.start)
        if self.markers and self.tool_format is not None and self.before != "call":
            tags += ["{"] if self.tool_format.has_bare_calls else []
        return tags

    def read_text(self) -> bool:
        places = [(self.pending.find(tag), tag) for tag in self.markers if tag in self.pending]
        if places:
            start, tag = min(places)
            self.emit_text(self.pending[:start])
            self.pending = self.pending[start:]
            self.begin_call(0, tag)
            return True
        held = max((overlap(self.pending, tag) for tag in self.markers), default=0)
        end = len(self.pending) - held
        self.emit_text(self.pending[:end])
        self.pending = self.pending[end:]
        return False

    def begin_call(self, start: int, tag: str) -> None:
        """Read a call whose tag is at `start` of the pending text, after white space."""
        assert self.tool_format is not None, "a tag without a tool format"
        end = start + (0 if tag == "{" else len(tag))  # "{" belongs to the call
        self.raw, self.pending = [self.pending[:end]], self.pending[end:]
        self.mode, self.reader = "call", self.tool_format.reader(self.tools)

    def read_call(self) -> bool:
        assert self.reader is not None, "a call without a reader"
        end = self.reader.read(self.pending, 0)
        self.raw.append(self.pending[:end])
        self.pending = self.pending[end:]
        call = self.reader.call
        if call is not None:
            self.emit_call(call)
        if self.reader.is_invalid and self.reader.is_closing:
            # not a closing, but possibly the next marker
            self.mode, self.before = "before text", "call"
            self.pending = "".join(self.raw) + self.pending
        elif self.reader.is_invalid:
            self.emit_text("" if self.streamed is not None else "".join(self.raw))
            self.mode, self.streamed = "text", None
        elif self.reader.is_done:
            self.mode, self.before = "before text", "call"
        return True

    def emit_call(self, call: Call) -> None:
        """Emit the parts of a call that are certain."""
        has_begun = call.has_arguments and call.name in self.tools
        if self.streamed is None and (call.is_done or (self.stream_arguments and has_begun)):
            assert call.name is not None, "a complete call without a name"
            self.streamed = call
            self.num_started += 1
            if self.is_wanted:
                self.deltas.append(ToolCallStart(self.num_started - 1, self.call_id(), call.name))
        if self.streamed is call:
            fragment = call.take_fragments()
            if fragment and self.is_wanted:
                self.deltas.append(ToolCallDelta(self.num_started - 1, fragment))
        if call.is_done:
            self.raw, self.streamed = [], None

    @property
    def is_wanted(self) -> bool:
        """Whether the current call is within max_calls."""
        return self.num_started == self.num_calls

    def call_id(self) -> str:
        assert self.tool_format is not None, "a call without a tool format"
        return self.tool_format.id_prefix + self.new_id(self.tool_format.id_length)

    def emit_text(self, text: str) -> None:
        if text:
            self.deltas.append(TextDelta(text))

    def emit_reasoning(self, text: str) -> None:
        text = text.lstrip() if self.is_reasoning_empty else text
        if text:
            self.is_reasoning_empty = False
            self.deltas.append(ReasoningDelta(text))

    def take_deltas(self) -> list[Delta]:
        """Return and clear the deltas, with adjacent ones of the same kind joined."""
        joined: list[Delta] = []
        for delta in self.deltas:
            last = joined[-1] if joined else None
            if isinstance(delta, TextDelta) and isinstance(last, TextDelta):
                joined[-1] = TextDelta(last.text + delta.text)
            elif isinstance(delta, ReasoningDelta) and isinstance(last, ReasoningDelta):
                joined[-1] = ReasoningDelta(last.text + delta.text)
            else:
                joined.append(delta)
        self.deltas = []
        return joined
