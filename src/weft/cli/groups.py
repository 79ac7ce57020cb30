"""A parameter that stands for many options: a function with such parameters -> one for typer.

    @dataclass
    class Drawing(OptionGroup):                 @with_groups
        temperature: Temperature = 0.0          def command(model: Model, *, drawing: Drawing): ...
        seed: Seed = 0

The command line has --temperature and --seed where `drawing` stands. typer itself reads one
parameter an option, so that commands with the same options would list them each.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from inspect import Parameter
from typing import Any, get_type_hints


@dataclass(frozen=True)
class OptionGroup:
    """Base of the groups: a frozen dataclass whose fields have the types of options."""

    @classmethod
    def parameters(cls) -> Iterator[Parameter]:
        hints = get_type_hints(cls, include_extras=True)
        for one in fields(cls):
            assert one.default is not MISSING, f"{cls.__name__}.{one.name} has no default"
            yield keyword(one.name, one.default, hints[one.name])


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer reads it: fields instead of groups."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[Parameter] = []
    groups: dict[str, type[OptionGroup]] = {}
    for name, one in inspect.signature(command).parameters.items():
        kind = hints[name]
        if isinstance(kind, type) and issubclass(kind, OptionGroup):
            groups[name] = kind
            parameters += kind.parameters()
        else:
            parameters.append(keyword(name, one.default, kind))

    def spread(**given: Any) -> None:
        made = {
            name: group(**{one.name: given.pop(one.name) for one in fields(group)})
            for name, group in groups.items()
        }
        command(**given, **made)

    spread.__doc__, spread.__name__ = command.__doc__, command.__name__
    spread.__annotations__ = {one.name: one.annotation for one in parameters} | {"return": None}
    spread.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return spread


def keyword(name: str, default: Any, kind: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
