"""Shell completion: words of a command line -> candidates for the last, incomplete word.

    weft tr                       commands
    weft train --p                options
    weft eval --activations ""    values of an option
    weft translate runs/en-de@    checkpoints of a run
    weft chat sm                  pulled models, folders with a run or a model, files

Imports only the module of the command, no torch, and reads no model files, because the shell waits
for the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from typer.main import get_command

from weft.checkpoint.folder_files import CONFIG_FILE, RUN_FILE
from weft.checkpoint.model_catalog import CATALOG
from weft.checkpoint.pulled_models import pulled_models, pulled_names
from weft.checkpoint.run_files import CHECKPOINTS, checkpoint_steps
from weft.cli.app import COMMANDS, build_app
from weft.cli.recipe_names import recipe_names

GLOBAL_OPTIONS = {"--help": "Show the help.", "--version": "Print the version and exit."}
OPTION_VALUES = {
    "--device": ("auto", "cpu", "cuda", "mps"),
    "--dtype": ("float32", "float16", "bfloat16"),
    "--activations": ("float32", "int8"),
    "--prefix-cache": ("none", "hash", "radix"),
    "--cache": ("auto", "0", "1"),
    "--time": ("10m", "30m", "1h"),
}
"""Of options whose values are checked after parsing."""
PATH_METAVARS = ("FILE", "DIR", "SRC", "PATH")
"""Parts of the metavar of options that take paths."""
MAX_FOLDERS = 200
"""Folders that are looked into for runs."""


@dataclass(frozen=True)
class Candidates:
    """What a word may become: values with a description, and files."""

    values: dict[str, str] = field(default_factory=dict)
    has_files: bool = False


def complete(words: Sequence[str]) -> Candidates:
    """The candidates for the last of the words behind `weft`."""
    *before, current = words or [""]
    name = next((word for word in before if not word.startswith("-")), None)
    if name is None:
        commands = {name: command.help for name, command in COMMANDS.items()}
        return starting_with(current, GLOBAL_OPTIONS if current.startswith("-") else commands)
    if name not in COMMANDS:
        return Candidates()
    program: Any = get_command(build_app(COMMANDS, name))
    command, rest = program.commands[name], before[before.index(name) + 1 :]
    many = getattr(import_module(COMMANDS[name].module), "MANY", ())
    if hasattr(command, "commands"):
        sub = next((word for word in rest if word in command.commands), None)
        if sub is None:
            helps = {name: one.get_short_help_str() for name, one in command.commands.items()}
            return starting_with(current, helps)
        command, rest = command.commands[sub], rest[rest.index(sub) + 1 :]
    return complete_parameter(name, command.params, many, rest, current)


def complete_parameter(
    command: str, params: Sequence[Any], many: Iterable[str], before: Sequence[str], current: str
) -> Candidates:
    """The candidates of an option, of its value or of an argument."""
    option, num_arguments = open_option(params, many, before)
    if option is not None and not (current.startswith("-") and option[1] in many):
        return option_values(*option, current)
    if current.startswith("-"):
        return starting_with(current, option_helps(params))
    arguments = [one for one in params if is_argument(one)]
    if not arguments or (num_arguments >= len(arguments) and arguments[-1].nargs != -1):
        return Candidates()
    argument = arguments[min(num_arguments, len(arguments) - 1)]
    if choices := choices_of(argument):
        return starting_with(current, dict.fromkeys(choices, ""))
    source = ARGUMENTS.get(f"{command} {argument.name}") or ARGUMENTS.get(argument.name)
    return source(current) if source else Candidates(has_files=True)


def open_option(
    params: Sequence[Any], many: Iterable[str], before: Sequence[str]
) -> tuple[tuple[Any, str] | None, int]:
    """(the option whose value comes next, and its name; the number of arguments so far)."""
    options = {name: one for one in params if not is_argument(one) for name in names_of(one)}
    option: tuple[Any, str] | None = None
    num_left = num_arguments = 0
    for word in before:
        if word.startswith("-") and word != "-":
            one = options.get(word)
            is_open = one is not None and not getattr(one, "is_flag", False)
            option, num_left = ((one, word), one.nargs) if is_open and one else (None, 0)
        elif option is None:
            num_arguments += 1
        elif option[1] not in many:
            num_left -= 1
            option = option if num_left else None
    return option, num_arguments


def option_values(option: Any, name: str, current: str) -> Candidates:
    """The candidates for the value of an option."""
    choices = choices_of(option) or OPTION_VALUES.get(name, ())
    if choices:
        return starting_with(current, dict.fromkeys(choices, ""))
    if name == "--out":
        return Candidates(dict.fromkeys(run_folders(current), "run"), has_files=True)
    metavar = option.metavar or ""
    return Candidates(has_files=any(part in metavar for part in PATH_METAVARS))


def is_argument(one: Any) -> bool:
    return not any(name.startswith("-") for name in one.opts)


def names_of(option: Any) -> list[str]:
    return [*option.opts, *option.secondary_opts]


def option_helps(params: Sequence[Any]) -> dict[str, str]:
    """{name: help} of all options."""
    helps = {
        name: (one.help or "").partition(". ")[0]
        for one in params
        if not is_argument(one)
        for name in names_of(one)
    }
    return {**helps, "--help": GLOBAL_OPTIONS["--help"]}


def choices_of(one: Any) -> tuple[str, ...]:
    """The values of a parameter with a closed choice."""
    annotation = getattr(getattr(one, "type_descriptor", None), "annotation", None)
    parts = (annotation, *get_args(annotation))
    literals = [get_args(part) for part in parts if get_origin(part) is Literal]
    return tuple(str(value) for values in literals for value in values)


def starting_with(current: str, values: dict[str, str]) -> Candidates:
    return Candidates({name: text for name, text in values.items() if name.startswith(current)})


def complete_model(current: str) -> Candidates:
    """Pulled models, folders with a model or a run, checkpoints of a run, and files."""
    if "@" in current:
        return Candidates(dict.fromkeys(checkpoints_of(current), "checkpoint"))
    pulled = starting_with(current, dict.fromkeys(pulled_names(), "pulled"))
    folders = dict.fromkeys(run_folders(current, (RUN_FILE, CONFIG_FILE)), "folder")
    return Candidates({**pulled.values, **folders}, has_files=True)


def complete_recipe(current: str) -> Candidates:
    recipes = starting_with(current, dict.fromkeys(recipe_names(), "recipe"))
    return Candidates(recipes.values, has_files=True)


def complete_model_or_recipe(current: str) -> Candidates:
    recipes = complete_recipe(current).values
    return Candidates({**recipes, **complete_model(current).values}, has_files="@" not in current)


def complete_run(current: str) -> Candidates:
    return Candidates(dict.fromkeys(run_folders(current), "run"), has_files=True)


def complete_catalog(current: str) -> Candidates:
    return starting_with(current, {name: one.description for name, one in CATALOG.items()})


def complete_pulled(current: str) -> Candidates:
    return starting_with(current, {one.name: one.family or "" for one in pulled_models()})


ARGUMENTS: dict[str, Callable[[str], Candidates]] = {
    "model": complete_model,
    "models": complete_model,
    "other": complete_model,
    "recipe": complete_recipe,
    "run": complete_run,
    "runs": complete_run,
    "info model": complete_model_or_recipe,
    "pull name": complete_catalog,
    "rm name": complete_pulled,
}
"""By the name of an argument, or of a command and its argument. All others are files."""


def run_folders(current: str, files: Sequence[str] = (RUN_FILE,)) -> Iterator[str]:
    """Folders with one of some files: below the folder that is being typed, or below the working
    directory and its folder runs/."""
    parent = current.rpartition("/")[0]
    parents = [f"{parent}/"] if "/" in current else ["", "runs/"]
    for prefix in parents:
        folder = Path(prefix or ".").expanduser()
        if not folder.is_dir():
            continue
        for path in sorted(folder.iterdir())[:MAX_FOLDERS]:
            name = f"{prefix}{path.name}"
            if name.startswith(current) and any((path / file).is_file() for file in files):
                yield name


def checkpoints_of(current: str) -> Iterator[str]:
    """DIR@best, DIR@last and DIR@STEP of the run that is being typed."""
    run, _, which = current.rpartition("@")
    folder = Path(run).expanduser()
    if not (folder / RUN_FILE).is_file():
        return
    steps = map(str, checkpoint_steps(folder / CHECKPOINTS))
    yield from (f"{run}@{name}" for name in ("best", "last", *steps) if name.startswith(which))
