"""`--threads` on every command."""

from __future__ import annotations

import os
import sys
import types
from typing import Annotated

import pytest
import torch
import typer

from weft.cli.app import COMMANDS, Command, main
from weft.cli.help_page import command_words, help_text
from weft.cli.threads_option import with_threads


@pytest.mark.parametrize("words", [w for w in command_words(COMMANDS) if w not in ([], ["bench"])])
def test_every_command_has_it(words: list[str]) -> None:
    assert "--threads" in help_text(words, COMMANDS)


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> dict[str, Command]:
    def say(word: str, times: Annotated[int, typer.Option(min=1)] = 1) -> None:
        """Print a word and the threads."""
        print(word, times, torch.get_num_threads(), os.environ["OMP_NUM_THREADS"])

    def own(threads: int = 7) -> None:
        print("own", threads)

    group = typer.Typer()
    group.callback()(lambda: None)
    group.command("say")(say)
    for name, attributes in {
        "fake_say": {"command": say},
        "fake_own": {"command": own},
        "fake_group": {"app": group},
    }.items():
        module = types.ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return {name: Command(f"fake_{name}", "x") for name in ("say", "own", "group")}


@pytest.mark.parametrize("words", [["say"], ["group", "say"]])
def test_it_holds_while_the_command_runs(
    commands: dict[str, Command], capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    before = torch.get_num_threads()
    assert main([*words, "hello", "--times", "2", "--threads", "3"], commands) == 0
    assert main([*words, "hello"], commands) == 0
    assert capsys.readouterr().out == f"hello 2 3 3\nhello 1 {before} 1\n"
    assert torch.get_num_threads() == before


def test_a_command_with_its_own_option_keeps_it(
    commands: dict[str, Command], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["own", "--threads", "3"], commands) == 0
    assert capsys.readouterr().out == "own 3\n"


@pytest.mark.parametrize("value", ["0", "-1", "1025", "two"])
def test_a_wrong_number_is_one_sentence(
    commands: dict[str, Command], capsys: pytest.CaptureFixture[str], value: str
) -> None:
    assert main(["say", "hello", "--threads", value], commands) == 2
    error = capsys.readouterr().err
    assert "--threads" in error and value in error and error.count("\n") == 1


def test_adding_it_twice_changes_nothing() -> None:
    def say(word: str) -> None:
        """Print it."""

    once = with_threads(say)
    assert with_threads(once) is once and once.__doc__ == "Print it."


def test_an_unknown_wait_policy_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WEFT_WAIT", "sleepy")
    assert main(["doctor"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("WEFT_WAIT is 'sleepy': allowed are") and error.count("\n") == 1
