"""Answers of `weft chat` -> text on stdout; finish reason, token counts and speed on stderr."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

from weft.cli.chat_session import Answer, ChatSession
from weft.cli.completion_json import finish_reason, logprob_list
from weft.cli.line_wrapper import LineWrapper
from weft.cli.output import print_json, status

CONTROL = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"
}
"""Control characters as text: an answer must not control the terminal."""


class AnswerPrinter:
    """Prints answers to stdout as they are generated, and their status line to stderr."""

    def __init__(self, session: ChatSession, json: bool, is_typed: bool = False) -> None:
        self.session, self.json, self.is_typed = session, json, is_typed
        self.wrapper = LineWrapper() if sys.stdout.isatty() else None
        self.is_begun = False
        """Whether a part of an answer has been printed."""

    def show(self, text: str) -> None:
        """Print a piece of an answer."""
        if not self.json:
            shown = self.wrapper.add(text.translate(CONTROL)) if self.wrapper else text
            print(shown, end="", flush=True)
            self.is_begun = True

    def finish(self, answer: Answer) -> None:
        """Print the end of an answer, and its status line."""
        if self.json:
            print_json(self.as_object(answer))
            return
        self.end_text()
        print_note = say if self.is_typed else status
        for line in self.notes(answer):
            print_note(f"[{line}]")
        if self.is_typed:
            status("")

    def end_text(self) -> None:
        """Print what is left of the text."""
        print(self.wrapper.end() if self.wrapper else "", flush=True)
        self.is_begun = False

    def give_up(self) -> None:
        """Print what is left of the text of an answer that failed."""
        if self.is_begun:
            self.end_text()

    def notes(self, answer: Answer) -> Iterator[str]:
        """The status line: why the answer ended, unless by itself, token counts and speed."""
        if answer.is_stopped:
            kept = "" if answer.text else " before its first token; the message is taken back"
            yield f"stopped by Ctrl-C{kept}"
        elif answer.is_cut and answer.is_limit_of_context:
            yield f"stopped: the context of {self.session.limit:,} tokens is full"
        elif answer.is_cut:
            advice = f"; /set max_tokens {2 * answer.limit} allows more" if self.is_typed else ""
            yield f"stopped at --max-tokens after {answer.num_tokens} tokens{advice}"
        speed = answer.tokens_per_second
        numbers = f"{answer.num_tokens:,} {'token' if answer.num_tokens == 1 else 'tokens'}"
        numbers += "" if speed is None else f", {speed:.1f} tokens/s"
        yield f"{numbers}; prompt {answer.num_prompt:,}, cached {answer.num_cached:,}"

    def as_object(self, answer: Answer) -> dict[str, Any]:
        """An answer as --json prints it."""
        result: dict[str, Any] = {"role": "assistant", "content": answer.text}
        result["finish_reason"] = finish_reason(answer.completion)
        if self.session.options.sampling.logprobs is not None:
            result["logprobs"] = logprob_list(answer.completion, self.session.loaded.tokenizer)
        return result | {
            "usage": {
                "prompt_tokens": answer.num_prompt,
                "cached_tokens": answer.num_cached,
                "completion_tokens": answer.num_tokens,
            }
        }


def say(text: str) -> None:
    """Print lines, wrapped between words."""
    columns = shutil.get_terminal_size().columns
    for line in text.splitlines():
        status(textwrap.fill(line, columns, break_on_hyphens=False))
