"""pydantic's findings -> Problems: sentences with the value, what is allowed and what to do.

Differs from pydantic's own text: an unknown key names the nearest known one, a section with a
`kind` speaks of that kind's keys only, and places are dotted names as a person writes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from weft.core.choices import nearest
from weft.core.errors import ConfigError, Problem


def explain(cls: type[Any], detail: ErrorDetails, values: Mapping[str, Any]) -> list[Problem]:
    """Problems for one of pydantic's findings about `values`, which should become a `cls`."""
    path, kind = field_path(detail["loc"], values), detail["type"]
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):
        return [prefixed(problem, path) for problem in cause.problems]
    name = dotted(path)
    if kind == "extra_forbidden":
        return [Problem(unknown_key(cls, path, values), (name,))]
    if kind == "missing":
        return [Problem(f"{name} is missing: it has no default. Give it a value.", (name,))]
    if kind == "union_tag_not_found":
        return [missing_kind(cls, path)]
    if kind in ("literal_error", "union_tag_invalid"):
        return [wrong_choice(detail, path)]
    return [Problem(f"{name} is {detail['input']!r}: {rule_of(detail)}. Change {name}.", (name,))]


def rule_of(detail: ErrorDetails) -> str:
    """'Input should be greater than 0' -> 'it must be greater than 0'."""
    message = detail["msg"].removeprefix("Input ").removeprefix("Value error, ")
    return message.replace("should be", "it must be", 1).rstrip(".")


def wrong_choice(detail: ErrorDetails, path: Sequence[str]) -> Problem:
    """A word that is not one of the words allowed."""
    context = detail.get("ctx", {})
    listed = str(context.get("expected") or context.get("expected_tags"))
    choices = [choice.strip(" '") for choice in listed.replace(" or ", ", ").split(",")]
    value = context.get("tag", detail["input"])
    name = dotted(path) if detail["type"] == "literal_error" else dotted([*path, "kind"])
    guess = nearest(str(value), choices)
    hint = f"Did you mean '{guess}'?" if guess else "Use one of these."
    return Problem(f"{name} is {value!r}: allowed are {', '.join(choices)}. {hint}", (name,))


def missing_kind(cls: type[Any], path: Sequence[str]) -> Problem:
    """A section that could be one of several, and does not say which."""
    kinds = [kind for c in classes_at(cls, path) for kind in kinds_of(c)]
    name = dotted([*path, "kind"])
    text = f"{name} is missing: allowed are {', '.join(kinds)}. Say which one {dotted(path)} is."
    return Problem(text, (name,))


def prefixed(problem: Problem, path: Sequence[str]) -> Problem:
    """The same problem seen from the settings that contain it."""
    about = tuple(dotted([*path, name]) for name in problem.about)
    inside = f"in {dotted(path)}: " if path else ""
    return Problem(inside + problem.text, about)


def field_path(loc: Sequence[int | str], values: Mapping[str, Any]) -> list[str]:
    """pydantic's location without what it inserts: tags of a `kind`, branches of a union."""
    path: list[str] = []
    here: Any = values
    for step in loc:
        if isinstance(here, Mapping) and (step in here or here.get("kind") != step):
            path.append(str(step))
            here = here.get(step)
        elif isinstance(here, list | tuple) and isinstance(step, int):
            path.append(str(step))
            here = here[step] if step < len(here) else None
    return path


def unknown_key(
    cls: type[Any], path: Sequence[str], values: Mapping[str, Any] | None = None
) -> str:
    """A sentence for a key that no settings class has, with the nearest one that it has."""
    known = known_keys(cls, path[:-1], values)
    guess = nearest(path[-1], known)
    hint = f"Did you mean '{guess}'? " if guess else ""
    return f"{dotted(path)} is not a setting. {hint}Known here: {', '.join(sorted(known))}."


def known_keys(
    cls: type[Any], path: Sequence[str], values: Mapping[str, Any] | None = None
) -> set[str]:
    """Keys of the section at `path` below `cls`; given `values`, those of its kind only."""
    section: Any = values or {}
    for step in path:
        section = section.get(step) if isinstance(section, Mapping) else None
    kind = section.get("kind") if isinstance(section, Mapping) else None
    classes = classes_at(cls, path)
    chosen = [c for c in classes if kind in kinds_of(c)]
    return {name for c in chosen or classes for name in c.model_fields}


def classes_at(cls: type[Any], path: Sequence[str]) -> list[type[BaseModel]]:
    """The settings classes that the section at a path below `cls` can be."""
    classes: list[type[BaseModel]] = [cls]
    for step in path:
        found = [c.model_fields[step].annotation for c in classes if step in c.model_fields]
        # a number is a place in a list: the classes of its elements stay as they are
        classes = [c for a in found for c in config_classes(a)] if not step.isdigit() else classes
    return classes


def kinds_of(cls: type[BaseModel]) -> tuple[str, ...]:
    """The values that the `kind` of a settings class may have."""
    return get_args(cls.model_fields["kind"].annotation) if "kind" in cls.model_fields else ()


def config_classes(annotation: Any) -> list[type[BaseModel]]:
    """The settings classes inside an annotation such as `A | B | None` or `list[A]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [c for part in get_args(annotation) for c in config_classes(part)]


def dotted(path: Iterable[str]) -> str:
    return ".".join(path)
