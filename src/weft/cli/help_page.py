"""docs/help.md: the help of every command, as the program itself prints it.

python -m weft.cli.help_page docs/help.md            write it
python -m weft.cli.help_page --check docs/help.md    exit 1 if it is out of date
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from weft.cli.app import COMMANDS, Command, main

WIDTH = "92"
INTRODUCTION = """\
# Help

What `weft --help` and `weft COMMAND --help` print. This page is generated: `make docs` writes it
again, and `make check` fails while it is out of date.
"""


def page(commands: Mapping[str, Command] = COMMANDS) -> str:
    """The whole page as Markdown."""
    sections = [section(words, commands) for words in command_words(commands)]
    return "\n".join([INTRODUCTION, *sections])


def command_words(commands: Mapping[str, Command]) -> Iterator[list[str]]:
    """The words of every command that has its own help: [], [info], [bench], [bench, attention]."""
    yield []
    for name, command in commands.items():
        yield [name]
        app = getattr(import_module(command.module), "app", None)
        for sub in app.registered_commands if app else ():
            yield [name, sub.name or sub.callback.__name__]


def section(words: Sequence[str], commands: Mapping[str, Command]) -> str:
    title = " ".join(["weft", *words])
    return f"## {title}\n\n```text\n{help_text(words, commands)}\n```\n"


def help_text(words: Sequence[str], commands: Mapping[str, Command]) -> str:
    """What the program prints, at a fixed width."""
    printed = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = WIDTH
    try:
        with contextlib.redirect_stdout(printed):
            code = main([*words, "--help"], commands)
    finally:
        os.environ.pop("COLUMNS") if before is None else os.environ.update(COLUMNS=before)
    assert code == 0, f"weft {' '.join(words)} --help ended with {code}, expected 0"
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


def write_or_check(args: Sequence[str], commands: Mapping[str, Command] = COMMANDS) -> int:
    """Write the page to the path in `args`, or with --check compare it; returns the exit code."""
    path = Path(next(arg for arg in args if arg != "--check"))
    wanted = page(commands)
    if "--check" not in args:
        path.write_text(wanted, encoding="utf-8")
        return 0
    if path.exists() and path.read_text(encoding="utf-8") == wanted:
        return 0
    print(f"{path} is out of date: run `make docs` and commit it.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(write_or_check(sys.argv[1:]))
