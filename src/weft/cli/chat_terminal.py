"""`weft chat` in a terminal: a prompt with history and editing, streamed answers, commands.

The prompt and all status lines are written to stderr, answers to stdout. Ctrl-C, errors and a full
context do not end the conversation.
"""

from __future__ import annotations

import sys

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.history import History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output.defaults import create_output

from weft.cli.chat_commands import COMMANDS, SLASH, is_command, message_of, run_command
from weft.cli.chat_history import ChatHistory, history_path
from weft.cli.chat_keyboard import ChatSignals
from weft.cli.chat_printer import AnswerPrinter, say
from weft.cli.chat_session import ChatSession, ContextUse
from weft.cli.output import status
from weft.core.errors import EngineError, WeftError

PROMPT = "> "
MAX_DRAFT = 1000
"""Maximum length of an unanswered message that is put into the next prompt for editing."""
HINT = "Ctrl-D exits, /help lists the commands."


class ChatTerminal:
    """Reads messages from a terminal and prints answers."""

    def __init__(
        self,
        session: ChatSession,
        signals: ChatSignals,
        printer: AnswerPrinter,
        keeps_history: bool = True,
    ) -> None:
        self.session, self.signals, self.printer = session, signals, printer
        history: History = ChatHistory(history_path()) if keeps_history else InMemoryHistory()
        self.prompt: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation="  ",
            history=history,
            key_bindings=key_bindings(),
            completer=WordCompleter([SLASH + name for name in COMMANDS], sentence=True),
            complete_while_typing=False,
            enable_suspend=True,
            output=create_output(sys.stderr, always_prefer_tty=True),
        )
        self.draft = ""
        """Initial text of the next prompt: a message that was not answered."""

    def run(self, name: str) -> None:
        """Read and answer messages until Ctrl-D or /exit. `name`: name of the model."""
        sampling = self.session.options.sampling
        drawn = "greedy" if sampling.is_greedy else f"temperature {sampling.temperature:g}"
        say(f"{name}: context of {self.session.limit:,} tokens, {drawn}.")
        say(f"Ctrl-C stops an answer. {HINT}")
        while (line := self.read()) is not None:
            try:
                if line.strip() and not self.handle(line):
                    return
            except (WeftError, EngineError) as error:
                self.printer.give_up()
                say(str(error))
                if not is_command(line):
                    self.take_back(line)

    def read(self) -> str | None:
        """Read a message; None at Ctrl-D."""
        draft, self.draft = self.draft, ""
        try:
            line = self.prompt.prompt(default=draft)
            self.signals.expect()
            return line
        except EOFError:
            return None
        except KeyboardInterrupt:  # Ctrl-C when the prompt has ended, with asyncio's own handler
            return ""

    def handle(self, line: str) -> bool:
        """Run a command or answer a message. Returns False if the chat ends."""
        if not is_command(line):
            self.ask(line)
            return True
        reply = run_command(self.session, line)
        if reply.text:
            say(reply.text)
        if reply.action == "retry":
            self.printer.finish(self.session.retry(self.printer.show))
        return reply.action != "exit"

    def ask(self, line: str) -> None:
        """Answer a message. If the context is full and the user decides to stop, it returns to the
        prompt."""
        question = message_of(line)
        if not self.make_room(question):
            self.take_back(line)
            return
        answer = self.session.ask(question, self.printer.show)
        self.printer.finish(answer)
        if not answer.text and answer.is_stopped:
            self.take_back(line)

    def take_back(self, line: str) -> None:
        """Put an unanswered message into the next prompt; a long one can be recalled with Up."""
        if len(line) <= MAX_DRAFT:
            self.draft = line
        else:
            say("Up recalls the message.")

    def make_room(self, question: str) -> bool:
        """Ask the user what to do if the context is nearly full; returns whether to answer the
        message."""
        use = self.session.context(question)
        if use.is_enough:
            return True
        number = self.session.num_to_drop(question)
        choice = self.choose(use, number)
        if choice == "d" and number is not None:
            self.session.drop(number)
        return bool(choice)

    def choose(self, use: ContextUse, number: int | None) -> str:
        """Ask for a choice: d to drop turns, a to answer anyway; "": do not answer."""
        say(
            f"the conversation has {use.num_prompt:,} tokens with this message, of "
            f"{use.limit:,}: {use.room:,} are left for the answer."
        )
        choices = {"d": f"drop the oldest {'turn' if number == 1 else f'{number} turns'}"}
        choices = {} if number is None else choices
        if use.room:
            choices["a"] = "answer anyway"
        if not choices:
            say("It does not fit, even without the turns before it: shorten it.")
            return ""
        choices["s"] = "stop, and keep everything as it is"
        say(", ".join(f"{key} = {text}" for key, text in choices.items()) + ".")
        letter = self.read_letter(f"{', '.join(choices)}: ")
        return letter if letter in choices and letter != "s" else ""

    def read_letter(self, question: str) -> str:
        """Read one letter; "" for Ctrl-C and Ctrl-D."""
        prompt: PromptSession[str] = PromptSession(output=self.prompt.output)
        try:
            return prompt.prompt(question).strip().lower()[:1]
        except (EOFError, KeyboardInterrupt):
            return ""
        finally:
            self.signals.expect()


def key_bindings() -> KeyBindings:
    """Enter sends, Alt-Enter inserts a line break, Ctrl-C clears the line. Pasted text is inserted
    without its trailing line break."""
    bindings, is_typing = KeyBindings(), has_focus(DEFAULT_BUFFER)

    @bindings.add("enter", filter=is_typing)
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter", filter=is_typing)
    def break_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add(Keys.BracketedPaste, filter=is_typing)
    def paste(event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        event.current_buffer.insert_text(text.rstrip("\n"))

    @bindings.add("c-c", filter=is_typing)
    @bindings.add("<sigint>")
    def clear(event: KeyPressEvent) -> None:
        if not event.current_buffer.text:
            run_in_terminal(lambda: status(HINT))
        event.current_buffer.reset()

    return bindings
