"""The settings of a recipe as rows: path, type, default, allowed values and meaning.

Read from the settings classes: fields, annotations, limits, and the docstring below each field. A
section that can have several kinds has the settings of all of them, with the kinds they belong to.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from weft.core.config import config_classes, kinds_of

LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below", "min_length": "from"}


@dataclass(frozen=True)
class SettingRow:
    """One setting."""

    path: str
    type: str
    default: str
    """In TOML, or in words."""
    meaning: str
    kinds: tuple[str, ...] = ()
    """The kinds of its section that it belongs to; empty: all."""


def setting_rows(
    cls: type[BaseModel], path: str = "", kinds: tuple[str, ...] = ()
) -> Iterator[SettingRow]:
    """The settings of a class and of its sections, in the order of its fields."""
    for name, field in cls.model_fields.items():
        inner = [c for c in config_classes(field.annotation) if c is not cls]
        full = f"{path}.{name}" if path else name
        if not inner:
            yield row_of(full, field, kinds)
            continue
        default = field.get_default(call_default_factory=True)
        kind = getattr(default, "kind", None)
        text = f"kind = {json.dumps(kind)}" if kind else ("none" if default is None else "")
        yield SettingRow(full, "section", text, meaning_of(field), kinds)
        for section in inner:
            yield from setting_rows(section, full, kinds_of(section) if len(inner) > 1 else ())


def row_of(path: str, field: FieldInfo, kinds: tuple[str, ...]) -> SettingRow:
    default = field.get_default(call_default_factory=True)
    return SettingRow(path, type_name(field), toml(default), meaning_of(field), kinds)


def meaning_of(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())


def type_name(field: FieldInfo) -> str:
    """'integer, at least 1', 'adamw or muon'."""
    limits = [
        f"{words} {value}"
        for part in field.metadata
        for key, words in LIMITS.items()
        if (value := getattr(part, key, None)) is not None
    ]
    return ", ".join([annotation_name(field.annotation), *limits])


def annotation_name(annotation: Any) -> str:
    """An annotation in words."""
    simple = {int: "integer", float: "number", bool: "true or false", str: "text", NoneType: "none"}
    if annotation in simple:
        return simple[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(str(value) for value in arguments)
    if origin in (Union, UnionType):
        return " or ".join(annotation_name(part) for part in arguments)
    if origin in (tuple, list):
        parts = [annotation_name(part) for part in arguments if part is not Ellipsis]
        return f"list of {parts[0]}" if len(set(parts)) == 1 else f"list of {', '.join(parts)}"
    return str(getattr(annotation, "__name__", annotation))


def toml(value: Any) -> str:
    """A default as --set reads it."""
    if value is PydanticUndefined:
        return "required"
    if isinstance(value, tuple):
        value = list(value)
    return "none" if value is None else json.dumps(value)


def below(rows: Iterable[SettingRow], path: str) -> list[SettingRow]:
    """The rows of a setting or of a section; all for the empty path."""
    return [row for row in rows if not path or f"{row.path}.".startswith(f"{path}.")]
