"""Groups of options: where they stand on the command line, and what the command is given."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer

from weft.cli.option_groups import OptionGroup, with_groups

Size = Annotated[int, typer.Option(min=1, help="How large.")]


@dataclass(frozen=True)
class Shape(OptionGroup):
    size: Size = 3
    is_round: Annotated[bool, typer.Option("--round")] = False


def run(args: list[str]) -> dict[str, object]:
    """What the command is called with."""
    inputs: dict[str, object] = {}

    @with_groups
    def command(name: str, *, shape: Shape, last: str = "x") -> None:
        """What it does."""
        inputs.update(name=name, shape=shape, last=last)

    app = typer.Typer()
    app.command()(command)
    app(args, standalone_mode=False)
    return inputs


def test_a_group_is_made_of_its_options() -> None:
    assert run(["a"]) == {"name": "a", "shape": Shape(), "last": "x"}
    inputs = run(["a", "--size", "7", "--round", "--last", "y"])
    assert inputs == {"name": "a", "shape": Shape(7, True), "last": "y"}
    with pytest.raises(typer.TyperException):
        run(["a", "--size", "0"])


def test_options_stand_where_the_group_stands() -> None:
    def command(first: int = 1, *, shape: Shape, last: str = "x") -> None:
        """What it does."""

    read = with_groups(command)
    assert list(inspect.signature(read).parameters) == ["first", "size", "is_round", "last"]
    assert read.__doc__ == "What it does."


def test_an_option_of_a_group_without_a_default_is_our_mistake() -> None:
    @dataclass(frozen=True)
    class Wrong(OptionGroup):
        size: int

    with pytest.raises(AssertionError, match="Wrong.size has no default"):
        list(Wrong.parameters())
