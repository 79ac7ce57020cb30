"""`--threads N`, an option of every command: the number of CPU threads.

Added to the commands here rather than in each of them, because it has to be set before the command
imports torch, and so that no command lacks it. A command that has a parameter `threads` (the
benchmarks, which pass it to other processes) keeps its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

import typer

from weft.cli.option_groups import keyword

MAX_THREADS = 1024

Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MAX_THREADS,
        metavar="N",
        help="CPU threads.",
        show_default="one per available core",
    ),
]


def with_threads(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the option --threads, after its other options."""
    signature = inspect.signature(command)
    if "threads" in signature.parameters:
        return command
    hints = get_type_hints(command, include_extras=True)
    parameters = [
        one.replace(annotation=hints.get(name, one.annotation))
        for name, one in signature.parameters.items()
    ]
    parameters.append(keyword("threads", None, Threads))

    def with_option(threads: int | None = None, **arguments: Any) -> Any:
        from weft.core.openmp import cpu_threads

        with cpu_threads(threads):
            return command(**arguments)

    with_option.__doc__, with_option.__name__ = command.__doc__, command.__name__
    with_option.__annotations__ = {one.name: one.annotation for one in parameters}
    with_option.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=parameters, return_annotation=None
    )
    return with_option


def add_threads(app: typer.Typer) -> typer.Typer:
    """The same for all sub-commands; more than once has no effect."""
    for one in app.registered_commands:
        if one.callback is not None:
            one.callback = with_threads(one.callback)
    return app
