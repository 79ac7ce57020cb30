"""Settings: a dict, a TOML file or keyword arguments -> a frozen, validated object.

Each component's file defines its own `Config`. Construction validates, and a ConfigError lists
*every* problem at once, each with the value, what is allowed and what to do. Differs from plain
pydantic: rules between fields are checked even if an unrelated field is wrong, an unknown key is
reported with the nearest known one, a section with a `kind` is checked against the keys of that
kind only, and locations are dotted names as in `--set model.width=256`.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from weft.core.errors import (
    MAX_SHOWN,
    ConfigError,
    DataError,
    Problem,
    UnreadableError,
    shown,
)
from weft.core.registry import nearest

if TYPE_CHECKING:
    from pydantic._internal._model_construction import ModelMetaclass
else:
    ModelMetaclass = type(BaseModel)


class ConfigMeta(ModelMetaclass):
    """Turns the ValidationError of `Config(...)` into a ConfigError."""

    def __call__(cls, **values: Any) -> Any:  # noqa: N805
        return validate(cls, values)


class Config(BaseModel, metaclass=ConfigMeta):
    """Base of all settings: frozen, unknown keys rejected, fields documented by the string below
    them."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @classmethod
    def from_dict(
        cls, values: Mapping[str, Any], where: str = "settings", prefix: str = ""
    ) -> Self:
        """Settings from nested plain values. In messages, `where` names their origin, and `prefix`
        is put before the names of fields: the section of a file that they belong to."""
        return validate(cls, values, where, prefix)

    def to_dict(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def with_changes(self, changes: Mapping[str, Any], prefix: str = "") -> Self:
        """A copy with dotted names replaced: {"attention.num_heads": 4}."""
        values = with_overrides(self.to_dict(), changes, type(self))
        return self.from_dict(values, prefix=prefix)

    def cross_checks(self) -> Iterable[Problem]:
        """Rules between fields: one Problem per violated rule, with the fields it concerns."""
        return ()

    @model_validator(mode="after")
    def run_cross_checks(self) -> Self:
        problems = list(self.cross_checks())
        if problems:
            raise ConfigError(problems)
        return self


def validate(
    cls: type[Any], values: Mapping[str, Any], where: str = "settings", prefix: str = ""
) -> Any:
    """Construct `cls`, or raise one ConfigError with all problems."""
    if not isinstance(values, Mapping):
        name = f"{prefix} in {where}" if prefix else where
        raise ConfigError([f"{name} is {shown(values)}: it must be a table of names and values."])
    try:
        return cls.model_validate(dict(values))
    except ValidationError as error:
        problems = [p for detail in error.errors() for p in explain(cls, detail, values, prefix)]
        hidden = hidden_problems(cls, values, error, problems, prefix)
        raise ConfigError([*problems, *hidden], where) from None


def hidden_problems(
    cls: type[Any],
    values: Mapping[str, Any],
    error: ValidationError,
    problems: Sequence[Problem],
    prefix: str,
) -> list[Problem]:
    """Cross-field problems that pydantic did not reach because some field was wrong.

    The wrong values are replaced by their defaults and the rest is validated again; new problems
    are reported unless they concern a replaced value.
    """
    paths = [field_path(detail["loc"], values) for detail in error.errors()]
    remaining = deepcopy(dict(values))
    for path in paths:
        if path:  # a cross-field problem of the settings as a whole has no path
            drop(remaining, path)
    wrong = {dotted(path, prefix) for path in paths}
    try:
        cls.model_validate(remaining)
    except ValidationError as second:
        details = second.errors()
        new = [p for detail in details for p in explain(cls, detail, remaining, prefix)]
        return [p for p in new if p not in problems and p.about and not concerns(p, wrong)]
    return []


def concerns(problem: Problem, names: Iterable[str]) -> bool:
    """Whether a problem is about one of the names, a part of it, or a section that contains it."""
    pairs = [(about + ".", name + ".") for about in problem.about for name in names]
    return any(about.startswith(name) or name.startswith(about) for about, name in pairs)


def drop(values: dict[str, Any], path: Sequence[str]) -> None:
    """Remove one nested value, so that validation uses its default."""
    section: Any = values
    for step in path[:-1]:
        section = section.get(step) if isinstance(section, dict) else None
    if isinstance(section, dict):
        section.pop(path[-1], None)


# Messages: pydantic's error details -> Problems.


def explain(
    cls: type[Any], detail: ErrorDetails, values: Mapping[str, Any], prefix: str = ""
) -> list[Problem]:
    """The problems of one of pydantic's errors about `values`, which should become a `cls`."""
    path, kind = field_path(detail["loc"], values), detail["type"]
    cause = detail.get("ctx", {}).get("error")
    name = dotted(path, prefix)
    if isinstance(cause, ConfigError):
        return [in_section(problem, name) for problem in cause.problems]
    if kind == "extra_forbidden":
        return [Problem(unknown_key(cls, path, values, prefix), (name,))]
    if kind == "missing":
        return [Problem(f"{name} is missing: it has no default. Set it.", (name,))]
    if kind == "union_tag_not_found":
        return [missing_kind(cls, path, prefix)]
    if kind in ("literal_error", "union_tag_invalid"):
        return [wrong_choice(detail, name)]
    return [
        Problem(f"{name} is {shown(detail['input'])}: {rule_of(detail)}. Change {name}.", (name,))
    ]


def rule_of(detail: ErrorDetails) -> str:
    """'Input should be greater than 0' -> 'it must be greater than 0'."""
    message = detail["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return message.replace("should be", "it must be", 1).rstrip(".")


def wrong_choice(detail: ErrorDetails, name: str) -> Problem:
    """A value that is not one of the allowed ones."""
    context = detail.get("ctx", {})
    listed = str(context.get("expected") or context.get("expected_tags"))
    choices = [choice.strip(" '") for choice in listed.replace(" or ", ", ").split(",")]
    value = context.get("tag", detail["input"])
    if detail["type"] != "literal_error":
        name = dotted([name, "kind"]) if name else "kind"
    guess = nearest(value, choices) if isinstance(value, str) else None
    hint = f"Did you mean '{guess}'?" if guess else "Use one of these."
    return Problem(f"{name} is {shown(value)}: allowed are {', '.join(choices)}. {hint}", (name,))


def missing_kind(cls: type[Any], path: Sequence[str], prefix: str) -> Problem:
    """A section of several possible kinds without the key `kind`."""
    kinds = [kind for c in classes_at(cls, path) for kind in kinds_of(c)]
    name = dotted([*path, "kind"], prefix)
    return Problem(f"{name} is missing: allowed are {', '.join(kinds)}. Set {name}.", (name,))


def in_section(problem: Problem, section: str) -> Problem:
    """A problem of a section, as a problem of the settings that contain it."""
    if not section:
        return problem
    about = tuple(dotted([section, name]) for name in problem.about)
    return Problem(f"in {section}: {problem.text}", about)


def field_path(loc: Sequence[int | str], values: Mapping[str, Any]) -> list[str]:
    """pydantic's location without what it inserts: tags of a `kind`, branches of a union."""
    path: list[str] = []
    value: Any = values
    for step in loc:
        if isinstance(value, Mapping) and (step in value or value.get("kind") != step):
            path.append(str(step))
            value = value.get(step)
        elif isinstance(value, list | tuple) and isinstance(step, int):
            path.append(str(step))
            value = value[step] if step < len(value) else None
    return path


def unknown_key(
    cls: type[Any],
    path: Sequence[str],
    values: Mapping[str, Any] | None = None,
    prefix: str = "",
) -> str:
    """The message for a key that no settings class has, with the nearest known key."""
    known = known_keys(cls, path[:-1], values)
    guess = nearest(path[-1][:MAX_SHOWN], known)
    hint = f"Did you mean '{guess}'? " if guess else ""
    return f"{dotted(path, prefix)} is not a setting. {hint}Known here: {', '.join(sorted(known))}."


def known_keys(
    cls: type[Any], path: Sequence[str], values: Mapping[str, Any] | None = None
) -> set[str]:
    """Keys of the section at `path` below `cls`; with `values`, those of its kind only."""
    section: Any = values or {}
    for step in path:
        section = section.get(step) if isinstance(section, Mapping) else None
    kind = section.get("kind") if isinstance(section, Mapping) else None
    classes = classes_at(cls, path)
    chosen = [c for c in classes if kind in kinds_of(c)]
    return {name for c in chosen or classes for name in c.model_fields}


def classes_at(cls: type[Any], path: Sequence[str]) -> list[type[BaseModel]]:
    """The settings classes that the section at a path below `cls` can have."""
    classes: list[type[BaseModel]] = [cls]
    for step in path:
        if step.isdigit():  # an index of a list: its elements have the classes found before
            continue
        annotations = [c.model_fields[step].annotation for c in classes if step in c.model_fields]
        classes = [c for annotation in annotations for c in config_classes(annotation)]
    return classes


def kinds_of(cls: type[BaseModel]) -> tuple[str, ...]:
    """The values that the `kind` of a settings class may have."""
    return get_args(cls.model_fields["kind"].annotation) if "kind" in cls.model_fields else ()


def config_classes(annotation: Any) -> list[type[BaseModel]]:
    """The settings classes inside an annotation such as `A | B | None` or `list[A]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [c for part in get_args(annotation) for c in config_classes(part)]


def dotted(path: Iterable[str], prefix: str = "") -> str:
    """The name of a setting. A key that a user chose, such as a token id, may be long."""
    parts = [part[:MAX_SHOWN] for part in path]
    return ".".join([prefix, *parts] if prefix else parts)


# Overrides and files.


def with_overrides(
    values: Mapping[str, Any], changes: Mapping[str, Any], cls: type[Any] | None = None
) -> dict[str, Any]:
    """Nested values with dotted names replaced. A new `kind` keeps the keys of its section that it
    has as well: `cls` holds the settings classes; without it none is kept."""
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
    """Kinds first, outer before inner: a new kind removes keys, which must not be new ones."""
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
    except (ValueError, RecursionError):
        raise ConfigError(
            [f"--set {name.strip()} has a value of {len(value)} characters: no setting needs that."]
        ) from None


def read_settings(path: str | Path) -> dict[str, Any]:
    """Nested values of a .json file, or of a TOML file with any other name."""
    path = Path(path)
    text, is_json = read_text(path), path.suffix.lower() == ".json"
    try:
        values = json.loads(text) if is_json else tomllib.loads(text)
    except RecursionError:
        raise DataError("it is nested too deeply to be settings.", path) from None
    except ValueError as error:
        language = "JSON" if is_json else "TOML"
        reason = syntax_problem(error)
        raise DataError(f"cannot be read as {language}: {reason}. Correct it.", path) from None
    check_unicode(values, text, path)
    if not isinstance(values, dict):
        kind = type(values).__name__
        raise DataError(f"holds a {kind}, not settings. Write a table of names and values.", path)
    return values


def check_unicode(values: object, text: str, path: Path) -> None:
    """A DataError for half of a surrogate pair, which JSON can spell but no text can contain."""
    if "\\ud" not in text and "\\uD" not in text:
        return
    try:
        json.dumps(values, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        raise DataError(
            "contains half of a surrogate pair (\\ud800 to \\udfff), which is not text. Correct "
            "it.",
            path,
        ) from None


def syntax_problem(error: ValueError) -> str:
    """Why JSON or TOML could not be parsed. Python refuses to convert very long numbers."""
    if isinstance(error, json.JSONDecodeError | tomllib.TOMLDecodeError):
        return str(error)
    return f"a number has more than {sys.get_int_max_str_digits():,} digits"


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
    except OSError as error:
        raise UnreadableError(error.strerror or str(error), path) from error
