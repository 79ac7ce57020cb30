"""`pick(table, name, what)`: look up a variant by name.

A variant is one file and one table entry; an unknown name raises an error with the nearest known
name and the whole list.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from weft.core.errors import ConfigError

Variant = TypeVar("Variant")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was probably meant to be, or None."""
    matches = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return matches[0] if matches else None


def pick(table: Mapping[str, Variant], name: str, what: str) -> Variant:
    """The entry of `table` called `name`; raises a ConfigError that lists the choices."""
    if name in table:
        return table[name]
    guess = nearest(name, table)
    hint = f"Did you mean '{guess}'? " if guess else ""
    raise ConfigError([f"'{name}' is not a known {what}. {hint}Choose one of: {', '.join(table)}."])
