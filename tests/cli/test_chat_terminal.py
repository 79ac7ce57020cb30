"""The loop of a chat in a terminal, with typed keys from a pipe: what an error leaves, and what
--no-history keeps. Whole chats are in tests/stories/test_chat_terminal.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input

from tests.engine.tiny import tiny
from weft.cli.chat_keyboard import ChatSignals
from weft.cli.chat_printer import AnswerPrinter
from weft.cli.chat_session import ChatSession
from weft.cli.chat_terminal import ChatTerminal
from weft.engine.loaded_model import LoadedModel
from weft.engine.request_builder import GenerationOptions

TURNS = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system message') }}"
    "{% endif %}{{ m.role[0] }}:{{ m.content }} {% endfor %}a:"
)
CTRL_D, ENTER = "\x04", "\r"


@pytest.fixture(scope="module")
def loaded() -> Iterator[LoadedModel]:
    checkpoint = replace(tiny("decoder", max_len=120), chat_template=TURNS)
    with LoadedModel(checkpoint) as model:
        yield model


def run(loaded: LoadedModel, *keys: str, keeps_history: bool = False) -> ChatSession:
    """Type keys, and Ctrl-D at the end."""
    session = ChatSession(loaded, GenerationOptions.of(4, temperature=0.0))
    with create_pipe_input() as pipe, create_app_session(input=pipe), ChatSignals() as signals:
        pipe.send_text("".join(keys) + CTRL_D)
        printer = AnswerPrinter(session, json=False, is_typed=True)
        ChatTerminal(session, signals, printer, keeps_history).run("model")
    return session


def test_an_error_ends_neither_the_chat_nor_the_conversation(
    loaded: LoadedModel, capsys: pytest.CaptureFixture
) -> None:
    keys = ["a cat", ENTER, "/system the", ENTER, "a dog", ENTER]
    # the message is back at the prompt, where Ctrl-C clears it
    session = run(loaded, *keys, "\x03", "/system -", ENTER, "two", ENTER)
    assert [turn.question for turn in session.turns] == ["a cat", "two"]
    error = capsys.readouterr().err
    assert "the chat template refuses this conversation: no system message" in error


def test_a_message_that_failed_is_back_at_the_prompt(loaded: LoadedModel) -> None:
    start_of_line = "\x01"
    keys = ["/system the", ENTER, "a cat", ENTER, start_of_line, "/system ", ENTER]
    assert run(loaded, *keys).system == "a cat"


@pytest.mark.parametrize("keeps_history", [False, True])
def test_the_history_is_kept_unless_it_is_not_wanted(
    loaded: LoadedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps_history: bool
) -> None:
    monkeypatch.setenv("WEFT_STATE", str(tmp_path))
    run(loaded, "a cat", ENTER, "/undo", ENTER, keeps_history=keeps_history)
    kept = [path.read_text() for path in tmp_path.iterdir()]
    assert kept == (['"a cat"\n"/undo"\n'] if keeps_history else [])
