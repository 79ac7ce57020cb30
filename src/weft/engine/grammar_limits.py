"""Limits of schemas, regular expressions and grammars, checked before llguidance compiles them.

Its own limits stop most grammars that are too large, but not all: an integer that is a multiple of
a large prime is an automaton with as many states, and parts of a schema that must all hold are
multiplied. Numbers are bounded here; a schema with parts that must all hold is compiled in a child
process with limits of time and memory first (grammar_probe.py), and so is every grammar that a
caller has written.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

from weft.core.errors import UsageError, shown
from weft.text.template_sandbox import INHERITED

MAX_BYTES, MAX_DEPTH = 64 << 10, 64
MAX_REPEAT = 100_000
MAX_MULTIPLE = 10_000
"""Largest multipleOf without its power of ten, and largest sum of them in a schema."""
MAX_QUANTIFIERS = 1_000
"""Quantifiers (* + ? {n}) of all regular expressions of a grammar: time is quadratic in them."""
MAX_PATTERN_PROPERTIES = 100
"""Each is compared with all others."""
PROBE = Path(__file__).with_name("grammar_probe.py")
PROBE_SECONDS, PROBE_MEGABYTES, PROBE_WALL_SECONDS = 2, 512, 30

COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
DATA = ("const", "enum", "default", "examples")
"""Keywords whose values are data, not schemas."""
ALTERNATIVES = ("anyOf", "oneOf", "$ref")
ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    | {"$comment", "$schema", "$id", "$anchor", "$defs", "definitions", "x-guidance"}
)
"""Keywords that restrict nothing."""

REGEX_PART = re.compile(
    r"\\[pPxu]\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d*),?(\d*)\}|[*+?]|.", re.S
)
"""An escape, a class of characters, a repetition with its counts, a quantifier, a character."""
ESCAPE = re.compile(r"\\.", re.S)

LARK_PART = re.compile(r'//[^\n]*|#[^\n]*|"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|[()\[\]{}]')
"""A comment, a string, a regular expression or a bracket."""


def check_regex(pattern: str) -> int:
    """Raise a UsageError for a regular expression beyond the limits; returns its quantifiers."""
    check_text(pattern, "the regular expression")
    check_bytes(len(pattern.encode()), "the regular expression")
    check_regex_depth(pattern, "the regular expression")
    quantifiers = [part for part in REGEX_PART.finditer(pattern) if part[0][0] in "*+?{"]
    for part in quantifiers:
        for count in (part[1], part[2]):
            if count and (len(count) > 9 or int(count) > MAX_REPEAT):
                raise UsageError(
                    f"the regular expression repeats something {count[:20]} times: at most "
                    f"{MAX_REPEAT} are allowed. Use * or +, or a smaller number."
                )
    check_quantifiers(len(quantifiers))
    return len(quantifiers)


def check_regex_depth(pattern: str, what: str) -> None:
    """Raise a UsageError for groups, or classes of characters, that are nested too deep."""
    depth = 0
    for part in REGEX_PART.finditer(pattern):
        depth += (part[0] == "(") - (part[0] == ")")
        # in this dialect a bracket inside a class opens a class
        inner = ESCAPE.sub("", part[0]).count("[") if part[0].startswith("[") else 0
        if depth + inner > MAX_DEPTH:
            raise UsageError(
                f"{what} has more than {MAX_DEPTH} nested groups: at most {MAX_DEPTH} are allowed. "
                "Use a simpler regular expression."
            )


def check_lark(source: str) -> None:
    """Raise a UsageError for a grammar in Lark or GBNF beyond the limits."""
    check_text(source, "the grammar")
    check_bytes(len(source.encode()), "the grammar")
    depth = 0
    for part in LARK_PART.finditer(source):
        if part[0].startswith("/") and not part[0].startswith("//"):
            check_regex_depth(part[0][1:-1], "a regular expression of the grammar")
        depth += (part[0] in "([{") - (part[0] in ")]}")
        if depth > MAX_DEPTH:
            raise UsageError(
                f"the grammar has more than {MAX_DEPTH} nested brackets: at most {MAX_DEPTH} are "
                "allowed. Use more rules."
            )


def check_quantifiers(number: int) -> None:
    if number > MAX_QUANTIFIERS:
        raise UsageError(
            f"the grammar has {number} quantifiers (* + ? {{n}}): at most {MAX_QUANTIFIERS} are "
            "allowed. Use a simpler regular expression."
        )


def check_bytes(number: int, what: str) -> None:
    if number > MAX_BYTES:
        raise UsageError(
            f"{what} has {number} bytes: at most {MAX_BYTES} are allowed. Use a simpler one."
        )


def check_text(text: str, what: str) -> None:
    """Raise a UsageError for half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"{what} has the character {text[error.start]!a}, half of a surrogate pair, which is "
            "not text. Remove it."
        ) from None


def check_schema(schema: Mapping[str, Any]) -> bool:
    """Raise a UsageError for a schema beyond the limits; returns whether some of its parts must all
    hold, so that its size says nothing about the size of the grammar."""
    multiples = quantifiers = pattern_properties = 0
    is_conjunction = False
    for one in schemas_in(schema):
        check_counts(one)
        multiples += multiple_size(one.get("multipleOf"))
        patterns = one.get("patternProperties")
        names = list(patterns) if isinstance(patterns, Mapping) else []
        pattern_properties += len(names)
        pattern = one.get("pattern")
        names += [pattern] if isinstance(pattern, str) else []
        quantifiers += sum(check_regex(str(name)) for name in names)
        is_conjunction |= has_conjunction(one)
    check_quantifiers(quantifiers)
    if multiples > MAX_MULTIPLE:
        raise UsageError(
            f"the multipleOf of the JSON schema are {multiples} together, without their powers of "
            f"ten: at most {MAX_MULTIPLE} are allowed. Use smaller numbers, or leave them out."
        )
    if pattern_properties > MAX_PATTERN_PROPERTIES:
        raise UsageError(
            f"the JSON schema has {pattern_properties} patternProperties: at most "
            f"{MAX_PATTERN_PROPERTIES} are allowed. Use fewer."
        )
    return is_conjunction


def schemas_in(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """All objects of a schema that are not data. Checks depth, size and characters; does not
    recurse, and ends for objects that contain themselves."""
    stack: list[tuple[Any, int, bool]] = [(schema, 1, False)]
    size = 0
    while stack:
        value, depth, is_data = stack.pop()
        if depth > MAX_DEPTH:
            raise UsageError(
                f"the JSON schema is more than {MAX_DEPTH} levels deep: at most {MAX_DEPTH} are "
                "allowed. Use $ref and $defs for parts that repeat."
            )
        size += 1
        if isinstance(value, str):
            check_text(value, "the JSON schema")
            size += len(value.encode())
        elif isinstance(value, Mapping):
            if not is_data:
                yield value
            for key, item in value.items():
                check_text(str(key), "the JSON schema")
                size += 3 + len(str(key).encode())
                stack.append((item, depth + 1, is_data or key in DATA))
        elif isinstance(value, (list, tuple)):
            stack.extend((item, depth + 1, is_data) for item in value)
        check_bytes(size, "the JSON schema")


def check_counts(schema: Mapping[str, Any]) -> None:
    for name in COUNTS:
        count = schema.get(name)
        if isinstance(count, (int, float)) and count > MAX_REPEAT:
            number = f"{count:g}" if count < 10**18 else shown(count)
            raise UsageError(
                f"{name} of the JSON schema is {number}: at most {MAX_REPEAT} is allowed. Use a "
                "smaller number, or leave it out."
            )


def multiple_size(multiple: object) -> int:
    """The digits of a multipleOf as an integer: 7 for 0.07 and for 700. Its automaton has as many
    states."""
    if isinstance(multiple, bool) or not isinstance(multiple, (int, float)):
        return 0
    if isinstance(multiple, float) and not isfinite(multiple):
        return 0  # not JSON, which is refused later
    if isinstance(multiple, int) and abs(multiple) > 10**18:
        return MAX_MULTIPLE + 1
    try:
        digits = Decimal(str(multiple)).normalize().as_tuple().digits
    except InvalidOperation:
        return 0
    return int("".join(map(str, digits)))


def has_conjunction(schema: Mapping[str, Any]) -> bool:
    """Whether parts of one object must all hold: allOf, or alternatives beside other keywords."""
    keys = schema.keys() - ANNOTATIONS
    return "allOf" in keys or (len(keys) > 1 and any(name in keys for name in ALTERNATIVES))


@lru_cache(maxsize=256)
def probe(lark: str, advice: str) -> str:
    """Compile a grammar in a child process with limits; raises a UsageError if it exceeds them.
    Returns why llguidance rejects it; "": it does not."""
    command = [sys.executable, "-I", "-S", str(PROBE), str(PROBE_SECONDS), str(PROBE_MEGABYTES)]
    folders = [str(Path(sys.modules["llguidance"].__file__ or "").parents[1])]
    try:
        done = subprocess.run(
            [*command, *folders],
            input=lark.encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PROBE_WALL_SECONDS,
            env={name: os.environ[name] for name in INHERITED if name in os.environ},
            check=False,
        )
        if done.returncode == 0:
            return done.stdout.decode()
    except subprocess.TimeoutExpired:
        pass
    raise UsageError(
        f"the grammar takes more than {PROBE_SECONDS} s or {PROBE_MEGABYTES} MB to compile{advice}"
    )
