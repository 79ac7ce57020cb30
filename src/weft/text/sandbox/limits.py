"""`Budget`: what one rendering may still write, keep and do; and what a value weighs.

Three bounds: characters of a text (and eight times as many written in all), items of a value with
everything inside it, and steps. Steps are counted, so that a template ends at the same place on
every machine; seconds of processor time are bounded too, for what a step does not see.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Undefined
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.utils import Namespace

MAX_DEPTH = 64
"""Lists inside lists."""
MAX_BITS = 4096
"""The largest whole number."""
MAX_WIDTH = 10_000
"""The most that text may be padded to, indented by, or lists filled up to."""
CLOCK_EVERY = 64
"""Steps between two looks at the clock."""


class LimitError(TemplateRuntimeError):
    """A template that wants too much."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one rendering."""

    chars: int = 1 << 20
    items: int = 100_000
    steps: int = 100_000
    seconds: float = 1.0


@dataclass
class Budget:
    """What is left of the limits."""

    limits: Limits
    now: Callable[[], float] = time.thread_time
    written: int = 0
    steps: int = 0
    deadline: float = field(init=False)

    def __post_init__(self) -> None:
        self.deadline = self.now() + self.limits.seconds

    def spend(self, steps: int = 1) -> None:
        """Count steps; a LimitError when they are used up."""
        before, self.steps = self.steps, self.steps + steps
        if self.steps > self.limits.steps:
            raise LimitError(f"it takes more than {self.limits.steps} steps")
        if before // CLOCK_EVERY != self.steps // CLOCK_EVERY and self.now() > self.deadline:
            raise LimitError(f"it takes more than {self.limits.seconds} seconds")

    def write(self, chars: int) -> None:
        """Count text that goes into the output or into a variable."""
        self.spend()
        self.written += chars
        if self.written > 8 * self.limits.chars:
            raise LimitError(f"it writes more than {8 * self.limits.chars} characters")

    def allow_chars(self, chars: int) -> None:
        """Ask before a text of this length is made."""
        if chars > self.limits.chars:
            raise LimitError(f"it makes a text of more than {self.limits.chars} characters")
        self.spend(1 + chars // 256)

    def allow_items(self, items: int) -> None:
        """Ask before a value with so many items is made."""
        if items > self.limits.items:
            raise LimitError(f"it makes a value of more than {self.limits.items} items")
        self.spend(1 + items // 4)


CURRENT: ContextVar[Budget] = ContextVar("budget")
"""The budget of the rendering that runs here."""


def budget() -> Budget:
    return CURRENT.get()


@dataclass
class Weight:
    """A value with everything inside it."""

    items: int = 0
    chars: int = 0
    depth: int = 0


def weigh(value: Any) -> Weight:
    """Count what a plain value holds, each thing as often as it would be written; a LimitError as
    soon as that is too much."""
    limits, found = budget().limits, Weight()
    stack: list[tuple[Any, int]] = [(value, 1)]
    while stack:
        here, depth = stack.pop()
        found.items += 1
        found.depth = max(found.depth, depth)
        if isinstance(here, str):
            found.chars += len(here)
        elif isinstance(here, (list, tuple)):
            stack.extend((item, depth + 1) for item in here)
        elif isinstance(here, dict):
            stack.extend((item, depth + 1) for pair in here.items() for item in pair)
        if found.items + len(stack) > limits.items or found.depth > MAX_DEPTH:
            raise LimitError(
                f"it makes a value of more than {limits.items} items, or {MAX_DEPTH} deep"
            )
    budget().spend(1 + found.items // 4)
    return found


def checked(value: Any) -> Any:
    """The value, when it is not too large; an iterator comes back as one that counts."""
    if isinstance(value, str):
        budget().allow_chars(len(value))
    elif isinstance(value, (list, tuple, dict)):
        weigh(value)
    elif isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise LimitError(f"it makes a number of more than {MAX_BITS} bits")
    elif isinstance(value, Iterator):
        return counted(value)
    return value


def counted(values: Iterable[Any]) -> Iterator[Any]:
    """The values, each of which is a step."""
    for value in values:
        budget().spend()
        yield value


def listed(values: Any) -> list[Any]:
    """The values as a list that is not too long."""
    found = []
    for value in counted(values):
        found.append(value)
        if len(found) > budget().limits.items:
            raise LimitError(f"it makes a list of more than {budget().limits.items} items")
    return found


def text_of(value: Any) -> str:
    """What a plain value looks like in the output; anything else has no text."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (list, tuple, dict)):
        weight = weigh(value)
        refuse_hidden(value)
        budget().allow_chars(weight.chars + weight.items)
        return str(value)
    if value is None or isinstance(value, (bool, int, float, range, Undefined)):
        return str(value)
    raise SecurityError(f"it writes a {type(value).__name__}, which is not text")


def refuse_hidden(value: Any) -> None:
    """A SecurityError for a list with something in it whose text is not plain."""
    if isinstance(value, dict):
        value = [item for pair in value.items() for item in pair]
    if isinstance(value, (list, tuple)):
        for item in value:
            refuse_hidden(item)
    elif isinstance(value, Namespace) or not (
        value is None or isinstance(value, (str, int, float, range, Undefined))
    ):
        raise SecurityError(f"it writes a {type(value).__name__}, which is not text")
