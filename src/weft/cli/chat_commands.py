"""Commands of a chat: lines that begin with a slash.

    run_command(session, "/set temperature 0.8")  ->  Reply("temperature is 0.8.")

A command is a function (session, argument) -> Reply, and a line of COMMANDS. A message that begins
with a slash is written with two: //tmp is sent as /tmp.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from weft.cli.chat_session import ChatSession
from weft.core.errors import UsageError
from weft.core.registry import nearest

SLASH = "/"
NO_SYSTEM = "-"
MAX_QUOTE = 40

KEYS = """\
Enter sends, Alt-Enter starts a new line. Up and Down recall messages, Ctrl-R searches them. \
Ctrl-C stops an answer and clears the line, Ctrl-D exits. A pasted text is one message. \
A message that begins with a slash is written with two: //tmp."""


@dataclass(frozen=True)
class Reply:
    """The reply of a command, and the next action of the chat."""

    text: str = ""
    action: Literal["", "retry", "exit"] = ""


@dataclass(frozen=True)
class ChatCommand:
    """A command: placeholder of its argument, help line, function."""

    argument: str
    help: str
    run: Callable[[ChatSession, str], Reply]


def is_command(line: str) -> bool:
    """Whether a message is a command."""
    return line.startswith(SLASH) and not line.startswith(SLASH * 2)


def message_of(line: str) -> str:
    """The message without the slash that escapes a leading slash."""
    return line.removeprefix(SLASH) if line.startswith(SLASH * 2) else line


def run_command(session: ChatSession, line: str) -> Reply:
    """Run a command; raises a WeftError if it is wrong."""
    word, _, argument = line.strip().partition(" ")
    name = word.removeprefix(SLASH)
    if name not in COMMANDS:
        guess = nearest(name, COMMANDS)
        hint = f"Did you mean {SLASH}{guess}? " if guess else ""
        raise UsageError(
            f"{quoted(word)} is not a command. {hint}/help lists them; begin with // to send a "
            "message that begins with a slash."
        )
    command, argument = COMMANDS[name], argument.strip()
    if argument and not command.argument:
        raise UsageError(f"/{name} takes no argument, but has {quoted(argument)}. Leave it out.")
    return command.run(session, argument)


def system(session: ChatSession, argument: str) -> Reply:
    if not argument:
        return Reply(f"system message: {session.system}" if session.system else "there is none.")
    session.system = None if argument == NO_SYSTEM else argument
    return Reply("system message removed." if session.system is None else "system message set.")


def retry(session: ChatSession, argument: str) -> Reply:
    if not session.turns:
        raise UsageError("there is no answer to retry yet: ask something first.")
    seed = session.draw_seed()
    if session.options.sampling.is_greedy:
        return Reply("the same again, as temperature is 0: try /set temperature 0.8", "retry")
    return Reply(f"seed {seed}:", "retry")


def undo(session: ChatSession, argument: str) -> Reply:
    turn = session.undo()
    number = len(session.turns)
    return Reply(f"removed {quoted(turn.question)} and its answer; {turns(number)} left.")


def change(session: ChatSession, argument: str) -> Reply:
    name, _, value = argument.replace("=", " ", 1).partition(" ")
    name, value = name.replace("-", "_").strip("_"), value.strip()
    if value:
        session.set(name, value)
    values = session.settings()
    if name and name not in values:
        session.set(name, value)  # raises, with the nearest name
    shown = {name: values[name]} if name else values
    return Reply("\n".join(f"{key} is {number}." for key, number in shown.items()))


def tokens(session: ChatSession, argument: str) -> Reply:
    used = session.context(None).num_prompt if session.turns else 0
    text = f"{used:,} of {session.limit:,} tokens, in {turns(len(session.turns))}"
    if session.num_dropped:
        text += f", of which the model does not read the oldest {session.num_dropped}"
    return Reply(f"{text}; {max(0, session.limit - used):,} left.")


def list_commands(session: ChatSession, argument: str) -> Reply:
    usages = {name: f"/{name} {one.argument}".rstrip() for name, one in COMMANDS.items()}
    width = max(map(len, usages.values()))
    lines = [f"{usages[name]:<{width}}  {one.help}" for name, one in COMMANDS.items()]
    return Reply("\n".join([*lines, KEYS]))


def leave(session: ChatSession, argument: str) -> Reply:
    return Reply("", "exit")


COMMANDS = {
    "system": ChatCommand("[TEXT]", "The system message; - removes it.", system),
    "retry": ChatCommand("", "Another answer, with a new seed.", retry),
    "undo": ChatCommand("", "Remove the last message and its answer.", undo),
    "set": ChatCommand("[NAME VALUE]", "Settings, such as temperature.", change),
    "tokens": ChatCommand("", "Tokens used, and tokens left.", tokens),
    "help": ChatCommand("", "List the commands and keys.", list_commands),
    "exit": ChatCommand("", "End the chat, as Ctrl-D does.", leave),
}


def quoted(text: str) -> str:
    """The beginning of a text on one line."""
    line = " ".join(text.split())
    return repr(line if len(line) <= MAX_QUOTE else line[: MAX_QUOTE - 3] + "...")


def turns(number: int) -> str:
    return "1 turn" if number == 1 else f"{number:,} turns"
