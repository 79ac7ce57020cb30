"""The files of the web page, and rules of its modules that readers and the export rely on.

names_of(source)         top-level names of a module
long_functions(source)   functions of more than MAX_FUNCTION lines
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from weft.look.assets import page_assets, page_sources

FILES = {name: text.encode() for name, text in page_sources().items()}
SENT = {name: asset.content for name, asset in page_assets().items()}
"""As a browser receives them."""
MODULES = {name: data.decode() for name, data in FILES.items() if name.endswith(".js")}
STYLES = {name: data.decode() for name, data in FILES.items() if name.endswith(".css")}
STRINGS = {name: json.loads(data) for name, data in FILES.items() if name.startswith("strings/")}
SIZES_FILE = "tokens.css"

MAX_FUNCTION = 40
TOP_LEVEL = re.compile(
    r"^(?:export )?(?:async )?(?:function\*?|const|let|class) +(?:\{([^}]*)\}|(\w+))", re.MULTILINE
)
FUNCTION = re.compile(r"^( *).*(?:\bfunction\b.*|=>|\)) \{$")
STATEMENT = re.compile(r"^ *(?:\} )?(?:if|for|while|switch|else|catch|try|do)\b")
COLOR = re.compile(r"#[0-9a-fA-F]{3,8}\b|\b(?:rgba?|hsla?|oklch|lab)\(")
SIZE = re.compile(r"(?<![\w.#-])\d*\.?\d+(?:px|rem|em|pt|ch|vh|vw|ms)\b")
UNSAFE = re.compile(
    r"\.(?:inner|outer)HTML\b|insertAdjacentHTML|document\.write|\beval\(|new Function\(|srcdoc"
)
CALL = re.compile(r"""\bt\(\s*"([\w.]+)\"""")


def names_of(source: str) -> list[str]:
    """The names that a module declares at its top level."""
    names: list[str] = []
    for several, one in TOP_LEVEL.findall(source):
        names += [part.split(":")[-1].strip() for part in several.split(",")] if several else [one]
    return names


def long_functions(source: str) -> Iterator[str]:
    """'line: length' of functions that are too long; relies on the indentation."""
    lines = source.splitlines()
    for number, line in enumerate(lines):
        match = FUNCTION.match(line)
        if match is None or STATEMENT.match(line):
            continue
        closing = f"{match[1]}}}"
        end = next(i for i in range(number, len(lines)) if lines[i].startswith(closing))
        if end - number + 1 > MAX_FUNCTION:
            yield f"{number + 1}: {end - number + 1} lines"


def without_comments(source: str) -> str:
    """The source with its comments blanked, line for line."""
    blank = re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m[0]), source, flags=re.DOTALL)
    return re.sub(r"(?m)(?<![:\"'`])//.*$", "", blank)
