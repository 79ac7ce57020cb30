"""`JsonScanner`: one JSON value that arrives in parts; says where it ends, or where it is invalid.

Accepts what RFC 8259 allows, except for nesting deeper than 128 levels and numbers longer than
1,000 characters, which parsers of clients reject. Differs from `json.loads` in that each character
is examined once, however the text is split, and that it knows an invalid text before its end.
"""

from __future__ import annotations

import re

MAX_DEPTH = 128
MAX_NUMBER = 1_000

SPACE = re.compile(r"[ \t\n\r]*")
STRING_PART = re.compile(r'[^"\\\x00-\x1f]*')
NUMBER_PART = re.compile(r"[-+.0-9eE]*")
NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
NUMBER_BEGINNING = re.compile(
    r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:(?<=[0-9])[eE][+-]?[0-9]*)?)?"
)
ESCAPED, HEX_DIGITS = '"\\/bfnrtu', "0123456789abcdefABCDEF"
WORDS = {"t": "true", "f": "false", "n": "null"}


class JsonScanner:
    """One value. `scan` is called with each part of the text until `is_done` or `is_invalid`."""

    def __init__(self) -> None:
        self.is_done = self.is_invalid = False
        self.expected = "value"
        """value, item (or the end of an array), key, member (or the end of an object), colon,
        comma (or an end); inside of a token: string, escape, hex, number, word."""
        self.containers: list[str] = []
        self.is_key = False
        self.hex_digits = 0
        self.token = ""
        """The number so far; of a word, what has not arrived yet."""

    def scan(self, text: str, at: int = 0) -> int:
        """Read on from text[at]; returns the index after what was read: of the first character
        after the value, of the first invalid character, or the length of the text."""
        while at < len(text) and not self.is_done and not self.is_invalid:
            at = self.scan_token(text, at)
        return at

    def scan_token(self, text: str, at: int) -> int:
        match self.expected:
            case "string":
                return self.scan_string(text, at)
            case "number":
                return self.scan_number(text, at)
            case "escape":
                return self.take(text[at] in ESCAPED, at, self.after_escape(text[at]))
            case "hex":
                self.hex_digits -= 1
                following = "hex" if self.hex_digits else "string"
                return self.take(text[at] in HEX_DIGITS, at, following)
            case "word":
                is_next, self.token = text[at] == self.token[0], self.token[1:]
                at = self.take(is_next, at, "word")
                return at if self.token or self.is_invalid else self.end_value(at)
        space = SPACE.match(text, at)
        at = space.end() if space else at
        return self.scan_structure(text[at], at) if at < len(text) else at

    def take(self, is_valid: bool, at: int, following: str) -> int:
        """Accept one character, or stop before it."""
        self.is_invalid = not is_valid
        self.expected = following
        return at + is_valid

    def after_escape(self, character: str) -> str:
        self.hex_digits = 4
        return "hex" if character == "u" else "string"

    def scan_string(self, text: str, at: int) -> int:
        part = STRING_PART.match(text, at)
        at = part.end() if part else at
        if at == len(text):
            return at
        if text[at] == '"':
            at = self.take(True, at, "colon")
            return at if self.is_key else self.end_value(at)
        return self.take(text[at] == "\\", at, "escape")

    def scan_number(self, text: str, at: int) -> int:
        part = NUMBER_PART.match(text, at)
        end = part.end() if part else at
        while at < end:
            if len(self.token) > MAX_NUMBER or not NUMBER_BEGINNING.fullmatch(
                self.token + text[at]
            ):
                self.is_invalid = True
                return at
            self.token += text[at]
            at += 1
        if at == len(text):
            return at
        self.is_invalid = NUMBER.fullmatch(self.token) is None
        return at if self.is_invalid else self.end_value(at)

    def scan_structure(self, character: str, at: int) -> int:
        """A character between tokens, or the first of a token."""
        if character in "}]":
            return self.close(character, at)
        if character == "," and self.expected == "comma":
            return self.take(True, at, "key" if self.containers[-1] == "{" else "value")
        if character == ":" and self.expected == "colon":
            return self.take(True, at, "value")
        if self.expected in ("key", "member"):
            self.is_key = True
            return self.take(character == '"', at, "string")
        self.is_invalid = self.expected not in ("value", "item")
        return at if self.is_invalid else self.begin_value(character, at)

    def begin_value(self, character: str, at: int) -> int:
        self.is_key = False
        if character in "{[":
            self.containers.append(character)
            is_deep = len(self.containers) > MAX_DEPTH
            return self.take(not is_deep, at, "member" if character == "{" else "item")
        if character == '"':
            return self.take(True, at, "string")
        if character in WORDS:
            self.token = WORDS[character][1:]
            return self.take(True, at, "word")
        self.token = ""
        self.is_invalid = character not in "-0123456789"
        self.expected = "number"
        return at

    def close(self, character: str, at: int) -> int:
        opening = "{" if character == "}" else "["
        can_close = self.expected in ("comma", "member" if opening == "{" else "item")
        if not can_close or self.containers[-1] != opening:
            self.is_invalid = True
            return at
        self.containers.pop()
        return self.end_value(at + 1)

    def end_value(self, at: int) -> int:
        self.expected = "comma"
        self.is_done = not self.containers
        return at
