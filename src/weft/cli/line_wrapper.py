"""Streamed text -> text with line breaks between words, for a terminal of a given width.

A word is held back until its end is known. Differs from textwrap, which needs the whole text.
"""

from __future__ import annotations

import shutil

from weft.look.terminal import char_width

TAB = 8


class LineWrapper:
    """Breaks the lines of one text that comes piece by piece."""

    def __init__(self, columns: int | None = None) -> None:
        """`columns` None: as wide as the terminal is at the time."""
        self.fixed_columns = columns
        self.column = 0
        self.word = ""
        """The last word, as far as it has come."""
        self.width = 0
        """Of the word."""

    @property
    def columns(self) -> int:
        return self.fixed_columns or shutil.get_terminal_size().columns

    def add(self, text: str) -> str:
        """What can be printed after the next piece."""
        columns, parts = self.columns, []
        for char in text:
            width = char_width(char)
            if char in " \t\n":
                parts += [self.end_word(columns), self.space(char, columns)]
                continue
            # a line may be broken on both sides of a wide character, as in Chinese
            if width > 1 or self.width + width > columns:
                parts.append(self.end_word(columns))
            self.word += char
            self.width += width
            if width > 1:
                parts.append(self.end_word(columns))
        return "".join(parts)

    def end(self) -> str:
        """What is left of the text; the next piece begins a new one."""
        rest = self.end_word(self.columns)
        self.column = 0
        return rest

    def end_word(self, columns: int) -> str:
        """The word, on a new line if it does not fit."""
        is_too_long = self.column > 0 and self.column + self.width > columns
        self.column = self.width if is_too_long else self.column + self.width
        word, self.word, self.width = self.word, "", 0
        return "\n" + word if is_too_long else word

    def space(self, char: str, columns: int) -> str:
        """A space, tab or line break; nothing at the end of a line, where a break follows."""
        if char == "\n":
            self.column = 0
            return char
        width = 1 if char == " " else TAB - self.column % TAB
        if self.column + width > columns:
            return ""
        self.column += width
        return char
