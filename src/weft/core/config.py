"""Settings: a dict, a TOML file or keyword arguments -> a frozen object that is known to be usable.

Each component's file holds its own `Config`; construction validates, and a ConfigError lists
*every* problem at once, each with the value, what is allowed and what to do (`core/explain.py`
writes the sentences). Differs from plain pydantic: cross-field rules still run when some unrelated
field is wrong.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from weft.core.errors import ConfigError, DataError, Problem
from weft.core.explain import dotted, explain, field_path, known_keys

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class ConfigMeta(ModelMetaclass):
    """Turns pydantic's ValidationError into a ConfigError where a person writes `Config(...)`."""

    def __call__(cls, **values: Any) -> Any:  # noqa: N805
        return validate(cls, values)


class Config(BaseModel, metaclass=ConfigMeta):
    """Base of all settings: frozen, unknown keys refused, fields documented by the string below."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "settings") -> Self:
        """Settings from nested plain values; `where` names their origin in the message."""
        return validate(cls, values, where)

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def with_changes(self, changes: Mapping[str, Any]) -> Self:
        """A copy with dotted names replaced: {"attention.num_heads": 4}."""
        return self.from_dict(with_overrides(self.to_dict(), changes, type(self)))

    def cross_checks(self) -> Iterable[Problem]:
        """Rules between fields: a Problem for each broken one, with the fields it is about."""
        return ()

    @model_validator(mode="after")
    def run_cross_checks(self) -> Self:
        problems = list(self.cross_checks())
        if problems:
            raise ConfigError(problems)
        return self


def validate(cls: type[Any], values: Mapping[str, Any], where: str = "settings") -> Any:
    """Construct `cls`, or raise one ConfigError with all problems."""
    try:
        return cls.model_validate(dict(values))
    except ValidationError as error:
        first = [problem for detail in error.errors() for problem in explain(cls, detail, values)]
        raise ConfigError([*first, *hidden_problems(cls, values, error, first)], where) from None


def hidden_problems(
    cls: type[Any], values: Mapping[str, Any], error: ValidationError, first: Sequence[Problem]
) -> list[Problem]:
    """Cross-field problems that pydantic did not reach because some field was wrong.

    The wrong values are taken out (their defaults stand in) and the rest is validated again; what
    is then found is reported unless it concerns a value that was taken out.
    """
    wrong = {dotted(field_path(detail["loc"], values)) for detail in error.errors()}
    rest = deepcopy(dict(values))
    for name in wrong:
        drop(rest, name.split("."))
    try:
        cls.model_validate(rest)
    except ValidationError as second:
        found = [problem for detail in second.errors() for problem in explain(cls, detail, rest)]
        return [p for p in found if p not in first and p.about and not concerns(p, wrong)]
    return []


def concerns(problem: Problem, names: Iterable[str]) -> bool:
    """True if a problem is about one of the names, something inside it, or what holds it."""
    pairs = [(about + ".", name + ".") for about in problem.about for name in names]
    return any(about.startswith(name) or name.startswith(about) for about, name in pairs)


def drop(values: dict[str, Any], path: Sequence[str]) -> None:
    """Take one nested value out; its default stands in when the settings are validated again."""
    here: Any = values
    for step in path[:-1]:
        here = here.get(step) if isinstance(here, dict) else None
    if isinstance(here, dict):
        here.pop(path[-1], None)


def with_overrides(
    values: Mapping[str, Any], changes: Mapping[str, Any], cls: type[Any] | None = None
) -> dict[str, Any]:
    """Nested values with dotted names replaced. A new `kind` keeps the keys of its section that
    it knows too: `cls` holds the settings classes, and without it none is known."""
    result = deepcopy(dict(values))
    for name in sorted(changes, key=override_order):
        *path, key = name.split(".")
        section = result
        for step in path:
            inner = section.get(step)
            section[step] = inner if isinstance(inner, dict) else {}
            section = section[step]
        is_new_kind = key == "kind" and path and section.get("kind") != changes[name]
        section[key] = changes[name]
        if is_new_kind:
            known = {"kind"} if cls is None else known_keys(cls, path, result)
            for old in [old for old in section if old not in known]:
                del section[old]
    return result


def override_order(name: str) -> tuple[bool, int]:
    """Kinds first, outer before inner: what a new kind clears is not what was just set."""
    path = name.split(".")
    return path[-1] != "kind", len(path)


def parse_override(text: str) -> tuple[str, Any]:
    """'model.width=256' -> ('model.width', 256). The value is TOML; a bare word is a string."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigError([f"--set {text!r} has no value: write --set name.of.setting=value."])
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return name.strip(), None if value.strip() == "none" else value.strip()


def read_settings(path: str | Path) -> dict[str, Any]:
    """Nested values of a .json file, or of a TOML file with any other name."""
    path = Path(path)
    text, is_json = read_text(path), path.suffix.lower() == ".json"
    try:
        values = json.loads(text) if is_json else tomllib.loads(text)
    except RecursionError:
        raise DataError("it is nested too deeply to be settings.", path) from None
    except (tomllib.TOMLDecodeError, json.JSONDecodeError) as error:
        language = "JSON" if is_json else "TOML"
        raise DataError(f"cannot be read as {language}: {error}. Mend that place.", path) from None
    if not isinstance(values, dict):
        kind = type(values).__name__
        raise DataError(f"holds a {kind}, not settings. Write a table of names and values.", path)
    return values


def read_text(path: Path) -> str:
    """The text of a settings file, with or without a byte order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DataError("there is no such file. Check the path.", path) from None
    except IsADirectoryError:
        raise DataError("this is a folder. Name the .toml or .json file in it.", path) from None
    except UnicodeDecodeError:
        raise DataError("this is not UTF-8 text. Write TOML or JSON in UTF-8.", path) from None
