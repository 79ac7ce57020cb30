"""`weft chat`: a conversation in the model's chat template.

In a terminal, `chat_terminal.py` reads messages. Otherwise standard input is one message, or one on
each line; or the message is an argument.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.cli.generation_options import GenerationOptionGroup
from weft.cli.option_groups import with_groups
from weft.cli.options import (
    Device,
    Keep,
    Model,
    check_logprobs,
    prefix_cache_file,
    ready_model,
)
from weft.cli.output import status
from weft.core.errors import UsageError

if TYPE_CHECKING:
    from weft.engine.loaded_model import LoadedModel
    from weft.engine.request_builder import GenerationOptions


Message = Annotated[
    str | None, typer.Argument(metavar="MESSAGE", help="Answer it and exit; -: stdin.")
]
System = Annotated[str | None, typer.Option(help="System message.")]
Lines = Annotated[bool, typer.Option("--lines", help="Each line of standard input is a message.")]
History = Annotated[
    bool,
    typer.Option(
        "--history/--no-history",
        envvar="WEFT_CHAT_HISTORY",
        help="Keep typed messages for the next chat.",
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(min=1, help="Maximum number of tokens of an answer.", show_default="1024"),
]
Json = Annotated[
    bool, typer.Option("--json", help="One object per answer: role, content, usage, ...")
]


@with_groups
def command(
    model: Model,
    message: Message = None,
    system: System = None,
    lines: Lines = False,
    history: History = True,
    max_tokens: MaxTokens = None,
    *,
    generation: GenerationOptionGroup,
    keep: Keep = None,
    device: Device = "auto",
    json: Json = False,
) -> None:
    """Chat with a model. In a terminal, /help lists commands and keys.

    \b
    Example:
      weft chat smollm2
      weft chat smollm2 "What is the capital of France?"
      weft chat smollm2 < letter.txt
      weft chat smollm2 --lines --json < questions.txt
      weft chat smollm2 --system "Answer in one word." --temperature 0.7 --top-p 0.9

    Without a terminal, standard input is one message, empty lines included; with --lines each line
    is one, in the same conversation, and empty lines are ignored. Answers are printed to standard
    output; tokens, speed and cached tokens to standard error.

    Typed messages are kept in ~/.local/state/weft/chat_history ($WEFT_STATE/chat_history), readable
    by their owner only; --no-history or WEFT_CHAT_HISTORY=0 keeps none.
    """
    check_logprobs(generation.logprobs, json)
    if message is not None and lines:
        raise UsageError(
            f"MESSAGE is {message!r} and --lines is set: only one of them can be used. Choose one."
        )
    from weft.engine.loaded_model import check_model

    options, engine = generation.options(max_tokens), generation.engine
    check_model(model, "chat", max_tokens)
    is_typed = message is None and not lines and has_terminal()
    messages = iter(()) if is_typed else read_messages(message, lines)
    loaded = ready_model(model, device, engine)
    assert loaded.request_builder.template, "a model without a chat template was accepted"
    options = generation.with_defaults(options, loaded.generation_config)
    with prefix_cache_file(loaded, keep):
        if is_typed:
            converse(loaded, model, options, system, json, history)
        else:
            answer_all(loaded, options, system, json, messages)


def has_terminal() -> bool:
    """Whether messages can be typed, and prompts be seen."""
    return sys.stdin.isatty() and (sys.stderr.isatty() or sys.stdout.isatty())


def read_messages(message: str | None, has_lines: bool) -> Iterator[str]:
    """The messages of the command line or of standard input, one or line by line."""
    if has_lines:
        return (line.rstrip("\r\n") for line in sys.stdin if line.strip())
    if message in (None, "-"):
        if sys.stdin.isatty():
            status("Type a message; Ctrl-D ends it.")
        message = sys.stdin.read().strip("\r\n")
    if not (message or "").strip():
        raise UsageError("the message is empty: it must have at least one character. Write one.")
    return iter([message or ""])


def converse(
    loaded: LoadedModel,
    model: str,
    options: GenerationOptions,
    system: str | None,
    json: bool,
    keeps_history: bool,
) -> None:
    """The chat in a terminal."""
    from weft.cli.chat_keyboard import ChatSignals
    from weft.cli.chat_printer import AnswerPrinter
    from weft.cli.chat_session import ChatSession
    from weft.cli.chat_terminal import ChatTerminal

    with ChatSignals() as signals:
        session = ChatSession(loaded, options, system, signals.stoppable)
        printer = AnswerPrinter(session, json, is_typed=True)
        ChatTerminal(session, signals, printer, keeps_history).run(Path(model).name)


def answer_all(
    loaded: LoadedModel,
    options: GenerationOptions,
    system: str | None,
    json: bool,
    messages: Iterator[str],
) -> None:
    """Answer messages one after another, in one conversation."""
    from weft.cli.chat_printer import AnswerPrinter
    from weft.cli.chat_session import ChatSession

    session = ChatSession(loaded, options, system)
    printer = AnswerPrinter(session, json)
    for message in messages:
        answer = session.ask(message, printer.show)
        printer.finish(answer)
        if answer.is_stopped:
            raise KeyboardInterrupt
