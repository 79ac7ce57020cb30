"""docs/help.md: every command is on it, and --check notices when it is out of date."""

import sys
import types

import pytest
import typer

from weft.cli.app import Command
from weft.cli.help_page import page, write_or_check


@pytest.fixture
def commands(monkeypatch):
    def command(text: str) -> None:
        """Say it back."""

    group = typer.Typer(help="Measure things.")
    group.command("speed")(lambda: None)
    for name, attributes in {
        "fake_say": {"command": command},
        "fake_measure": {"app": group},
    }.items():
        module = types.ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
    return {"say": Command("fake_say", "Say."), "measure": Command("fake_measure", "Measure.")}


def test_the_page_has_every_command_and_sub_command(commands):
    text = page(commands)
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert titles == ["## weft", "## weft say", "## weft measure", "## weft measure speed"]
    assert "Say it back." in text
    assert "Measure things." in text


def test_the_page_is_the_same_on_any_terminal(commands, monkeypatch):
    wide = page(commands)
    monkeypatch.setenv("COLUMNS", "40")
    assert page(commands) == wide


def test_check_passes_on_what_was_written_and_fails_on_anything_else(commands, tmp_path, capsys):
    path = tmp_path / "help.md"
    assert write_or_check(["--check", str(path)], commands) == 1
    assert write_or_check([str(path)], commands) == 0
    assert write_or_check(["--check", str(path)], commands) == 0
    path.write_text(path.read_text() + "more")
    assert write_or_check(["--check", str(path)], commands) == 1
    assert "help.md is out of date: run `make docs`" in capsys.readouterr().err
