"""Operators and methods whose result may be far larger than what enters: weighed, then done."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedEnvironment, SandboxedFormatter

from weft.text.sandbox.limits import (
    MAX_BITS,
    MAX_WIDTH,
    LimitError,
    budget,
    listed,
    text_of,
    weigh,
)

PRINTF = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(\*|\d+)?(?:\.(\*|\d+)?)?[hlL]?(.)?", re.DOTALL)
NUMBER = re.compile(r"\d+")


def check_operator(operator: str, left: Any, right: Any) -> None:
    """A LimitError before the operator makes something too large."""
    budget().spend()
    if operator == "*":
        check_repeat(left, right)
        check_repeat(right, left)
    if operator == "%" and isinstance(left, str):
        check_printf(left, right)
    if operator == "+":
        if isinstance(left, str) and isinstance(right, str):
            budget().allow_chars(len(left) + len(right))
        elif isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
            budget().allow_items(len(left) + len(right))
    if isinstance(left, int) and isinstance(right, int):
        check_numbers(operator, left, right)


def check_repeat(value: Any, times: Any) -> None:
    if isinstance(times, int):
        if isinstance(value, str):
            budget().allow_chars(len(value) * times)
        elif isinstance(value, (list, tuple)):
            budget().allow_items(weigh(value).items * max(times, 0))


def check_numbers(operator: str, left: int, right: int) -> None:
    bits = left.bit_length() * right if operator == "**" else 0
    if operator == "*":
        bits = left.bit_length() + right.bit_length()
    if bits > MAX_BITS:
        raise LimitError(f"it makes a number of more than {MAX_BITS} bits")


def check_printf(template: str, values: Any) -> None:
    """'%10s' % values: no width from outside or beyond all sense, and no text too long."""
    for width, precision, kind in PRINTF.findall(template):
        for number in (width, precision):
            if number == "*":
                raise SecurityError("it formats with a width that is not written out")
            check_digits(number)
        if kind in ("r", "a"):
            raise SecurityError(f"it formats with %{kind}, which is not text")
    if isinstance(values, Mapping):
        values = list(values.values())
    parts = values if isinstance(values, (list, tuple)) else [values]
    longest = max((len(text_of(part)) for part in parts), default=0)
    budget().allow_chars(len(template) + template.count("%") * longest)


def check_width(width: Any) -> None:
    if isinstance(width, (int, float)) and abs(width) > MAX_WIDTH:
        raise LimitError(f"it pads, fills or indents by more than {MAX_WIDTH}")


def check_digits(digits: str) -> None:
    """A width as it is written; zeros may stand before it."""
    check_width(int(digits or 0) if len(digits) < 1000 else MAX_WIDTH + 1)


def check_padding(text: str, width: Any = 0, *_: Any) -> None:
    check_width(width)


def check_replace(text: str, old: Any, new: Any, *_: Any) -> None:
    """Each place may grow by the new text; an empty old one is at every place."""
    if isinstance(old, str) and isinstance(new, str):
        budget().allow_chars(len(text) + text.count(old) * len(new))


def join(separator: str, values: Iterable[Any]) -> str:
    """The values as one text, its length known before it is made."""
    parts = [text_of(value) for value in listed(values)]
    budget().allow_chars(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


def concat(*values: Any) -> str:
    """a ~ b ~ c."""
    return join("", values)


METHOD_CHECKS: dict[str, Callable[..., None]] = {
    "center": check_padding,
    "ljust": check_padding,
    "rjust": check_padding,
    "zfill": check_padding,
    "replace": check_replace,
}
"""Methods of text that grow it."""


class Format:
    """The method `format` of one text, with fields that are weighed."""

    def __init__(self, environment: SandboxedEnvironment, text: str, takes_map: bool) -> None:
        self.environment, self.text, self.takes_map = environment, text, takes_map

    def __call__(self, *args: Any, **kwargs: Any) -> str:
        if self.takes_map:
            args, kwargs = (), dict(*args)
        return WeighedFormatter(self.environment).vformat(self.text, args, kwargs)


class WeighedFormatter(SandboxedFormatter):
    """Fields are looked up as everywhere in the sandbox; their widths and texts are bounded."""

    def __init__(self, environment: SandboxedEnvironment) -> None:
        super().__init__(environment)
        self.chars = 0

    def format_field(self, value: Any, format_spec: str) -> str:
        for number in NUMBER.findall(format_spec):
            check_digits(number)
        plain = value if isinstance(value, (str, int, float)) else text_of(value)
        result = format(plain, format_spec)
        self.chars += len(result)
        budget().allow_chars(self.chars)
        return result

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        if conversion in ("r", "a"):
            raise SecurityError(f"it formats with !{conversion}, which is not text")
        return value if conversion is None else text_of(value)
