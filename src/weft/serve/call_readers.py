"""Readers of tool calls: what follows the opening of a call -> name and arguments, as they arrive.

    Call          {"name": "f", "arguments": {...}}; also "parameters", and "id" and "type", which
                  are ignored. Arguments may be absent or null: {}.
    NamedCall     {...}, the arguments of a function whose name came before
    CallsReader   calls one after the other, and what a format writes between and after them

A call is invalid as soon as its text cannot become valid: its name is unknown, a key is unknown or
occurs twice, the arguments are not an object, or anything is not JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from weft.serve.json_scanner import SPACE, JsonScanner

ARGUMENT_KEYS = ("arguments", "parameters")
OTHER_KEYS = ("id", "type")
HEADER = re.compile(r"([^\s\[{]+)\s*(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*")
AFTER_NAME = re.compile(r"\s*(?:\[[A-Z_]{0,7}\]?\w{0,64}(?:\[[A-Z]{0,4}\]?)?)?\s{0,8}")
"""What can become the part of HEADER after a name, and a little more."""
MAX_HEADER = 256


class Call:
    """One call. `read` is called with each part of the text until `is_done` or `is_invalid`."""

    def __init__(self, names: Collection[str]) -> None:
        self.names = names
        self.name: str | None = None
        self.is_done = self.is_invalid = False
        self.has_arguments = False
        """Whether the arguments have begun, and are an object."""
        self.fragments: list[str] = []
        self.expected = "{"
        self.key, self.keys = "", set[str]()
        self.scanner = JsonScanner()
        self.value: list[str] = []

    def read(self, text: str, at: int) -> int:
        """Read on from text[at]; returns the index after what was read, as JsonScanner.scan."""
        while at < len(text) and not self.is_done and not self.is_invalid:
            at = self.read_value(text, at) if self.expected == "value" else self.read_mark(text, at)
        return at

    def take_fragments(self) -> str:
        """The text of the arguments that has been read since the last call of this method; "{}" at
        the end of a call without any."""
        text = "".join(self.fragments)
        self.fragments.clear()
        return text if self.has_arguments or not self.is_done else "{}"

    def read_mark(self, text: str, at: int) -> int:
        """White space and one character between keys and values."""
        space = SPACE.match(text, at)
        at = space.end() if space else at
        if at == len(text):
            return at
        character = text[at]
        if character == "}" and self.expected in ("first key", ","):
            self.is_done, self.is_invalid = self.name is not None, self.name is None
            return at + self.is_done
        if self.expected in ("first key", "key"):
            self.key, is_valid = "", character == '"'
            following = "value"
        elif self.expected == "value of key":
            is_valid, following = self.can_begin(character), "value"
        else:
            is_valid = character == self.expected
            following = {"{": "first key", ":": "value of key", ",": "key"}.get(character, "")
        self.is_invalid = not is_valid
        self.expected = following
        if following == "value":
            self.scanner, self.value = JsonScanner(), []
            return at
        return at + is_valid

    def can_begin(self, character: str) -> bool:
        """Whether the value of the current key can begin with a character."""
        if self.key in ARGUMENT_KEYS:
            self.has_arguments = character == "{"
            return character in "{n"
        return character == '"' if self.key == "name" else True

    def read_value(self, text: str, at: int) -> int:
        """A part of a key, or of the value of a key."""
        end = self.scanner.scan(text, at)
        is_argument = self.key in ARGUMENT_KEYS and self.has_arguments
        (self.fragments if is_argument else self.value).append(text[at:end])
        self.is_invalid = self.scanner.is_invalid
        if self.scanner.is_done:
            self.end_value()
        return end

    def end_value(self) -> None:
        if not self.key:
            self.key, self.expected = json.loads("".join(self.value)), ":"
            kind = "arguments" if self.key in ARGUMENT_KEYS else self.key
            is_known = kind in ("name", "arguments", *OTHER_KEYS)
            self.is_invalid = not is_known or kind in self.keys
            self.keys.add(kind)
            return
        if self.key == "name":
            self.name = json.loads("".join(self.value))
            self.is_invalid = self.name not in self.names
        self.key, self.expected = "", ","


class NamedCall(Call):
    """The arguments of a call whose name is known."""

    def __init__(self, name: str) -> None:
        super().__init__([name])
        self.name, self.key, self.expected = name, "arguments", "value of key"

    def end_value(self) -> None:
        self.is_done = True


class CallsReader:
    """Calls of one format. The subclasses say what may surround them.

    `call` is the call that is being read. When it is done, `read` returns, and the next `read`
    continues after it. `is_done`: the calls are over; `is_invalid`: so is what can be read.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.names = names
        self.call: Call | None = None
        self.is_done = self.is_invalid = False

    @property
    def is_closing(self) -> bool:
        """Whether the last call is complete, and only its closing has not arrived."""
        return False

    def read(self, text: str, at: int) -> int:
        """Read on from text[at]; returns the index after what was read."""
        if self.call is not None and self.call.is_done:
            self.call = None
        while at < len(text) and not self.is_done and not self.is_invalid:
            if self.call is None:
                at = self.read_between(text, at)
                continue
            at = self.call.read(text, at)
            self.is_invalid = self.call.is_invalid
            if self.call.is_done:
                break
        return at

    def read_between(self, text: str, at: int) -> int:
        """Read what is not inside of a call: one character, or more."""
        raise NotImplementedError


class TagReader(CallsReader):
    """One call, and then white space and a closing tag."""

    def __init__(self, names: Collection[str], closing: str) -> None:
        super().__init__(names)
        self.call = Call(names)
        self.closing, self.num_closing = closing, 0

    @property
    def is_closing(self) -> bool:
        return self.call is None or self.call.is_done

    def read_between(self, text: str, at: int) -> int:
        if self.num_closing == 0 and text[at].isspace():
            return at + 1
        self.is_invalid = text[at] != self.closing[self.num_closing]
        self.num_closing += 1
        self.is_done = self.num_closing == len(self.closing) and not self.is_invalid
        return at + (not self.is_invalid)


class ListReader(CallsReader):
    """Calls that are separated by white space, semicolons or commas, as Llama 3 writes them."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self.call = Call(names)

    @property
    def is_closing(self) -> bool:
        return self.call is None or self.call.is_done

    def read_between(self, text: str, at: int) -> int:
        if text[at] == "{":
            self.call = Call(self.names)
            return at
        self.is_invalid = not text[at].isspace() and text[at] not in ";,"
        return at + (not self.is_invalid)


class MistralReader(CallsReader):
    """A JSON array of calls, one call, or `name[ARGS]{...}`; an id before [ARGS] is ignored."""

    def __init__(self, names: Collection[str]) -> None:
        super().__init__(names)
        self.state = "opening"
        """opening, header; in an array: item, comma; after the only call: end."""
        self.header = ""

    @property
    def is_closing(self) -> bool:
        return self.state == "comma" and (self.call is None or self.call.is_done)

    def read_between(self, text: str, at: int) -> int:
        character = text[at]
        if self.state == "end":
            self.is_done = True
            return at
        if character.isspace() and self.state != "header":
            return at + 1
        if character == "{" and self.state in ("opening", "item"):
            self.call = Call(self.names)
            self.state = "comma" if self.state == "item" else "end"
            return at
        if self.header or (self.state == "opening" and character != "["):
            return self.read_header(character, at)
        expected = {"opening": "[", "comma": ",]", "item": ""}[self.state]
        self.is_invalid = character not in expected
        self.is_done = character == "]" and not self.is_invalid
        self.state = "item"
        return at + (not self.is_invalid)

    def read_header(self, character: str, at: int) -> int:
        """A character of the name and what follows it, up to the arguments."""
        self.state = "header"
        if character == "{":
            header = HEADER.fullmatch(self.header)
            self.is_invalid = header is None or header[1] not in self.names
            if header is not None and not self.is_invalid:
                self.call, self.state = NamedCall(header[1]), "end"
            return at
        self.header += character
        can_continue = any(can_become_header(self.header, name) for name in self.names)
        self.is_invalid = len(self.header) > MAX_HEADER or not can_continue
        return at + (not self.is_invalid)


def can_become_header(text: str, name: str) -> bool:
    """Whether the text is the beginning of what may stand before the arguments of a function."""
    rest = text[len(name) :] if text.startswith(name) else None
    return name.startswith(text) or (rest is not None and AFTER_NAME.fullmatch(rest) is not None)
