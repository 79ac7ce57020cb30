"""`pick(table, name, what)`: a name -> the variant that a table lists under it.

A variant is one file and one line in a table; an unknown name answers with the nearest known one
and the whole list.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TypeVar

from weft.core.errors import ConfigError

Variant = TypeVar("Variant")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was probably meant to be, or None."""
    found = difflib.get_close_matches(name.lower(), list(known), n=1, cutoff=0.5)
    return found[0] if found else None


def pick(table: Mapping[str, Variant], name: str, what: str) -> Variant:
    """The entry of `table` called `name`; a ConfigError lists the choices when there is none."""
    if name in table:
        return table[name]
    guess = nearest(name, table)
    hint = f"Did you mean '{guess}'? " if guess else ""
    raise ConfigError([f"'{name}' is not a known {what}. {hint}Choose one of: {', '.join(table)}."])
