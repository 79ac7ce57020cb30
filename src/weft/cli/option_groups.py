"""Option groups: one parameter of a command that stands for several command-line options.

    @dataclass(frozen=True)
    class DrawOptions(OptionGroup):             @with_groups
        temperature: Temperature = 0.0          def command(model: Model, *, draw: DrawOptions): ...
        seed: Seed = 0

The command line has --temperature and --seed in the position of `draw`. Differs from typer, which
reads one parameter per option, so that commands with common options would each have to list them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields
from inspect import Parameter
from typing import Any, Self, TypeGuard, get_type_hints


@dataclass(frozen=True)
class OptionGroup:
    """Base of the groups: a frozen dataclass whose fields are options or other groups."""

    @classmethod
    def parameters(cls) -> Iterator[Parameter]:
        """The options of the group, in the order of its fields."""
        hints = get_type_hints(cls, include_extras=True)
        for one in fields(cls):
            hint = hints[one.name]
            if is_group(hint):
                yield from hint.parameters()
                continue
            assert one.default is not MISSING, f"{cls.__name__}.{one.name} has no default"
            yield keyword(one.name, one.default, hint)

    @classmethod
    def collect(cls, arguments: dict[str, Any]) -> Self:
        """Build the group from parsed options, which are removed from `arguments`."""
        hints = get_type_hints(cls)
        values = {
            name: hint.collect(arguments) if is_group(hint) else arguments.pop(name)
            for name, hint in ((one.name, hints[one.name]) for one in fields(cls))
        }
        return cls(**values)


def is_group(annotation: object) -> TypeGuard[type[OptionGroup]]:
    return isinstance(annotation, type) and issubclass(annotation, OptionGroup)


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of its groups as parameters, as typer reads it."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[Parameter] = []
    groups: dict[str, type[OptionGroup]] = {}
    for name, one in inspect.signature(command).parameters.items():
        annotation = hints[name]
        if is_group(annotation):
            groups[name] = annotation
            parameters += annotation.parameters()
        else:
            parameters.append(keyword(name, one.default, annotation))

    def with_options(**arguments: Any) -> None:
        collected = {name: group.collect(arguments) for name, group in groups.items()}
        command(**arguments, **collected)

    with_options.__doc__, with_options.__name__ = command.__doc__, command.__name__
    annotations = {one.name: one.annotation for one in parameters}
    with_options.__annotations__ = annotations | {"return": None}
    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return with_options


def keyword(name: str, default: Any, annotation: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
